// SPDX-License-Identifier: Apache-2.0
// The paper's scan of an array (Sengupta, Harris, Garland, NVR-2008-003, section 4), for host code: a kernel scans each block's
// tile and keeps its sum, the sums are scanned in the same way, and a kernel puts in front of each tile what is to its left. Three
// kernels where the sums are one tile; two more each time they are more. Eight elements a thread, side by side. Every element is
// read twice and written twice; a single pass (gpufs::par::inclusive_scan by a grid) reads and writes each once.
#pragma once
#include <algorithm>
#include <deque>

#include "gpufs/par/detail/items.hpp"
#include "research/scans/block_segments.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

namespace detail {
inline constexpr unsigned nitems = 8;  // of a thread

template <class T>
using items_of = par::detail::array_items<T, par::detail::memory::any, nitems>;  // results are read again, so the caches keep them

// The caller's elements of an array of n.
struct stretch {
  std::uint64_t first;
  unsigned n;
};
GPUFS_DEVICE stretch my_stretch(std::uint64_t n) {
  const std::uint64_t first = (std::uint64_t{simt::block_rank()} * simt::block_size() + simt::thread_rank()) * nitems;
  return {first, first >= n ? 0 : n - first < nitems ? static_cast<unsigned>(n - first) : nitems};
}
template <class T>
GPUFS_DEVICE void load(const T* from, const stretch& mine, const T& nothing, T (&items)[nitems]) {
  for (T& each : items) each = nothing;
  items_of<const T>{from}.load(mine.first, mine.n, items);
}
template <class T>
GPUFS_DEVICE void store(T* to, const stretch& mine, const T (&items)[nitems]) {
  const items_of<T> out{to};
  if (mine.n == nitems && out.is_wide(mine.first)) {
    out.store_wide(mine.first, items);
  } else {
    out.store_some(mine.first, mine.n, items);
  }
}
// Puts `left` in front of each of the caller's results.
template <par::scan_operator Op>
GPUFS_DEVICE void put_in_front(typename Op::value* out, const stretch& mine, const typename Op::value& left, const Op& op) {
  typename Op::value items[nitems];
  load<typename Op::value>(out, mine, op.identity(), items);
  for (auto& each : items) each = op(left, each);
  store(out, mine, items);
}
}  // namespace detail

// --- Scans ------------------------------------------------------------------------------------------------------------------

template <class Blocks, par::scan_operator Op>
struct scan_tiles {
  using T = typename Op::value;
  const T* in;
  T* out;
  T* sums;  // of tiles
  std::uint64_t n;
  Op op;

  GPUFS_DEVICE void operator()() const {
    const simt::block block;
    const detail::stretch mine = detail::my_stretch(n);
    T items[detail::nitems];
    detail::load(in, mine, op.identity(), items);
    GPUFS_UNROLL
    for (unsigned k = 1; k < detail::nitems; ++k) items[k] = op(items[k - 1], items[k]);
    const scanned<T> of_block = Blocks::scan(block, items[detail::nitems - 1], op);
    for (T& each : items) each = op(of_block.below, each);
    detail::store(out, mine, items);
    if (block.leader()) sums[simt::block_rank()] = of_block.all;
  }
};
template <par::scan_operator Op>
struct add_to_tiles {
  using T = typename Op::value;
  T* out;
  const T* sums;  // up to and with each tile
  std::uint64_t n;
  Op op;

  GPUFS_DEVICE void operator()() const {
    if (simt::block_rank() == 0) return;
    detail::put_in_front(out, detail::my_stretch(n), sums[simt::block_rank() - 1], op);
  }
};

// --- Segmented scans --------------------------------------------------------------------------------------------------------

template <class Blocks, par::segmentable Op>
struct scan_segment_tiles {
  using T = typename Op::value;
  const T* in;
  const std::uint8_t* heads;  // not 0: a segment begins there
  T* out;
  T* sums;                   // of tiles, from the last head on
  std::uint8_t* have_heads;  // of tiles
  std::uint32_t* second;     // of tiles: where their second segment begins, within the tile; its end if there is none
  std::uint64_t n;
  Op op;

  GPUFS_DEVICE void operator()() const {
    const simt::block block;
    const detail::stretch mine = detail::my_stretch(n);
    T items[detail::nitems];
    std::uint8_t flags[detail::nitems];
    detail::load(in, mine, op.identity(), items);
    detail::load(heads, mine, std::uint8_t{0}, flags);
    unsigned first_head = detail::nitems;
    GPUFS_UNROLL
    for (unsigned k = 0; k < detail::nitems; ++k) {
      if (k != 0 && flags[k] == 0) items[k] = op(items[k - 1], items[k]);
      if (flags[k] != 0 && first_head == detail::nitems) first_head = k;
    }
    const bool has_head = first_head != detail::nitems;
    const auto of_block = Blocks::scan(block, items[detail::nitems - 1], has_head, op);
    GPUFS_UNROLL
    for (unsigned k = 0; k < detail::nitems; ++k) {
      if (k < first_head) items[k] = op(of_block.below, items[k]);
    }
    detail::store(out, mine, items);
    const std::uint32_t mine_is = block.rank() * detail::nitems + first_head;
    const std::uint32_t least = block.reduce_min(has_head ? mine_is : block.size() * detail::nitems);
    if (!block.leader()) return;
    sums[simt::block_rank()] = of_block.all;
    have_heads[simt::block_rank()] = of_block.any ? 1 : 0;
    second[simt::block_rank()] = least;
  }
};
// The carry goes to the elements before the tile's second segment (section 4: a min-reduction finds it).
template <par::segmentable Op>
struct add_to_segment_tiles {
  using T = typename Op::value;
  T* out;
  const T* sums;  // up to and with each tile, by segments
  const std::uint32_t* second;
  std::uint64_t n;
  Op op;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t first = simt::thread_rank() * detail::nitems;
    if (simt::block_rank() == 0 || first >= second[simt::block_rank()]) return;
    const std::uint32_t left_of_it = second[simt::block_rank()] - first;
    detail::stretch mine = detail::my_stretch(n);
    if (left_of_it < mine.n) mine.n = left_of_it;
    detail::put_in_front(out, mine, sums[simt::block_rank() - 1], op);
  }
};

// --- Host -------------------------------------------------------------------------------------------------------------------

// Room for the sums of arrays of n elements, in device memory, and the calls. launch(grid, kernel) launches a kernel by blocks of
// nthreads (a power of two from 32 on, at most most_threads) behind those before.
template <par::scan_operator Op>
class three_kernels {
  using T = typename Op::value;
  struct level {
    std::uint64_t n;  // elements
    unsigned ntiles;
    simt::device_array<T> sums;
    simt::device_array<std::uint8_t> have_heads;
    simt::device_array<std::uint32_t> second;
    level(std::uint64_t count, unsigned tiles) : n(count), ntiles(tiles), sums(tiles), have_heads(tiles), second(tiles) {}
  };

 public:
  three_kernels(std::uint64_t n, unsigned nthreads) {
    const std::uint64_t tile = std::uint64_t{nthreads} * detail::nitems;
    do {
      const std::uint64_t ntiles = std::max<std::uint64_t>(1, (n + tile - 1) / tile);
      levels_.emplace_back(n, static_cast<unsigned>(ntiles));
      n = ntiles;
    } while (n != 1);
  }

  // out[i]: the elements up to and with number i, combined. in may be out.
  template <class Blocks, class Launch>
  void scan(const T* in, T* out, const Op& op, const Launch& launch, std::size_t depth = 0) const {
    const level& at = levels_[depth];
    T* const sums = at.sums.get();
    launch(at.ntiles, scan_tiles<Blocks, Op>{in, out, sums, at.n, op});
    if (at.ntiles == 1) return;
    scan<Blocks>(sums, sums, op, launch, depth + 1);
    launch(at.ntiles, add_to_tiles<Op>{out, sums, at.n, op});
  }
  // The same from each head on.
  template <class Blocks, class Launch>
  void segmented_scan(const T* in, const std::uint8_t* heads, T* out, const Op& op, const Launch& launch,
                      std::size_t depth = 0) const {
    const level& at = levels_[depth];
    T* const sums = at.sums.get();
    launch(at.ntiles, scan_segment_tiles<Blocks, Op>{in, heads, out, sums, at.have_heads.get(), at.second.get(), at.n, op});
    if (at.ntiles == 1) return;
    segmented_scan<Blocks>(sums, at.have_heads.get(), sums, op, launch, depth + 1);
    launch(at.ntiles, add_to_segment_tiles<Op>{out, sums, at.second.get(), at.n, op});
  }

 private:
  std::deque<level> levels_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
