// SPDX-License-Identifier: Apache-2.0
// Scans and reductions of arrays in memory, in kernels, by a group or by all blocks of a cooperative launch. docs/design/scans.md
#pragma once
#include "gpufs/par/detail/items.hpp"
#include "gpufs/par/detail/scan_by_grid.hpp"
#include "gpufs/par/detail/scan_tile.hpp"
#include "gpufs/par/heads.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// By a thread, a tile, a warp or a block. All threads of the group call with equal arguments. in, out: n elements each of memory
// that all threads reach; out may be `in`, or they do not overlap. Brackets are by place, so what is returned is the same on each
// run with as many threads. Nothing is waited for but the group. A thread reads its own share of `in` alone: if other threads have
// written that, the group syncs before the call, as it does after the call, before a thread reads what others have written to
// `out`.

// All elements combined, the same for all callers; op.identity() if there are none.
template <simt::group Group, scan_operator Op>
GPUFS_DEVICE typename Op::value reduce(Group group, const typename Op::value* in, std::uint64_t n, const Op& op) {
  const simt::group_call call(group, "par::reduce(in, n)", simt::memory_of_all{in, n}, n);
  const detail::array_items<const typename Op::value> from{in};
  return detail::scan_by_group(group, from, n, op, detail::put_nothing{});
}

// out[i]: the elements up to and with number i, combined. Returns all of them, combined.
template <simt::group Group, scan_operator Op>
GPUFS_DEVICE typename Op::value inclusive_scan(Group group, const typename Op::value* in, typename Op::value* out, std::uint64_t n,
                                               const Op& op) {
  const simt::group_call call(group, "par::inclusive_scan(in, out, n)", simt::memory_of_all{in, n}, simt::memory_of_all{out, n}, n);
  const detail::array_items<const typename Op::value> from{in};
  return detail::scan_by_group(group, from, n, op, detail::put_scan<true, Op>{{op}, {out}});
}

// out[i]: the elements before number i, combined; out[0] is op.identity(). Returns all of them, combined.
template <simt::group Group, scan_operator Op>
GPUFS_DEVICE typename Op::value exclusive_scan(Group group, const typename Op::value* in, typename Op::value* out, std::uint64_t n,
                                               const Op& op) {
  const simt::group_call call(group, "par::exclusive_scan(in, out, n)", simt::memory_of_all{in, n}, simt::memory_of_all{out, n}, n);
  const detail::array_items<const typename Op::value> from{in};
  return detail::scan_by_group(group, from, n, op, detail::put_scan<false, Op>{{op}, {out}});
}

// The same by segments (heads.hpp says where one begins). Returns the last segment's elements, combined.
template <simt::group Group, segmentable Op, segment_heads Heads>
GPUFS_DEVICE typename Op::value inclusive_segmented_scan(Group group, const typename Op::value* in, const Heads& heads,
                                                         typename Op::value* out, std::uint64_t n, const Op& op) {
  const simt::group_call call(group, "par::inclusive_segmented_scan(in, out, n)", simt::memory_of_all{in, n},
                              simt::memory_of_all{out, n}, n);
  const detail::segmented_items<typename Op::value, Heads> from{{in}, heads};
  return detail::scan_by_group(group, from, n, segmented<Op>{op}, detail::put_segmented_scan<true, Op>{{op}, {out}}).of;
}
template <simt::group Group, segmentable Op, segment_heads Heads>
GPUFS_DEVICE typename Op::value exclusive_segmented_scan(Group group, const typename Op::value* in, const Heads& heads,
                                                         typename Op::value* out, std::uint64_t n, const Op& op) {
  const simt::group_call call(group, "par::exclusive_segmented_scan(in, out, n)", simt::memory_of_all{in, n},
                              simt::memory_of_all{out, n}, n);
  const detail::segmented_items<typename Op::value, Heads> from{{in}, heads};
  return detail::scan_by_group(group, from, n, segmented<Op>{op}, detail::put_segmented_scan<false, Op>{{op}, {out}}).of;
}

// By all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results. What any of them has
// written before, elements among it, all see in the call, and what the call has written, all see after it. in, out: global memory,
// as above. space: at least scan_space::nbytes_for<T>(n, blocks, threads a block) bytes, T being the type of in's elements. (The
// CPU machine compares the arguments of a block's threads, not of blocks.)
template <class T>
struct scan_result {
  // 0; -EINVAL: the space is too small (also if n is 0), nothing is done; -ETIMEDOUT: a block's part was missing for 10 s, out is
  // incomplete. (If a block is missing for good, so is the grid's barrier, which has no deadline: simt/grid.hpp.)
  int error;
  T all;  // of the elements, or of the last segment's; if error is 0
};

// Which brackets a scan by a grid has. All give the same for operators that are associative; sums of real numbers are not.
enum class scan_order {
  any,    // by who is there first: one pass over the memory (decoupled look-back)
  fixed,  // by blocks' shares: the same on each run with as many blocks and threads; reads everything twice
};

namespace detail {
template <class Items>
GPUFS_DEVICE bool is_enough(const scan_space& space, std::uint64_t n) {
  return space.may_be_enough_for(n) &&
         space.nbytes >= scan_space::nbytes_for<typename Items::element>(n, simt::grid_size(), simt::block_size());
}
// signature: of the call, as simt::group_call has it.
template <scan_operator Op, class Items, class Put>
GPUFS_DEVICE scan_result<typename Op::value> scan_by_grid(simt::grid grid, const char* signature, const void* in, const void* out,
                                                          const Items& from, std::uint64_t n, const Op& op, const scan_space& space,
                                                          scan_order order, const Put& put) {
  const simt::group_call call(grid.this_block(), signature, simt::memory_of_all{in, n}, simt::memory_of_all{out, n}, n,
                              simt::memory_of_all{space.data}, space.nbytes, order);
  if (!is_enough<Items>(space, n)) return {-EINVAL, op.identity()};
  if (order == scan_order::fixed) return {0, scan_by_shares<Op>(space).scan(grid, from, n, op, put)};
  auto all = op.identity();
  const int error = scan_by_look_back(grid, from, n, op, look_back<Op>(space, tiles_of<Items>(n)), put, all);
  return {error, all};
}
template <scan_operator Op, class Items>
GPUFS_DEVICE scan_result<typename Op::value> reduce_by_grid(simt::grid grid, const char* signature, const void* in,
                                                            const Items& from, std::uint64_t n, const Op& op,
                                                            const scan_space& space) {
  const simt::group_call call(grid.this_block(), signature, simt::memory_of_all{in, n}, n, simt::memory_of_all{space.data},
                              space.nbytes);
  if (!is_enough<Items>(space, n)) return {-EINVAL, op.identity()};
  return {0, scan_by_shares<Op>(space).reduce(grid, from, n, op)};
}
template <bool Inclusive, segmentable Op, segment_heads Heads>
GPUFS_DEVICE scan_result<typename Op::value> segmented_by_grid(simt::grid grid, const char* signature, const typename Op::value* in,
                                                               const Heads& heads, typename Op::value* out, std::uint64_t n,
                                                               const Op& op, const scan_space& space, scan_order order) {
  const segmented_items<typename Op::value, Heads, memory::global> from{{in}, heads};
  const auto got = scan_by_grid(grid, signature, in, out, from, n, segmented<Op>{op}, space, order,
                                put_segmented_scan<Inclusive, Op, memory::global>{{op}, {out}});
  return {got.error, got.all.of};
}
}  // namespace detail

// All elements combined.
template <scan_operator Op>
GPUFS_DEVICE scan_result<typename Op::value> reduce(simt::grid grid, const typename Op::value* in, std::uint64_t n, const Op& op,
                                                    const scan_space& space) {
  return detail::reduce_by_grid(grid, "par::reduce(in, n, space, nbytes)", in,
                                detail::array_items<const typename Op::value, detail::memory::global>{in}, n, op, space);
}

// out[i]: the elements up to and with number i, combined.
template <scan_operator Op>
GPUFS_DEVICE scan_result<typename Op::value> inclusive_scan(simt::grid grid, const typename Op::value* in, typename Op::value* out,
                                                            std::uint64_t n, const Op& op, const scan_space& space,
                                                            scan_order order = scan_order::any) {
  const detail::array_items<const typename Op::value, detail::memory::global> from{in};
  return detail::scan_by_grid(grid, "par::inclusive_scan(in, out, n, space, nbytes, order)", in, out, from, n, op, space, order,
                              detail::put_scan<true, Op, detail::memory::global>{{op}, {out}});
}

// out[i]: the elements before number i, combined.
template <scan_operator Op>
GPUFS_DEVICE scan_result<typename Op::value> exclusive_scan(simt::grid grid, const typename Op::value* in, typename Op::value* out,
                                                            std::uint64_t n, const Op& op, const scan_space& space,
                                                            scan_order order = scan_order::any) {
  const detail::array_items<const typename Op::value, detail::memory::global> from{in};
  return detail::scan_by_grid(grid, "par::exclusive_scan(in, out, n, space, nbytes, order)", in, out, from, n, op, space, order,
                              detail::put_scan<false, Op, detail::memory::global>{{op}, {out}});
}

// The same by segments.
template <segmentable Op, segment_heads Heads>
GPUFS_DEVICE scan_result<typename Op::value> inclusive_segmented_scan(simt::grid grid, const typename Op::value* in,
                                                                      const Heads& heads, typename Op::value* out, std::uint64_t n,
                                                                      const Op& op, const scan_space& space,
                                                                      scan_order order = scan_order::any) {
  return detail::segmented_by_grid<true>(grid, "par::inclusive_segmented_scan(in, out, n, space, nbytes, order)", in, heads, out, n,
                                         op, space, order);
}

// The same by segments.
template <segmentable Op, segment_heads Heads>
GPUFS_DEVICE scan_result<typename Op::value> exclusive_segmented_scan(simt::grid grid, const typename Op::value* in,
                                                                      const Heads& heads, typename Op::value* out, std::uint64_t n,
                                                                      const Op& op, const scan_space& space,
                                                                      scan_order order = scan_order::any) {
  return detail::segmented_by_grid<false>(grid, "par::exclusive_segmented_scan(in, out, n, space, nbytes, order)", in, heads, out,
                                          n, op, space, order);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
