// SPDX-License-Identifier: Apache-2.0
// How a grid scans an array: in one pass by looking back, or in two by shares. docs/design/scans.md
#pragma once
#include <cstdint>

#include "gpufs/par/detail/look_back.hpp"
#include "gpufs/par/detail/scan_tile.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/grid.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// How many tiles n elements are.
template <class Items>
GPUFS_DEVICE std::uint64_t tiles_of(std::uint64_t n) {
  const std::uint64_t tile = std::uint64_t{simt::block_size()} * Items::n * Items::nrows;
  return (n + tile - 1) / tile;
}

// All threads of the grid call. 0 and all elements combined, or -ETIMEDOUT.
template <class Items, scan_operator Op, class Put>
GPUFS_DEVICE int scan_by_look_back(simt::grid grid, const Items& from, std::uint64_t n, const Op& op, const look_back<Op>& tiles,
                                   const Put& put, typename Op::value& all) {
  const simt::block block = grid.this_block();
  using tile = scan_tile<simt::block, Items, Op>;
  tiles.begin(grid, op.identity());
  for (std::uint64_t i = simt::block_rank(); i < tiles.ntiles();) {
    tile here(block, from, i * tile::size(block), n, op);
    // That tile some block takes when about all blocks are done with theirs. So each is asked for once.
    const std::uint64_t later = (i + simt::grid_size()) * tile::size(block);
    if (block.leader() && later < n) from.prefetch(later, n - later < tile::size(block) ? n : later + tile::size(block));
    here.scan(block, op, block_has::met);  // at the barrier of begin() or next_of()
    std::uint64_t next = 0;                // comes while the elements go out
    here.finish(tiles.left_of(block, i, here.all(), op, next), op, put);
    i = tiles.next_of(block, next);
  }
  return tiles.end(grid, all);
}

// The same in a space that has room for it.
template <class Items, scan_operator Op, class Put>
GPUFS_DEVICE int scan_by_look_back(simt::grid grid, const Items& from, std::uint64_t n, const Op& op, const scan_space& space,
                                   const Put& put, typename Op::value& all) {
  return scan_by_look_back(grid, from, n, op, look_back<Op>(space, tiles_of<Items>(n)), put, all);
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
    const stretch mine = share<Items>(block, n);
    using tile = scan_tile<simt::block, Items, Op>;
    for (std::uint64_t begin = mine.begin; begin < mine.end; begin += tile::size(block)) {
      tile here(block, from, begin, mine.end, op);
      here.scan(block, op);
      here.finish(before, op, put);
      before = op(before, here.all());
    }
    const T all = of_first(block, simt::grid_size(), op);
    grid.sync();
    return all;
  }

  // What these are made of, for callers that read elements but once. The elements of the caller's block.
  struct stretch {
    std::uint64_t begin, end;
  };
  template <class Items>
  GPUFS_DEVICE static stretch share(simt::block block, std::uint64_t n) {
    const std::uint64_t size = scan_tile<simt::block, Items, Op>::size(block), nblocks = simt::grid_size();
    const std::uint64_t ntiles = (tiles_of<Items>(n) + nblocks - 1) / nblocks, begin = ntiles * size * simt::block_rank();
    if (begin >= n) return {n, n};
    return {begin, n - begin < ntiles * size ? n : begin + ntiles * size};
  }
  // Says what all of it is combined. All have met since they used the space before, and meet here.
  GPUFS_DEVICE void say(simt::grid grid, const T& mine) const {
    if (grid.this_block().leader()) of_blocks_[simt::block_rank()] = mine;
    grid.sync();
  }
  // What the first blocks' shares are, for all threads of a block.
  GPUFS_DEVICE T of_first(simt::block block, std::uint64_t nblocks, const Op& op) const {
    return scan_by_group(block, array_items<const T>{of_blocks_}, nblocks, op, put_nothing{});
  }

 private:
  template <class Items>
  GPUFS_DEVICE static T of_share(simt::block block, const Items& from, std::uint64_t n, const Op& op) {
    const stretch all = share<Items>(block, n);
    return reduce_by_group(block, from, all.begin, all.end, op);
  }
  template <class Items>
  GPUFS_DEVICE void say_shares(simt::grid grid, const Items& from, std::uint64_t n, const Op& op) const {
    grid.sync();  // all have written the elements, and those who used the space before are done
    const T mine = of_share(grid.this_block(), from, n, op);
    say(grid, mine);
  }

  T* of_blocks_;
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
