// SPDX-License-Identifier: Apache-2.0
// Of each page of an array in memory, all its elements combined: checksums, counts and sums by page, in one pass. In kernels.
// (Sengupta, Harris, Garland, NVR-2008-003, have sums by segments as a scan; of segments of one length each is a reduction of its
// own.) docs/design/scans.md
#pragma once
#include <cerrno>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "gpufs/par/detail/scan_by_grid.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// What makes a value of an element, by default: nothing.
struct as_it_is {
  template <class T>
  GPUFS_DEVICE const T& operator()(const T& element) const {
    return element;
  }
};
template <class Of, class T, class Op>
concept value_of = std::is_trivially_copyable_v<Of> && requires(const Of& of, const T& element) {
  { of(element) } -> std::convertible_to<typename Op::value>;
};

namespace detail {

// An array's elements as values. Registers have the elements, which may be smaller.
template <class T, scan_operator Op, class Of, memory In = memory::any>
struct mapped_items {
  using element = T;
  using value = typename Op::value;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T)), nrows = scan_space::rows_beside(sizeof(T));
  array_items<const T, In> all;
  const Op& op;  // the caller's
  const Of& of;

  struct row {
    typename array_items<const T, In>::row elements;
    unsigned valid;
    const mapped_items* from;
    GPUFS_DEVICE value operator[](unsigned k) const {
      return k < valid ? static_cast<value>(from->of(elements[k])) : from->op.identity();
    }
  };

  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return all.is_wide(first); }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const {
    all.load_row(first, to.elements);
    to.valid = n;
    to.from = this;
  }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, const value&, row& to) const {
    all.load_row(first, valid, T{}, to.elements);
    to.valid = valid;
    to.from = this;
  }
};

// Pages from number `page` on, of which each `stride`-th is the group's.
template <class Group, class Items, scan_operator Op>
GPUFS_DEVICE void reduce_some_pages(Group group, const Items& from, std::uint64_t n, std::uint64_t page_n, typename Op::value* out,
                                    const Op& op, std::uint64_t page, std::uint64_t stride) {
  const std::uint64_t npages = n / page_n + (n % page_n != 0 ? 1 : 0);
  for (; page < npages; page += stride) {
    const std::uint64_t begin = page * page_n, end = n - begin < page_n ? n : begin + page_n;
    const auto all = reduce_by_group(group, from, begin, end, op);
    if (group.leader()) out[page] = all;
  }
}

// Pages of more elements are a block's, of a grid, and not a warp's.
inline constexpr std::uint64_t warps_page_n = 4096;

}  // namespace detail

// out[p]: of(in[p * page_n]) op of(in[p * page_n + 1]) op ..., the left one first, through the last element of page p, which is the
// page's last or, if it is less, number n - 1. There are ceil(n / page_n) pages; each has page_n elements, but the last one may
// have fewer. Elements are of any type of up to 32 bytes; of(element) makes a value of one, by any thread, once or more often, and
// is a function of kernels: GPUFS_DEVICE. in: n elements, and out: a value a page, of memory that all threads reach; they do not
// overlap. Each element is read once: by accesses of up to 16 bytes where pages begin at multiples of that, as they do if page_n
// times an element's size is one and `in` is aligned to it. 0 for all, or -EINVAL: page_n is 0, and nothing is done.
//
// By a thread, a tile, a warp or a block, all threads of which call with equal arguments; page after page. Brackets are by place,
// so what comes is the same on each run with as many threads. Nothing is waited for but the group. A thread reads its own share of
// `in` alone: if others have written that, the group syncs before the call, as it does after it, before a thread reads `out`, which
// the group's leader writes.
template <simt::group Group, scannable T, scan_operator Op, value_of<T, Op> Of = as_it_is>
GPUFS_DEVICE int reduce_pages(Group group, const T* in, std::uint64_t n, std::uint64_t page_n, typename Op::value* out,
                              const Op& op, const Of& of = Of()) {
  const simt::group_call call(group, "par::reduce_pages(in, n, page_n, out)", simt::memory_of_all{in, n}, n, page_n,
                              simt::memory_of_all{out, n});
  if (page_n == 0) return -EINVAL;
  detail::reduce_some_pages(group, detail::mapped_items<T, Op, Of>{{in}, op, of}, n, page_n, out, op, 0, 1);
  return 0;
}

// By all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results. in, out: global
// memory. Needs no space. What any of them has written before, all see in the call, and what the call has written, all see after
// it. Warps take pages of up to 4,096 elements in turn, blocks larger ones; a page has one of them, so a few large pages leave
// blocks idle (a segmented scan shares them out), as pages of fewer elements than a warp has lanes leave lanes.
template <scannable T, scan_operator Op, value_of<T, Op> Of = as_it_is>
GPUFS_DEVICE int reduce_pages(simt::grid grid, const T* in, std::uint64_t n, std::uint64_t page_n, typename Op::value* out,
                              const Op& op, const Of& of = Of()) {
  const simt::block block = grid.this_block();
  const simt::group_call call(block, "par::reduce_pages(in, n, page_n, out)", simt::memory_of_all{in, n}, n, page_n,
                              simt::memory_of_all{out, n});
  if (page_n == 0) return -EINVAL;
  grid.sync();  // all have written the elements
  const detail::mapped_items<T, Op, Of, detail::memory::global> from{{in}, op, of};
  if (page_n <= detail::warps_page_n) {
    const std::uint64_t nwarps = block.nwarps(), mine = simt::block_rank() * nwarps + simt::warp_rank();
    detail::reduce_some_pages(block.warp(), from, n, page_n, out, op, mine, simt::grid_size() * nwarps);
  } else {
    detail::reduce_some_pages(block, from, n, page_n, out, op, simt::block_rank(), simt::grid_size());
  }
  grid.sync();
  return 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
