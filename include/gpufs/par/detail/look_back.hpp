// SPDX-License-Identifier: Apache-2.0
// How the blocks of a grid that go through an array tile by tile tell each other what their tiles are. docs/design/scans.md
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpufs/par/operators.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/grid.hpp"
#include "gpufs/simt/memory.hpp"
#include "gpufs/simt/unroll.hpp"
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
  // What is left of it.
  GPUFS_DEVICE scan_space rest(const scan_space& of) const {
    return {at_, of.nbytes - static_cast<std::uint64_t>(at_ - static_cast<std::byte*>(of.data))};
  }

 private:
  std::byte* at_;
};

// What tiles say: a value, and what it is. A tile has words of 8 bytes, each with 4 bytes of the value and what it is. It is
// written once as each, so words that say the same have bytes of the same value, and need no order among them: a release here would
// wait for all that its block has stored before, which is the last tile, and an acquire empties the first-level cache.
enum class said : std::uint32_t { nothing, sum, up_to_it, failed };
template <class T>
class said_of_tiles {
 public:
  static constexpr int nwords = (sizeof(T) + 3) / 4;
  // How many rows of tiles, each of as many as a warp has lanes, are looked at together: by registers.
  static constexpr int nrows = nwords == 1 ? 4 : nwords == 2 ? 2 : 1, nbefore = nrows * simt::warp_lanes;
  static_assert(nbefore <= scan_space::ntiles_before);
  struct words {
    std::uint64_t of[nwords];
  };

  // Of all tiles, and of nbefore tiles to the left of them, which say that all up to them is nothing: so nobody looks too far.
  GPUFS_DEVICE said_of_tiles(pieces_of_space& pieces, std::uint64_t ntiles)
      : words_(pieces.take<std::uint64_t>((ntiles + nbefore) * nwords) + nbefore * nwords) {}
  // By all threads of the grid, before and after which they meet.
  GPUFS_DEVICE void clear(std::uint64_t ntiles, const T& identity) const {
    for (std::uint64_t i = simt::grid::rank(); i < ntiles * nwords; i += simt::grid::size()) words_[i] = 0;
    for (std::uint64_t i = simt::grid::rank(); i < nbefore; i += simt::grid::size()) {
      say(static_cast<std::int64_t>(i) - nbefore, identity, said::up_to_it);
    }
  }

  GPUFS_DEVICE void say(std::int64_t tile, const T& value, said what) const {
    std::uint32_t pieces[nwords]{};
    std::memcpy(pieces, &value, sizeof value);
    GPUFS_UNROLL
    for (int k = 0; k < nwords; ++k) {
      const std::uint64_t word = std::uint64_t{static_cast<std::uint32_t>(what)} << 32 | pieces[k];
      simt::atomic_ref(words_[tile * nwords + k]).store(word, std::memory_order_relaxed);
    }
  }
  // What a tile says, of which nothing is waited for yet.
  GPUFS_DEVICE words read(std::int64_t tile) const {
    words all;
    GPUFS_UNROLL
    for (int k = 0; k < nwords; ++k) all.of[k] = simt::atomic_ref(words_[tile * nwords + k]).load_relaxed();
    return all;
  }
  // What that is; `nothing` also while words say different things.
  GPUFS_DEVICE static said what(const words& all) {
    bool is_one_value = true;
    GPUFS_UNROLL
    for (int k = 0; k < nwords; ++k) is_one_value = is_one_value && all.of[k] >> 32 == all.of[0] >> 32;
    return is_one_value ? static_cast<said>(all.of[0] >> 32) : said::nothing;
  }
  GPUFS_DEVICE static void value(const words& all, T& value) {
    std::uint32_t pieces[nwords];
    GPUFS_UNROLL
    for (int k = 0; k < nwords; ++k) pieces[k] = static_cast<std::uint32_t>(all.of[k]);
    std::memcpy(static_cast<void*>(&value), pieces, sizeof value);
  }

 private:
  std::uint64_t* words_;
};

// How a tile's block learns what is to the left of it (Merrill and Garland, "Single-pass parallel prefix scan with decoupled
// look-back", NVR-2016-002): each tile says first its own sum, then that of all up to it (at once, if that is its own:
// forgets_left). Whoever wants all to the left of a tile goes left until one says the latter. A block has the tile of its number
// first, and then always the next one that nobody has, and asks for that no earlier than when it is about to begin with it: all to
// the right of a tile that is taken wait for it. So it waits only for tiles of blocks that run, as all of a cooperative launch do,
// and whose own waits are for tiles further left; and blocks that are slower have fewer tiles.
template <scan_operator Op>
class look_back {
  using T = typename Op::value;
  static constexpr std::uint64_t timeout_ns = 10'000'000'000;  // of one tile's wait

  static constexpr int nrows = said_of_tiles<T>::nrows;
  static constexpr unsigned nlooks_awake = 16;  // what is missing mostly comes within a microsecond

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
  GPUFS_DEVICE look_back(pieces_of_space pieces, std::uint64_t ntiles)
      : ntiles_(ntiles), failed_(pieces.take<std::uint32_t>(1)), next_(pieces.take<std::uint64_t>(1)), tiles_(pieces, ntiles) {}
  GPUFS_DEVICE std::uint64_t ntiles() const { return ntiles_; }

  // All threads of the grid call, before and after.
  GPUFS_DEVICE void begin(simt::grid grid, const T& identity) const {
    grid.sync();  // those who used the space before are done
    if (grid.leader()) {
      *failed_ = 0;
      *next_ = simt::grid_size();
    }
    tiles_.clear(ntiles_, identity);
    grid.sync();
  }
  GPUFS_DEVICE int end(simt::grid grid, T& all) const {
    grid.sync();
    if (simt::atomic_ref(*failed_).load_relaxed() != 0) return -ETIMEDOUT;
    if (ntiles_ != 0) tiles_.value(tiles_.read(ntiles_ - 1), all);
    return 0;
  }

  // Says that all of a tile is `of_tile`. Tells all threads of the block, which call and meet in it, all to its left. If that does
  // not come in time, a part of it, of those nearest to the tile, and end() tells. A compaction may take that for a place: it is
  // not too large. `next`, the leader's, is the next tile that nobody has: asked for last, and the answer takes a while.
  GPUFS_DEVICE T left_of(simt::block block, std::uint64_t tile, const T& of_tile, const Op& op, std::uint64_t& next) const {
    const auto warp = block.warp();
    if (simt::warp_rank() == 0) {
      T left = op.identity();
      bool is_there = true;
      // Of a tile in which a segment begins, all up to it is what it has itself: who is to its right waits for nobody else.
      const bool is_all = forgets_left(op, of_tile);
      if (tile != 0) {
        if (warp.leader()) tiles_.say(tile, of_tile, is_all ? said::up_to_it : said::sum);
        is_there = look(warp, tile, op, left);
      }
      if (warp.leader()) {
        if (!is_there) simt::atomic_ref(*failed_).store(1, std::memory_order_relaxed);
        if (tile == 0 || !is_all) tiles_.say(tile, op(left, of_tile), is_there ? said::up_to_it : said::failed);
        next = simt::atomic_ref(*next_).fetch_add(1, std::memory_order_relaxed);
        told_here()->left = left;
      }
    }
    block.sync();  // they meet again in next_of() before it is written again
    return told_here()->left;
  }
  // The leader's `next` for all threads of the block, which call and meet in it.
  GPUFS_DEVICE std::uint64_t next_of(simt::block block, std::uint64_t next) const {
    if (block.leader()) told_here()->next = next;
    block.sync();
    return told_here()->next;  // written again after the next left_of()
  }

 private:
  GPUFS_DEVICE static told* told_here() {
    static_assert(sizeof(told) <= sizeof(told_bytes) && alignof(told) <= alignof(told_bytes));
    return reinterpret_cast<told*>(simt::shared<told_bytes>().bytes);
  }

  // Combines what tiles to the left say, some rows of them at a time: the first row is the nearest one, and in it the last lane.
  GPUFS_DEVICE bool look(simt::warp warp, std::uint64_t tile, const Op& op, T& left) const {
    std::uint64_t began_ns = 0;  // waiting, once it does
    for (std::int64_t nearest = static_cast<std::int64_t>(tile) - simt::warp_lanes + warp.rank();;
         nearest -= said_of_tiles<T>::nbefore) {
      typename said_of_tiles<T>::words words[nrows];
      unsigned first[nrows];  // of each row, the first lane that is needed
      bool is_complete = false;
      simt::backoff wait(256);
      for (unsigned nwaits = 0;; ++nwaits) {
        // All loads are under way together. Each time anew: who had said its sum may say all up to it by now.
        GPUFS_UNROLL
        for (int r = 0; r < nrows; ++r) words[r] = tiles_.read(nearest - r * static_cast<int>(simt::warp_lanes));
        bool is_missing = false, has_failed = false;
        is_complete = false;
        GPUFS_UNROLL
        for (int r = 0; r < nrows; ++r) {
          const said what = tiles_.what(words[r]);
          // Nobody needs what lies left of one that says all up to it.
          const std::uint32_t missing = warp.ballot(what == said::nothing), complete = warp.ballot(what == said::up_to_it);
          is_missing = is_missing || (!is_complete && missing > complete);  // the highest lane of both is missing
          first[r] = is_complete ? simt::warp_lanes : complete == 0 ? 0 : simt::highest_lane(complete);
          is_complete = is_complete || complete != 0;
          has_failed = has_failed || what == said::failed;
        }
        if (warp.any(has_failed)) return false;
        if (!is_missing) break;
        if (warp.any(is_late(nwaits, began_ns))) return false;
        if (!GPUFS_ON_CUDA || nwaits >= nlooks_awake) wait();
      }
      T values[nrows];
      GPUFS_UNROLL
      for (int r = 0; r < nrows; ++r) {
        tiles_.value(words[r], values[r]);
        if (warp.rank() < first[r]) values[r] = op.identity();
      }
      left = op(combined(warp, values, op), left);
      if (is_complete) return true;
    }
  }
  // All of some rows, the last one leftmost, for all lanes: log2 32 rounds, in which halves of lanes side by side exchange theirs.
  GPUFS_DEVICE static T combined(simt::warp warp, T (&values)[nrows], const Op& op) {
    for (unsigned distance = 1; distance < simt::warp_lanes; distance *= 2) {
      GPUFS_UNROLL
      for (int r = 0; r < nrows; ++r) {
        const T other = warp.shfl(values[r], warp.rank() ^ distance);
        values[r] = (warp.rank() & distance) != 0 ? op(other, values[r]) : op(values[r], other);
      }
    }
    T all = values[0];
    GPUFS_UNROLL
    for (int r = 1; r < nrows; ++r) all = op(values[r], all);
    return all;
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

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
