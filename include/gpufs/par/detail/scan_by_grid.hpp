// SPDX-License-Identifier: Apache-2.0
// How a grid scans an array: in one pass by looking back, or in two by shares. docs/design/scans.md
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "gpufs/par/detail/scan_tile.hpp"
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
  const std::uint64_t tile = std::uint64_t{simt::block_size()} * scan_space::items_a_thread(sizeof(typename Items::element));
  return (n + tile - 1) / tile;
}

// What tiles say: a value, and what it is. A tile has words of 8 bytes, each with 4 bytes of the value and what it is. It is
// written once as each, so words that say the same have bytes of the same value, and need no order among them: a release here would
// wait for all that its block has stored before, which is the last tile, and an acquire empties the first-level cache.
enum class said : std::uint32_t { nothing, sum, up_to_it, failed };
template <class T>
class said_of_tiles {
  static constexpr unsigned nwords = (sizeof(T) + 3) / 4;

 public:
  GPUFS_DEVICE said_of_tiles(pieces_of_space& pieces, std::uint64_t ntiles) : words_(pieces.take<std::uint64_t>(ntiles * nwords)) {}
  // By all threads of the grid, before and after which they meet.
  GPUFS_DEVICE void clear(std::uint64_t ntiles) const {
    for (std::uint64_t i = simt::grid::rank(); i < ntiles * nwords; i += simt::grid::size()) words_[i] = 0;
  }

  GPUFS_DEVICE void say(std::uint64_t tile, const T& value, said what) const {
    std::uint32_t pieces[nwords]{};
    std::memcpy(pieces, &value, sizeof value);
    GPUFS_UNROLL
    for (unsigned k = 0; k < nwords; ++k) {
      const std::uint64_t word = std::uint64_t{static_cast<std::uint32_t>(what)} << 32 | pieces[k];
      simt::atomic_ref(words_[tile * nwords + k]).store(word, std::memory_order_relaxed);
    }
  }
  // `nothing` also while words say different things.
  GPUFS_DEVICE said look(std::uint64_t tile, T& value) const {
    std::uint64_t words[nwords];
    GPUFS_UNROLL
    for (unsigned k = 0; k < nwords; ++k) words[k] = simt::atomic_ref(words_[tile * nwords + k]).load_relaxed();
    std::uint32_t pieces[nwords];
    bool is_one_value = true;
    GPUFS_UNROLL
    for (unsigned k = 0; k < nwords; ++k) {
      pieces[k] = static_cast<std::uint32_t>(words[k]);
      is_one_value = is_one_value && words[k] >> 32 == words[0] >> 32;
    }
    std::memcpy(static_cast<void*>(&value), pieces, sizeof value);
    return is_one_value ? static_cast<said>(words[0] >> 32) : said::nothing;
  }

 private:
  std::uint64_t* words_;
};

// How a tile's block learns what is to the left of it (Merrill and Garland, "Single-pass parallel prefix scan with decoupled
// look-back", NVR-2016-002): each tile says first its own sum, then that of all up to it. Whoever wants all to the left of a tile
// goes left until one says the latter. A block has the tile of its number first, and then always the next one that nobody has. So
// it waits only for tiles of blocks that run, as all of a cooperative launch do, and whose own waits are for tiles further left;
// and blocks that are slower have fewer tiles.
template <scan_operator Op>
class look_back {
  using T = typename Op::value;
  static constexpr std::uint64_t timeout_ns = 10'000'000'000;  // of one tile's wait

  // What a block's first warp tells the others.
  struct told {
    T left;
    std::uint64_t next;
  };
  struct told_bytes {
    alignas(16) std::byte bytes[48];
  };

 public:
  GPUFS_DEVICE look_back(const scan_space& space, std::uint64_t ntiles) : look_back(pieces_of_space(space), ntiles) {}
  GPUFS_DEVICE std::uint64_t ntiles() const { return ntiles_; }

  // All threads of the grid call, before and after.
  GPUFS_DEVICE void begin(simt::grid grid) const {
    grid.sync();  // those who used the space before are done
    if (grid.leader()) {
      *failed_ = 0;
      *next_ = simt::grid_size();
    }
    tiles_.clear(ntiles_);
    grid.sync();
  }
  GPUFS_DEVICE int end(simt::grid grid, T& all) const {
    grid.sync();
    if (simt::atomic_ref(*failed_).load_relaxed() != 0) return -ETIMEDOUT;
    if (ntiles_ != 0) tiles_.look(ntiles_ - 1, all);
    return 0;
  }

  // The next tile that nobody has, for the block's leader, who asks before the block is at work on its own: the answer takes a
  // while.
  GPUFS_DEVICE std::uint64_t take(simt::block block) const {
    return block.leader() ? simt::atomic_ref(*next_).fetch_add(1, std::memory_order_relaxed) : 0;
  }

  // Says that all of a tile is `of_tile`. Tells all threads of the block, which call and meet in it, all to its left, and the
  // leader's `next`. If that does not come in time, a part of it, of those nearest to the tile, and end() tells. A compaction may
  // take that for a place: it is not too large.
  GPUFS_DEVICE T left_of(simt::block block, std::uint64_t tile, const T& of_tile, const Op& op, std::uint64_t& next) const {
    static_assert(sizeof(told) <= sizeof(told_bytes) && alignof(told) <= alignof(told_bytes));
    auto* const told_here = reinterpret_cast<told*>(simt::shared<told_bytes>().bytes);
    const auto warp = block.warp();
    if (simt::warp_rank() == 0) {
      T left = op.identity();
      bool is_there = true;
      if (tile != 0) {
        if (warp.leader()) tiles_.say(tile, of_tile, said::sum);
        is_there = look(warp, tile, op, left);
      }
      if (warp.leader()) {
        if (!is_there) simt::atomic_ref(*failed_).store(1, std::memory_order_relaxed);
        tiles_.say(tile, op(left, of_tile), is_there ? said::up_to_it : said::failed);
        told_here->left = left;
        told_here->next = next;
      }
    }
    block.sync();  // with the one of the next tile's scan: all have read before it is written again
    next = told_here->next;
    return told_here->left;
  }

 private:
  GPUFS_DEVICE look_back(pieces_of_space pieces, std::uint64_t ntiles)
      : ntiles_(ntiles), failed_(pieces.take<std::uint32_t>(1)), next_(pieces.take<std::uint64_t>(1)), tiles_(pieces, ntiles) {}

  // Combines what tiles to the left say, 32 at a time, the last lane the nearest one.
  GPUFS_DEVICE bool look(simt::warp warp, std::uint64_t tile, const Op& op, T& left) const {
    std::uint64_t began_ns = 0;  // waiting, once it does
    for (std::uint64_t end = tile; end != 0; end -= simt::warp_lanes) {
      const unsigned back = simt::warp_lanes - warp.rank();
      said what = back <= end ? said::nothing : said::up_to_it;  // left of all is nothing: up to it, that is the identity
      T value = op.identity();
      std::uint32_t complete = 0;
      simt::backoff wait(256);
      for (unsigned nwaits = 0;; ++nwaits) {
        if (what == said::nothing) what = tiles_.look(end - back, value);
        // Nobody needs what lies left of one that says all up to it.
        const std::uint32_t missing = warp.ballot(what == said::nothing);
        complete = warp.ballot(what == said::up_to_it);
        if (missing == 0 || (complete != 0 && simt::highest_lane(complete) > simt::highest_lane(missing))) break;
        if (warp.any(what == said::failed) || warp.any(is_late(nwaits, began_ns))) return false;
        wait();
      }
      if (warp.any(what == said::failed)) return false;
      const unsigned first = complete == 0 ? 0 : simt::highest_lane(complete);
      if (warp.rank() < first) value = op.identity();
      left = op(detail::scan(warp, value, op).all, left);
      if (complete != 0) return true;
    }
    return true;  // never: tile 0 says all up to itself
  }
  // The clock takes longer to read than most waits last.
  GPUFS_DEVICE static bool is_late(unsigned nwaits, std::uint64_t& began_ns) {
    if (nwaits % 16 != 15) return false;
    const std::uint64_t now = simt::clock_ns();
    if (began_ns == 0) began_ns = now;
    return now - began_ns >= timeout_ns;
  }

  std::uint64_t ntiles_;
  std::uint32_t* failed_;
  std::uint64_t* next_;
  said_of_tiles<T> tiles_;
};

// All threads of the grid call. 0 and all elements combined, or -ETIMEDOUT.
template <class Items, scan_operator Op, class Put>
GPUFS_DEVICE int scan_by_look_back(simt::grid grid, const Items& from, std::uint64_t n, const Op& op, const look_back<Op>& tiles,
                                   const Put& put, typename Op::value& all) {
  const simt::block block = grid.this_block();
  using tile = scan_tile<simt::block, Items, Op>;
  tiles.begin(grid);
  for (std::uint64_t i = simt::block_rank(); i < tiles.ntiles();) {
    tile here(block, from, i * tile::size(block), n, op);
    std::uint64_t next = tiles.take(block);  // its answer and the elements are under way together
    here.scan(block, op, block_has::met);    // at the barrier of begin() or left_of()
    here.finish(tiles.left_of(block, i, here.all(), op, next), op, put);
    i = next;
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

 private:
  // The elements of the caller's block.
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
  // All of it combined: each warp has a part of it, so that none waits for another at each tile.
  template <class Items>
  GPUFS_DEVICE static T of_share(simt::block block, const Items& from, std::uint64_t n, const Op& op) {
    const stretch all = share<Items>(block, n);
    const auto warp = block.warp();
    const std::uint64_t size = scan_tile<simt::warp, Items, Op>::size(warp), nwarps = block.nwarps();
    const std::uint64_t part = ((all.end - all.begin + size - 1) / size + nwarps - 1) / nwarps * size;
    const std::uint64_t begin = all.begin + part * simt::warp_rank();
    const std::uint64_t end = begin >= all.end ? begin : all.end - begin < part ? all.end : begin + part;
    return scan_warps(block, scan_by_group(warp, from, begin, end, op, put_nothing{}), op, false).all;
  }
  template <class Items>
  GPUFS_DEVICE void say_shares(simt::grid grid, const Items& from, std::uint64_t n, const Op& op) const {
    grid.sync();  // all have written the elements, and those who used the space before are done
    const T mine = of_share(grid.this_block(), from, n, op);
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
