// SPDX-License-Identifier: Apache-2.0
// How pointers reach elements: what they are compiled with, and what some of them keep for it.
#pragma once
#include <type_traits>

#include "gpufs/pointer/detail/elsewhere.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What a pointer is compiled with: the handler that works on pages that are brought in, and the slow paths.
template <class Handler>
struct handled_by {
  static_assert(std::is_trivially_copyable_v<Handler> && std::is_default_constructible_v<Handler> && sizeof(Handler) <= 64,
                "gpufs: a fault handler is trivially copyable, default constructible, and has at most 64 bytes");
  using handler = Handler;

  // See detail::pin_hit and pin_rest, leave, access_elsewhere. held: the pages that are to be given back.
  template <bool Wrote, detail::walking Walks>
  GPUFS_DEVICE static std::uint64_t pin_hit(mapping_name from, std::uint32_t page, detail::room around,
                                            const detail::held_pages& held) {
    return detail::pin_hit<Wrote, Walks>(from, page, around, held);
  }
  template <bool Wrote>
  GPUFS_DEVICE static std::int64_t pin_rest(mapping_name from, const Handler& how, std::uint32_t page, std::uint32_t wanted,
                                            std::uint64_t pinned, const detail::held_pages& held) {
    return simt::call_cold(&detail::pin_rest<Handler, Wrote>, from, how, page, wanted, pinned, held);
  }
  template <bool Wrote>
  GPUFS_DEVICE static void leave(mapping_name from, const detail::held_pages& held) {
    simt::call_cold(&detail::leave<Wrote>, from, held);
  }
  template <bool Write>
  GPUFS_DEVICE static int access_elsewhere(mapping_name from, const Handler& how, const detail::bounds& within,
                                           std::uint64_t position, void* bytes, std::uint32_t nbytes, int error) {
    return simt::call_cold(&detail::access_elsewhere<Handler, Write>, from, how, within, position, static_cast<std::byte*>(bytes),
                           nbytes, error);
  }
  GPUFS_DEVICE static int gather_elsewhere(mapping_name from, const Handler& how, const detail::bounds& within,
                                           const std::uint64_t* positions, void* bytes, std::uint32_t nbytes, std::uint32_t count,
                                           std::uint32_t done, int error) {
    return simt::call_cold(&detail::gather_elsewhere<Handler>, from, how, within, positions, static_cast<std::byte*>(bytes), nbytes,
                           count, done, error);
  }
};
using plain_access = handled_by<no_handler>;

namespace detail {

// What some pointers keep beside their position: a handler, or how they have written the linked page; none keeps both. A
// base, as [[no_unique_address]] members make nvcc 13.0 step wrongly through arrays of such objects.
template <class Handler, bool Writable>
class kept_by_ptr {
 protected:
  GPUFS_DEVICE constexpr kept_by_ptr() {}
  GPUFS_DEVICE explicit kept_by_ptr(const Handler& how) : handler_(how) {}
  GPUFS_DEVICE const Handler& handler() const { return handler_; }
  GPUFS_DEVICE void set_handler(const Handler& how) { handler_ = how; }
  GPUFS_DEVICE static constexpr page_written how_written() { return page_written::not_yet; }
  GPUFS_DEVICE static void set_how_written(page_written) {}

 private:
  Handler handler_{};
};
template <>
class kept_by_ptr<no_handler, false> {
 protected:
  GPUFS_DEVICE constexpr kept_by_ptr() {}
  GPUFS_DEVICE explicit kept_by_ptr(no_handler) {}
  GPUFS_DEVICE static no_handler handler() { return {}; }
  GPUFS_DEVICE static void set_handler(no_handler) {}
  GPUFS_DEVICE static constexpr page_written how_written() { return page_written::not_yet; }
  GPUFS_DEVICE static void set_how_written(page_written) {}
};
template <>
class kept_by_ptr<no_handler, true> : protected kept_by_ptr<no_handler, false> {
 protected:
  using kept_by_ptr<no_handler, false>::kept_by_ptr;
  GPUFS_DEVICE page_written how_written() const { return how_written_; }
  GPUFS_DEVICE void set_how_written(page_written how) const { how_written_ = how; }

 private:
  mutable page_written how_written_ = page_written::not_yet;
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
