// SPDX-License-Identifier: Apache-2.0
// Reductions and scans of one value a thread, by a thread, a tile, a warp or a block, with any associative operator.
// docs/design/scans.md
#pragma once
#include <cstddef>

#include "gpufs/par/operators.hpp"
#include "gpufs/simt/group.hpp"
#include "gpufs/simt/memory.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

namespace detail {

// Of one value a thread: all that are to the left of the caller's, those and the caller's, and all of the group.
template <class T>
struct scanned {
  T below, up_to_me, all;
};

// Hillis and Steele: ceil(log2 N) rounds, each of which combines with the value that many lanes below ("Data parallel algorithms",
// CACM 1986, "Sum of an array of numbers"; their lock step is a shuffle here).
template <unsigned N, scan_operator Op>
GPUFS_DEVICE scanned<typename Op::value> scan(simt::tile<N> tile, typename Op::value value, const Op& op) {
  for (unsigned distance = 1; distance < N; distance *= 2) {
    const auto below = tile.shfl_up(value, distance);
    if (tile.rank() >= distance) value = op(below, value);
  }
  const auto below = tile.shfl_up(value, 1);
  return {tile.rank() == 0 ? op.identity() : below, value, tile.shfl(value, N - 1)};
}

struct warp_values {
  alignas(16) std::byte bytes[32 * simt::warp_lanes];
};

// Of a block's warps, each of which has one value, the same in all its lanes: `below` is all of the warps to the left of the
// caller's. Each warp scans all of them (Sengupta, Harris, Garland, section 3: scan_block; there one warp does, and tells the
// others). A barrier, and one before it unless all have met since they read the values of the last such scan.
template <scan_operator Op>
GPUFS_DEVICE scanned<typename Op::value> scan_warps(simt::block block, const typename Op::value& of_mine, const Op& op,
                                                    bool have_met) {
  using T = typename Op::value;
  const auto warp = block.warp();
  T* const of_warps = reinterpret_cast<T*>(simt::shared<warp_values>().bytes);
  if (!have_met) block.sync();  // all have read those of the scan before
  if (warp.leader()) of_warps[simt::warp_rank()] = of_mine;
  block.sync();
  T of_warp = op.identity();
  if (simt::lane_id() < block.nwarps()) of_warp = of_warps[simt::lane_id()];
  const scanned<T> of_all = detail::scan(warp, of_warp, op);
  return {warp.shfl(of_all.below, simt::warp_rank()), warp.shfl(of_all.up_to_me, simt::warp_rank()), of_all.all};
}

// Each warp scans its values, then their last ones are scanned. Two barriers.
template <scan_operator Op>
GPUFS_DEVICE scanned<typename Op::value> scan(simt::block block, const typename Op::value& value, const Op& op) {
  using T = typename Op::value;
  const scanned<T> of_mine = detail::scan(block.warp(), value, op);
  const scanned<T> of_warps = scan_warps(block, of_mine.all, op, false);
  return {op(of_warps.below, of_mine.below), op(of_warps.below, of_mine.up_to_me), of_warps.all};
}

}  // namespace detail

// Collectives: all threads of the group call with equal operators. Each has one value; "left" is by rank. What they return is the
// same on each run, as the brackets are: each warp's first, then the warps'. A block has two barriers.

// The values of all, combined; the same for all callers.
template <simt::group Group, scan_operator Op>
GPUFS_DEVICE typename Op::value reduce(Group group, const typename Op::value& value, const Op& op) {
  return detail::scan(group, value, op).all;
}

// The values of the ranks up to the caller's, combined.
template <simt::group Group, scan_operator Op>
GPUFS_DEVICE typename Op::value inclusive_scan(Group group, const typename Op::value& value, const Op& op) {
  return detail::scan(group, value, op).up_to_me;
}

// The values of the ranks below the caller's, combined; rank 0 gets op.identity().
template <simt::group Group, scan_operator Op>
GPUFS_DEVICE typename Op::value exclusive_scan(Group group, const typename Op::value& value, const Op& op) {
  return detail::scan(group, value, op).below;
}

// The same by segments: one begins at each rank with is_head, and at rank 0.
template <simt::group Group, segmentable Op>
GPUFS_DEVICE typename Op::value inclusive_segmented_scan(Group group, const typename Op::value& value, bool is_head, const Op& op) {
  return inclusive_scan(group, {value, is_head}, segmented<Op>{op}).of;
}
template <simt::group Group, segmentable Op>
GPUFS_DEVICE typename Op::value exclusive_segmented_scan(Group group, const typename Op::value& value, bool is_head, const Op& op) {
  const auto below = exclusive_scan(group, {value, is_head}, segmented<Op>{op}).of;
  return is_head ? op.identity() : below;
}

// How many threads below the caller's, and of the group, have the predicate: so those that have it get numbers 0, 1, 2, ...
// (Hillis and Steele, "Counting and enumerating active processors").
struct enumerated {
  std::uint32_t below, all;
};
template <unsigned N>
GPUFS_DEVICE enumerated enumerate(simt::tile<N> tile, bool predicate) {
  const std::uint32_t votes = tile.ballot(predicate);
  return {simt::count_lanes(votes & ((1u << tile.rank()) - 1)), simt::count_lanes(votes)};
}
GPUFS_DEVICE enumerated enumerate(simt::block block, bool predicate) {
  const auto numbers = detail::scan(block, predicate ? 1u : 0u, plus<std::uint32_t>{});
  return {numbers.below, numbers.all};
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
