// SPDX-License-Identifier: Apache-2.0
// Lists of neighbours, as the warps of a kernel read them: in memory, or through gpufs. In kernels. docs/design/graph.md, "Lists in
// kernels".
#pragma once
#include <cerrno>
#include <cstdint>

#include "apps/element_runs.hpp"
#include "apps/graph/format.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

// Copies of what is asked for: with advise(random) it alone is brought in, by sectors.
struct by_part {
  static constexpr std::uint64_t most = 256, most_nbytes = most * 8;  // elements a copy, and their bytes

  file of;
  std::uint64_t begin;
  unsigned shift;
  std::byte* copies;  // most_nbytes for each warp of the launch

  class cursor {
   public:
    GPUFS_DEVICE explicit cursor(const by_part& of) : of_(of) {}
    GPUFS_DEVICE run at(simt::warp warp, std::uint64_t i, std::uint64_t n) {
      warp.sync();  // all have read the last copy
      n = n < most ? n : most;
      std::byte* const mine = of_.copies + simt::global_warp_rank() * most_nbytes;
      const auto nbytes = static_cast<std::int64_t>(n << of_.shift);
      const std::int64_t got = pread(warp, of_.of, mine, n << of_.shift, static_cast<std::int64_t>(of_.begin + (i << of_.shift)));
      if (got != nbytes) return {nullptr, 0, got < 0 ? static_cast<int>(got) : -ESTALE};
      return {mine, n, 0};
    }
    GPUFS_DEVICE void leave(simt::warp) {}
    GPUFS_DEVICE unsigned shift() const { return of_.shift; }

   private:
    const by_part& of_;
  };
};

// --- Lists -------------------------------------------------------------------------------------------------------------------

// A part of a long list. Warps take long lists by pieces, so that no warp has one alone.
struct piece {
  vertex of;
  std::uint32_t number;
};
inline constexpr std::uint64_t edges_a_piece = GPUFS_ON_CUDA ? 4096 : 128;  // longer lists are in pieces
inline constexpr std::uint64_t all_of_a_list = std::uint64_t{1} << 40;      // as most_ahead: where lists are read whole

// Where the lists lie; in device memory.
struct list_places {
  const std::uint64_t* offsets;  // nvertices + 1
  std::uint64_t nvertices;
  const piece* pieces;  // of all long lists
  std::uint64_t npieces;

  GPUFS_DEVICE std::uint64_t nneighbours(vertex v) const { return offsets[v + 1] - offsets[v]; }
  GPUFS_DEVICE std::uint64_t nwords() const { return (nvertices + 31) / 32; }  // of a bitmap of vertices
};

// What a lane has of a warp's share: a vertex and a range of its list, which may be empty. Ranges ascend with the lanes.
struct lane_list {
  vertex of;
  std::uint64_t begin, end;
  bool is_piece;  // then lane 0 has it, and all lanes its vertex
  bool is_there;  // the vertex is; without its list where that is in pieces
};

GPUFS_DEVICE lane_list piece_of(simt::warp warp, const list_places& places, std::uint64_t i) {
  const piece p = places.pieces[i];
  const std::uint64_t list_end = places.offsets[p.of + 1];
  const std::uint64_t begin = places.offsets[p.of] + p.number * edges_a_piece;
  const std::uint64_t end = begin + edges_a_piece < list_end ? begin + edges_a_piece : list_end;
  return {p.of, warp.leader() ? begin : end, end, true, true};
}
GPUFS_DEVICE lane_list list_in_word(simt::warp warp, const list_places& places, std::uint64_t word) {
  const std::uint64_t v = word * 32 + warp.rank();
  const bool is_there = v < places.nvertices;
  const std::uint64_t begin = places.offsets[is_there ? v : places.nvertices];
  const std::uint64_t end = places.offsets[is_there ? v + 1 : places.nvertices];
  return {static_cast<vertex>(v), end - begin > edges_a_piece ? end : begin, end, false, is_there};
}

// Calls use(list) in all lanes of each warp until all vertices have had their turn: 32 side by side, one for each lane, and pieces.
// wants(w): whether any vertex of word w of a bitmap of vertices is wanted; of pieces nobody is asked. The first error that use
// gives ends the warp's turns, and is given.
template <class Wants, class Use>
GPUFS_DEVICE int each_list(simt::warp warp, const list_places& places, const Wants& wants, const Use& use) {
  constexpr std::uint64_t words_at_once = GPUFS_ON_CUDA ? 8 : 2;
  const std::uint64_t end = places.npieces + (places.nwords() + words_at_once - 1) / words_at_once;
  for (std::uint64_t i = simt::global_warp_rank(); i < end; i += simt::global_warp_count()) {
    const bool is_piece = i < places.npieces;
    const std::uint64_t first = is_piece ? 0 : (i - places.npieces) * words_at_once, w = first + warp.rank();
    std::uint32_t wanted = is_piece ? 1 : warp.ballot(warp.rank() < words_at_once && w < places.nwords() && wants(w));
    for (; wanted != 0; wanted &= wanted - 1) {  // one place that calls: what it calls is large
      const int error = use(is_piece ? piece_of(warp, places, i) : list_in_word(warp, places, first + simt::lowest_lane(wanted)));
      if (error != 0) return error;
    }
  }
  return 0;
}

// 32 edges side by side, one for each lane.
struct edges_of_lanes {
  std::uint64_t first;
  vertex target;        // of edge first + rank
  bool is_there;        // else there is no such edge, or it leads nowhere
  std::uint32_t mine;   // which of them are in this lane's list
  std::uint64_t nread;  // from the first on, of the run that is being read
};

// Where the first lists of `waiting` lanes end that have no gap between them for which reading on would be in vain.
GPUFS_DEVICE std::uint64_t end_of_side_by_side(simt::warp warp, std::uint32_t waiting, std::uint64_t begin, std::uint64_t end) {
  const std::uint32_t below = waiting & ((1u << warp.rank()) - 1);
  const std::uint64_t before = warp.shfl(end, below == 0 ? 0 : simt::highest_lane(below));
  const std::uint32_t gaps = warp.ballot((waiting >> warp.rank() & 1) != 0 && below != 0 && begin >= before + 32);
  const std::uint32_t together = gaps == 0 ? waiting : waiting & ((1u << simt::lowest_lane(gaps)) - 1);
  return warp.broadcast(end, simt::highest_lane(together));
}

GPUFS_DEVICE std::uint64_t target_at(const std::byte* data, std::uint64_t i, unsigned shift) {
  return shift == 3 ? reinterpret_cast<const std::uint64_t*>(data)[i] : reinterpret_cast<const std::uint32_t*>(data)[i];
}

// Reads the lists of lanes from `begin` on, 32 edges at a time: all lanes call look(edges, begin), which is true where the lane
// wants no more of its list. Edges of lists that nobody wants may be among them, in no lane's `mine`. most_ahead: so many edges are
// asked for at once, at most. Ranges ascend with the lanes. 0; -EDOM: a vertex is not there; or why the edges could not be read.
template <class Cursor, class Look>
GPUFS_DEVICE int read_lists(simt::warp warp, Cursor& edges, std::uint64_t nvertices, std::uint64_t begin, std::uint64_t end,
                            std::uint64_t most_ahead, const Look& look) {
  int error = 0;
  for (;;) {
    const std::uint32_t waiting = warp.ballot(begin < end);
    if (waiting == 0) return error;
    const std::uint64_t at = warp.broadcast(begin, simt::lowest_lane(waiting)) / 32 * 32;
    const std::uint64_t left = end_of_side_by_side(warp, waiting, begin, end) - at;
    const auto here = edges.at(warp, at, left < most_ahead ? left : most_ahead);
    if (here.n == 0) return here.error;
    for (std::uint64_t k = 0; k < here.n; k += 32) {
      const std::uint64_t first = at + k, n = here.n - k < 32 ? here.n - k : 32;
      const bool is_read = warp.rank() < n;
      const std::uint64_t target = is_read ? target_at(here.data, k + warp.rank(), edges.shift()) : 0;
      const bool is_there = is_read && target < nvertices;
      std::uint32_t mine = 0;
      if (begin < end && begin < first + n) {
        const std::uint64_t from = begin - first, past = end - first < n ? end - first : n;
        mine = static_cast<std::uint32_t>((std::uint64_t{1} << past) - 1) & ~0u << from;
        begin += past - from;
      }
      if (warp.any(is_read && !is_there)) {
        const std::uint32_t wanted = warp.reduce_add(mine);
        if (warp.any(is_read && !is_there && (wanted >> warp.rank() & 1) != 0)) error = -EDOM;
      }
      if (look(edges_of_lanes{first, static_cast<vertex>(target), is_there, mine, here.n - k})) begin = end;
      if (!warp.any(begin < end && begin < first + n + 32)) break;  // nothing, or far away
    }
  }
}

// Whether any lane wants the caller's edge.
GPUFS_DEVICE bool is_wanted(simt::warp warp, const edges_of_lanes& edges) {
  return (warp.reduce_add(edges.mine) >> warp.rank() & 1) != 0 && edges.is_there;  // no edge is of two lanes
}
// The lane whose list has the caller's edge, if any has: the first one whose list ends behind it.
GPUFS_DEVICE unsigned owner_of(simt::warp warp, const edges_of_lanes& edges, std::uint64_t end) {
  const auto past = static_cast<std::uint32_t>(end <= edges.first ? 0 : end - edges.first < 33 ? end - edges.first : 33);
  unsigned owner = 0;
  for (unsigned step = 16; step != 0; step /= 2) {
    if (warp.shfl(past, owner + step - 1) <= warp.rank()) owner += step;
  }
  return owner;
}

// What a kernel leaves to the host.
struct counts {
  std::uint64_t found, ahead;  // vertices, and the edges of their lists
  std::uint64_t least;
  std::int64_t error;  // of any warp, a negative errno; or 0
};
GPUFS_DEVICE void note_error(simt::warp warp, counts* to, int error) {
  if (error != 0 && warp.leader()) simt::atomic_ref<std::int64_t>(to->error).store(error, std::memory_order_relaxed);
}
GPUFS_DEVICE void add_to(simt::warp warp, std::uint64_t& to, std::uint64_t value) {
  value = warp.reduce_add(value);
  if (warp.leader() && value != 0) simt::atomic_ref<std::uint64_t>(to).add_relaxed(value);
}

// Bitmaps of vertices.
GPUFS_DEVICE bool has_bit(const std::uint32_t* bitmap, vertex v) { return (bitmap[v / 32] >> v % 32 & 1) != 0; }
// Whether it was not set before.
GPUFS_DEVICE bool set_bit(std::uint32_t* bitmap, vertex v) {
  const std::uint32_t bit = 1u << v % 32;
  return (simt::atomic_ref<std::uint32_t>(bitmap[v / 32]).fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
