// SPDX-License-Identifier: Apache-2.0
// Walks at nearly the price of plain pointers: the pointer is asked once for each stretch that it is linked to, and in it a loop
// over plain addresses is left to the compiler, which has several loads under way, as it does for T*. An access at a time asks each
// time whether it may fault, and no load passes a possible fault. (As an algorithm over segmented iterators does: M. Austern,
// 1998.)
#pragma once
#include "gpufs/pointer/map.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

inline constexpr std::uint32_t most_at_once = 1u << 31;

// What for_each_n needs of a pointer.
struct walk {
  // Links the pointer to where it points; with `together`, all lanes of the warp link if one of them must. Returns how many of the
  // next `most` elements, `stride` apart, can be read in place; 0: none can.
  template <class Pointer>
  GPUFS_DEVICE static std::uint32_t in_place(const Pointer& p, std::ptrdiff_t stride, bool together, std::uint32_t most) {
    const bool links = !p.reaches(0) && p.within().have(p.position(), Pointer::nbytes);
    const std::uint64_t step = p.bytes(stride);
    if (together ? simt::this_warp().any(links) : links)
      p.template link<walking::surely>(0, stride > 0 && most != 0 ? (most - 1) * step : 0);
    if (!p.reaches(0)) return 0;
    const std::uint64_t left = p.span_ - 1 - (p.address_ - p.first_);
    const std::uint32_t n = step - 1 < left ? static_cast<std::uint32_t>(left) / static_cast<std::uint32_t>(step) + 1
                                            : 1;  // a step of 0 or back is one
    return n < most ? n : most;
  }
  template <class Pointer>
  GPUFS_DEVICE static auto address(const Pointer& p) {
    return reinterpret_cast<const typename Pointer::value_type*>(p.address_);
  }
};

// Calls what(*p...) n times, `stride` elements of device memory further each time.
template <class Do, class... T>
GPUFS_DEVICE void for_each_in_place(std::int64_t n, std::ptrdiff_t stride, Do& what, const T*... p) {
  for (std::int64_t i = 0; i < n; ++i) {
    what(simt::load_device(p)...);
    ((p += stride), ...);
  }
}

}  // namespace detail

// Calls what(p[0]...), what(p[stride]...), and so on, n times in order, and leaves the pointers n * stride elements on, linked
// where they are then. n and stride may differ from lane to lane, and any divergence is allowed; a warp whose lanes call together,
// with elements side by side, walks fastest. An element that cannot be had is given as zeros and recorded, as by p[i]. `what` must
// not use these pointers (a copy has pins of its own): they hold the pages that are being read. For plain pointers to device memory
// it is the loop that it says.
template <class Do, class... T, class... Access>
GPUFS_DEVICE void for_each_n(std::int64_t n, std::ptrdiff_t stride, Do what, ptr<T, Access>&... p) {
  static_assert(sizeof...(p) > 0, "gpufs::for_each_n: walks at least one pointer");
  struct site;
  while (n > 0) {
    const bool together = simt::lanes_together<site>().mask() == ~0u;
    std::uint32_t here = n < detail::most_at_once ? static_cast<std::uint32_t>(n) : detail::most_at_once;
    ((here = detail::walk::in_place(p, stride, together, here)), ...);
    if (together) here = simt::this_warp().reduce_min(here);  // all go on to the next pages together
    if (here != 0) [[likely]] {
      detail::for_each_in_place(here, stride, what, detail::walk::address(p)...);
    } else {
      what(static_cast<std::remove_cv_t<T>>(*p)...);
      here = 1;
    }
    ((p += static_cast<std::ptrdiff_t>(here) * stride), ...);
    n -= here;
  }
}
template <class Do, class... T>
GPUFS_DEVICE void for_each_n(std::int64_t n, std::ptrdiff_t stride, Do what, T*&... p) {
  detail::for_each_in_place(n, stride, what, static_cast<const T*>(p)...);
  if (n > 0) ((p += n * stride), ...);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
