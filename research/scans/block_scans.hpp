// SPDX-License-Identifier: Apache-2.0
// The papers' scans of one value a thread over a block, to compare with: any associative operator, the left one first. Each is a
// type with
//   scan(block, value, op) -> scanned   what is to the left of the caller's value, those and the caller's, and all of the block
// which all threads of a block of at most most_threads call together; of a power of two of them where it says so.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/par/group_scan.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

inline constexpr unsigned most_threads = 512;

template <class T>
using scanned = par::detail::scanned<T>;

namespace detail {
// Shared memory for up to nvalues values, whatever is in it: a kernel that makes several scans uses it by turns, with a barrier
// before each.
template <class T, unsigned nvalues>
struct room_for {
  alignas(16) std::byte bytes[nvalues * sizeof(T)];
};
template <class T, unsigned nvalues>
GPUFS_DEVICE T* room() {
  return reinterpret_cast<T*>(simt::shared<room_for<T, nvalues>>().bytes);
}
}  // namespace detail

// Hillis and Steele, "Data parallel algorithms" (CACM 1986), "Sum of an array of numbers", all partial sums: ceil(log2 n) rounds,
// in each of which every thread combines its value with that of the thread `distance` below. Their machine reads all before it
// writes any; here the rounds go to and fro between two arrays, with a barrier after each. The step's condition is rank >=
// distance.
struct by_all_threads {
  template <par::scan_operator Op>
  GPUFS_DEVICE static scanned<typename Op::value> scan(simt::block block, const typename Op::value& value, const Op& op) {
    using T = typename Op::value;
    const unsigned me = block.rank(), n = block.size();
    T* from = detail::room<T, 2 * most_threads>();
    T* to = from + n;
    block.sync();  // all have read what the scan before has left there
    from[me] = value;
    block.sync();
    for (unsigned distance = 1; distance < n; distance *= 2) {
      to[me] = me >= distance ? op(from[me - distance], from[me]) : from[me];
      block.sync();
      T* const free = from;
      from = to;
      to = free;
    }
    return {me == 0 ? op.identity() : from[me - 1], from[me], from[n - 1]};
  }
};

// Reduce and down-sweep: sums of pairs, of pairs of pairs, up a tree; then each node gives its left child what is to the left of
// itself, and its right child that and the left child's sum (Blelloch; the scan that Sengupta, Harris, Garland, "Efficient parallel
// scan algorithms for GPUs", NVR-2008-003, improve upon: 2 log2 n rounds, with fewer threads at work in each). A place behind every
// 32 keeps threads of a warp in different banks. Of a power of two of threads.
struct by_reduce_and_down_sweep {
  template <par::scan_operator Op>
  GPUFS_DEVICE static scanned<typename Op::value> scan(simt::block block, const typename Op::value& value, const Op& op) {
    using T = typename Op::value;
    const unsigned me = block.rank(), n = block.size();
    T* const sums = detail::room<T, most_threads + most_threads / 32>();
    const auto at = [sums](unsigned i) -> T& { return sums[i + i / 32]; };
    block.sync();  // as above
    at(me) = value;
    for (unsigned distance = 1; distance < n; distance *= 2) {
      block.sync();
      if (me < n / (2 * distance)) {
        const unsigned left = (2 * me + 1) * distance - 1, right = left + distance;
        at(right) = op(at(left), at(right));
      }
    }
    block.sync();
    const T all = at(n - 1);
    block.sync();
    if (me == 0) at(n - 1) = op.identity();
    for (unsigned distance = n / 2; distance != 0; distance /= 2) {
      block.sync();
      if (me < n / (2 * distance)) {
        const unsigned left = (2 * me + 1) * distance - 1, right = left + distance;
        const T of_left = at(left);
        at(left) = at(right);
        at(right) = op(at(right), of_left);
      }
    }
    block.sync();
    const T below = at(me);
    return {below, op(below, value), all};
  }
};

// Sengupta, Harris, Garland, section 3: scan_block. Each warp scans its values (scan_warp; lock step is a shuffle now), one warp
// scans the warps' sums, and each warp puts in front what is to its left.
struct by_warps {
  template <par::scan_operator Op>
  GPUFS_DEVICE static scanned<typename Op::value> scan(simt::block block, const typename Op::value& value, const Op& op) {
    using T = typename Op::value;
    const auto warp = block.warp();
    const scanned<T> mine = par::detail::scan(warp, value, op);
    T* const below = detail::room<T, simt::warp_lanes + 1>();
    block.sync();  // as above
    if (warp.leader()) below[simt::warp_rank()] = mine.all;
    block.sync();
    if (simt::warp_rank() == 0) {
      const scanned<T> of_warps = par::detail::scan(warp, warp.rank() < block.nwarps() ? below[warp.rank()] : op.identity(), op);
      below[warp.rank()] = of_warps.below;
      if (warp.leader()) below[simt::warp_lanes] = of_warps.all;
    }
    block.sync();
    const T left = below[simt::warp_rank()];
    return {op(left, mine.below), op(left, mine.up_to_me), below[simt::warp_lanes]};
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
