// SPDX-License-Identifier: Apache-2.0
// How a grid scans an array: in one pass by looking back, or in two by shares. docs/design/scans.md
#pragma once
#include <cerrno>
#include <cstddef>

#include "gpufs/par/detail/items.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/grid.hpp"
#include "gpufs/simt/wait.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Pieces of a scan_space, aligned to 16.
class pieces_of_space {
 public:
  // By steps from `data`: so nvcc knows that they are in the memory that it is in.
  GPUFS_DEVICE explicit pieces_of_space(const scan_space& space)
      : at_(static_cast<std::byte*>(space.data) + (16 - reinterpret_cast<std::uintptr_t>(space.data) % 16) % 16) {}

  template <class T>
  GPUFS_DEVICE T* take(std::uint64_t n) {
    T* const piece = reinterpret_cast<T*>(at_);
    at_ += (n * sizeof(T) + 15) / 16 * 16;
    return piece;
  }

 private:
  std::byte* at_;
};

// How many tiles n elements are.
template <class Items>
GPUFS_DEVICE std::uint64_t tiles_of(std::uint64_t n) {
  const std::uint64_t tile = std::uint64_t{simt::block_size()} * Items::n;
  return (n + tile - 1) / tile;
}

// What each tile says of itself to those to its right (Merrill and Garland, "Single-pass parallel prefix scan with decoupled
// look-back", NVR-2016-002): first its own sum, then that of all up to it. Whoever wants all to the left of a tile goes left until
// one says the latter. Block b takes tiles b, b + nblocks, ...: so it waits only for tiles of blocks that run, as all of a
// cooperative launch do, and whose own waits are for tiles further left.
template <scan_operator Op>
class look_back {
  using T = typename Op::value;
  enum state : std::uint32_t { nothing, sum, up_to_it, failed };
  static constexpr std::uint64_t timeout_ns = 10'000'000'000;  // of one tile's wait

 public:
  GPUFS_DEVICE look_back(const scan_space& space, std::uint64_t ntiles) : ntiles_(ntiles) {
    pieces_of_space pieces(space);
    failed_ = pieces.take<std::uint32_t>(1);
    states_ = pieces.take<std::uint32_t>(ntiles);
    sums_ = pieces.take<T>(ntiles);
    up_to_ = pieces.take<T>(ntiles);
  }
  GPUFS_DEVICE std::uint64_t ntiles() const { return ntiles_; }

  // All threads of the grid call, before and after.
  GPUFS_DEVICE void begin(simt::grid grid) const {
    grid.sync();  // those who used the space before are done
    if (grid.leader()) *failed_ = 0;
    for (std::uint64_t i = grid.rank(); i < ntiles_; i += grid.size()) states_[i] = nothing;
    grid.sync();
  }
  GPUFS_DEVICE int end(simt::grid grid, T& all) const {
    grid.sync();
    if (simt::atomic_ref(*failed_).load_relaxed() != 0) return -ETIMEDOUT;
    if (ntiles_ != 0) all = up_to_[ntiles_ - 1];
    return 0;
  }

  // Says that all of a tile is `of_tile`, and returns all to its left. All threads of a block call. If that does not come in time,
  // a part of it, of those nearest to the tile, and end() tells. A compaction may take that for a place: it is not too large.
  GPUFS_DEVICE T left_of(simt::block block, std::uint64_t tile, const T& of_tile, const Op& op) const {
    const auto warp = block.warp();
    T left = op.identity();
    if (simt::warp_rank() == 0) {
      bool is_there = true;
      if (tile != 0) {
        if (warp.leader()) say(sums_, tile, of_tile, sum);
        is_there = look(warp, tile, op, left);
      }
      if (warp.leader()) {
        if (!is_there) simt::atomic_ref(*failed_).store(1, std::memory_order_relaxed);
        say(up_to_, tile, op(left, of_tile), is_there ? up_to_it : failed);
      }
    }
    return block.broadcast(left);
  }

 private:
  // Release: with look's acquire.
  GPUFS_DEVICE void say(T* where, std::uint64_t tile, const T& value, state what) const {
    where[tile] = value;
    simt::atomic_ref(states_[tile]).store(what, std::memory_order_release);
  }
  // Combines what tiles to the left say, 32 at a time, lane 0 the nearest one.
  GPUFS_DEVICE bool look(simt::warp warp, std::uint64_t tile, const Op& op, T& left) const {
    const simt::deadline until(timeout_ns);
    for (std::uint64_t nearest = tile; nearest != 0; nearest -= simt::warp_lanes) {
      const bool is_any = warp.rank() < nearest;  // else it is left of all, where nothing is: up to it, that is the identity
      const std::uint64_t mine = nearest - 1 - warp.rank();
      std::uint32_t said = is_any ? nothing : up_to_it, ends = 0;
      for (simt::backoff wait(256);;) {
        if (said == nothing) said = simt::atomic_ref(states_[mine]).load(std::memory_order_acquire);
        // Nobody needs what lies left of one that says all up to it.
        const std::uint32_t missing = warp.ballot(said == nothing);
        ends = warp.ballot(said == up_to_it);
        if (missing == 0 || (ends != 0 && simt::lowest_lane(ends) < simt::lowest_lane(missing))) break;
        if (warp.any(said == failed) || warp.any(until.expired())) return false;
        wait();
      }
      if (warp.any(said == failed)) return false;
      const unsigned last = ends == 0 ? simt::warp_lanes - 1 : simt::lowest_lane(ends);
      T value = op.identity();
      if (warp.rank() <= last) value = said == up_to_it ? up_to_[mine] : sums_[mine];
      for (unsigned distance = 1; distance < simt::warp_lanes; distance *= 2) {
        const bool combines = warp.rank() + distance < simt::warp_lanes;
        const T further = warp.shfl(value, combines ? warp.rank() + distance : warp.rank());
        if (combines) value = op(further, value);
      }
      left = op(warp.broadcast(value), left);
      if (ends != 0) return true;
    }
    return true;  // never: tile 0 says all up to itself
  }

  std::uint64_t ntiles_;
  std::uint32_t *failed_, *states_;
  T *sums_, *up_to_;
};

// All threads of the grid call. 0 and all elements combined, or -ETIMEDOUT.
template <class Items, scan_operator Op, class Put>
GPUFS_DEVICE int scan_by_look_back(simt::grid grid, const Items& from, std::uint64_t n, const Op& op, const look_back<Op>& tiles,
                                   const Put& put, typename Op::value& all) {
  const simt::block block = grid.this_block();
  using tile = scan_tile<simt::block, Items, Op>;
  tiles.begin(grid);
  for (std::uint64_t i = simt::block_rank(); i < tiles.ntiles(); i += simt::grid_size()) {
    const tile here(block, from, i * tile::size(block), n, op);
    here.finish(tiles.left_of(block, i, here.all(), op), op, put);
  }
  return tiles.end(grid, all);
}

// Each block has a share of whole tiles: it says what all of it is, then scans it, with what the shares before it are in front.
template <scan_operator Op>
class scan_by_shares {
  using T = typename Op::value;

 public:
  GPUFS_DEVICE explicit scan_by_shares(const scan_space& space) : of_blocks_(pieces_of_space(space).take<T>(simt::grid_size())) {}

  // All threads of the grid call.
  template <class Items>
  GPUFS_DEVICE T reduce(simt::grid grid, const Items& from, std::uint64_t n, const Op& op) const {
    say_shares<Items>(grid, from, n, op);
    return of_first(grid.this_block(), simt::grid_size(), op);
  }
  template <class Items, class Put>
  GPUFS_DEVICE T scan(simt::grid grid, const Items& from, std::uint64_t n, const Op& op, const Put& put) const {
    const simt::block block = grid.this_block();
    say_shares<Items>(grid, from, n, op);
    T before = of_first(block, simt::block_rank(), op);
    each_tile<Items>(block, from, n, op, [&](const auto& tile) {
      tile.finish(before, op, put);
      before = op(before, tile.all());
    });
    const T all = of_first(block, simt::grid_size(), op);
    grid.sync();
    return all;
  }

 private:
  template <class Items, class Work>
  GPUFS_DEVICE static void each_tile(simt::block block, const Items& from, std::uint64_t n, const Op& op, Work work) {
    using tile = scan_tile<simt::block, Items, Op>;
    const std::uint64_t size = tile::size(block), ntiles = tiles_of<Items>(n), nblocks = simt::grid_size();
    const std::uint64_t share = (ntiles + nblocks - 1) / nblocks, first = share * simt::block_rank();
    for (std::uint64_t i = first; i < ntiles && i < first + share; ++i) work(tile(block, from, i * size, n, op));
  }
  template <class Items>
  GPUFS_DEVICE void say_shares(simt::grid grid, const Items& from, std::uint64_t n, const Op& op) const {
    grid.sync();  // all have written the elements, and those who used the space before are done
    T mine = op.identity();
    each_tile<Items>(grid.this_block(), from, n, op, [&](const auto& tile) { mine = op(mine, tile.all()); });
    if (grid.this_block().leader()) of_blocks_[simt::block_rank()] = mine;
    grid.sync();
  }
  GPUFS_DEVICE T of_first(simt::block block, std::uint64_t nblocks, const Op& op) const {
    return scan_by_group(block, array_items<const T>{of_blocks_}, nblocks, op, put_nothing{});
  }

  T* of_blocks_;
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
