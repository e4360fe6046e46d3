// SPDX-License-Identifier: Apache-2.0
// The paper's two segmented scans of one value a thread over a block (Sengupta, Harris, Garland, NVR-2008-003, sections 2 and 3).
// Each is a type with
//   scan(block, value, is_head, op) -> segment_scanned
// for a thread that says whether a segment begins in what it has, and what it has from there on, else all of it. All threads of a
// block of at most most_threads call together.
#pragma once
#include "research/scans/block_scans.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

template <class T>
struct segment_scanned {
  T below;   // to the left of the caller's, in the segment that comes to it; of rank 0 nothing
  T all;     // of the block, from its last head on
  bool any;  // whether it has a head
};

// By an operator that has the head beside the value: (fx, x) + (fy, y) = (fx | fy, fy ? y : x + y). Any scan will do.
struct segments_by_operator {
  template <par::segmentable Op>
  GPUFS_DEVICE static segment_scanned<typename Op::value> scan(simt::block block, const typename Op::value& value, bool is_head,
                                                               const Op& op) {
    const auto got = by_warps::scan(block, {value, is_head}, par::segmented<Op>{op});
    return {got.below.of, got.all.of, got.all.is_head};
  }
};

// By conditional indexing: mindex, an inclusive max-scan of the lanes that have heads, is the lane at which the caller's segment
// begins, and a step of the warp's scan combines only if lane >= mindex + distance. So the flag is scanned once, as an integer, and
// not shuffled beside the value in each round.
struct segments_by_index {
  template <par::segmentable Op>
  GPUFS_DEVICE static segment_scanned<typename Op::value> scan(simt::block block, const typename Op::value& value, bool is_head,
                                                               const Op& op) {
    using T = typename Op::value;
    const auto warp = block.warp();
    const of_warp<T> mine = scan_warp(warp, value, is_head, op);
    struct sums {
      T of[simt::warp_lanes + 1];
      std::uint32_t is_head[simt::warp_lanes + 1];
    };
    sums& all = *detail::room<sums, 1>();
    block.sync();  // all have read what the scan before has left there
    if (warp.rank() == simt::warp_lanes - 1) {
      all.of[simt::warp_rank()] = mine.up_to_me;
      all.is_head[simt::warp_rank()] = mine.heads != 0;
    }
    block.sync();
    if (simt::warp_rank() == 0) {
      const bool is_there = warp.rank() < block.nwarps(), begins = is_there && all.is_head[warp.rank()] != 0;
      const of_warp<T> of_warps = scan_warp(warp, is_there ? all.of[warp.rank()] : op.identity(), begins, op);
      warp.sync();  // all lanes have read theirs
      all.of[warp.rank() + 1] = of_warps.up_to_me;
      all.is_head[warp.rank() + 1] = of_warps.heads != 0;
    }
    block.sync();
    const T left = simt::warp_rank() == 0 ? op.identity() : all.of[simt::warp_rank()];
    const std::uint32_t lanes_below = (1u << warp.rank()) - 1;
    const T up_to_left = warp.shfl_up(mine.up_to_me, 1);
    T below = warp.rank() == 0 ? op.identity() : up_to_left;
    if ((mine.heads & lanes_below) == 0) below = op(left, below);  // the segment comes from the warps to the left
    return {below, all.of[block.nwarps()], all.is_head[block.nwarps()] != 0};
  }

 private:
  template <class T>
  struct of_warp {
    T up_to_me;
    std::uint32_t heads;  // the lanes that have one
  };
  template <par::segmentable Op>
  GPUFS_DEVICE static of_warp<typename Op::value> scan_warp(simt::warp warp, typename Op::value value, bool is_head, const Op& op) {
    const unsigned lane = warp.rank();
    unsigned mindex = is_head ? lane : 0;
    for (unsigned distance = 1; distance < simt::warp_lanes; distance *= 2) {
      const unsigned below = warp.shfl_up(mindex, distance);
      if (lane >= distance && below > mindex) mindex = below;
    }
    for (unsigned distance = 1; distance < simt::warp_lanes; distance *= 2) {
      const auto below = warp.shfl_up(value, distance);
      if (lane >= mindex + distance) value = op(below, value);
    }
    return {value, warp.ballot(is_head)};
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
