// SPDX-License-Identifier: Apache-2.0
// Breadth-first search on a device, from the frontier (push) or from the vertices that are not reached (pull): Beamer, Asanovic and
// Patterson, "Direction-optimizing breadth-first search", SC 2012. Frontiers are bitmaps, so lists are read in ascending order.
#pragma once
#include "apps/graph/device_graph.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

struct bfs_state {
  std::uint32_t* depths;
  std::uint32_t depth;            // of what is found
  const std::uint32_t* frontier;  // bitmaps
  std::uint32_t* next;
  counts* of_round;
};

template <class Edges>
struct bfs_push {
  list_places places;
  Edges edges;
  bfs_state s;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    typename Edges::cursor cursor(edges);
    std::uint64_t found = 0, ahead = 0;
    const int error = each_list(
        warp, places, [&](std::uint64_t w) { return s.frontier[w] != 0; },
        [&](const lane_list& list) {
          const bool wants = list.is_there && has_bit(s.frontier, list.of);
          return read_lists(warp, cursor, places.nvertices, wants ? list.begin : list.end, list.end, all_of_a_list,
                            [&](const edges_of_lanes& now) {
                              if (!is_wanted(warp, now)) return false;
                              const simt::atomic_ref<std::uint32_t> depth(s.depths[now.target]);
                              if (depth.load_relaxed() != not_reached) return false;
                              depth.store(s.depth, std::memory_order_relaxed);  // as all do that see it now
                              if (set_bit(s.next, now.target)) {
                                ++found;
                                ahead += places.nneighbours(now.target);
                              }
                              return false;
                            });
        });
    cursor.leave(warp);
    add_to(warp, s.of_round->found, found);
    add_to(warp, s.of_round->ahead, ahead);
    note_error(warp, s.of_round, error);
  }
};

template <class Edges>
struct bfs_pull {
  list_places places;            // of who leads to vertices
  const std::uint64_t* offsets;  // of where they lead
  Edges edges;
  bfs_state s;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    typename Edges::cursor cursor(edges);
    std::uint64_t found = 0, ahead = 0;
    const int error = each_list(
        warp, places, [](std::uint64_t) { return true; },
        [&](const lane_list& list) {
          const simt::atomic_ref<std::uint32_t> depth(s.depths[list.is_there ? list.of : 0]);
          bool is_found = false;
          const bool wants = list.is_there && depth.load_relaxed() == not_reached;
          const int got = read_lists(warp, cursor, places.nvertices, wants ? list.begin : list.end, list.end, most_ahead,
                                     [&](const edges_of_lanes& now) {
                                       const bool leads_here = now.is_there && has_bit(s.frontier, now.target);
                                       const std::uint32_t leading = warp.ballot(leads_here);
                                       is_found = is_found || (leading & now.mine) != 0;
                                       return is_found;
                                     });
          if (is_found) {
            depth.store(s.depth, std::memory_order_relaxed);
            if (set_bit(s.next, list.of)) {  // another piece of its list may have found it
              ++found;
              ahead += offsets[list.of + 1] - offsets[list.of];
            }
          }
          return got;
        });
    cursor.leave(warp);
    add_to(warp, s.of_round->found, found);
    add_to(warp, s.of_round->ahead, ahead);
    note_error(warp, s.of_round, error);
  }

  static constexpr std::uint64_t most_ahead = 128;  // a list is left where it leads to the frontier
};

template <class EdgesOf>
class bfs_on_device {
 public:
  bfs_on_device(const device_graph& graph, EdgesOf& edges, simt::platform& device)
      : graph_(graph),
        edges_(edges),
        depths_(graph.nvertices(), device),
        bitmaps_{array<std::uint32_t>(graph.nwords(), device), array<std::uint32_t>(graph.nwords(), device)},
        counts_(1, device) {}

  // Leaves depths on the device; the number of rounds. source: a vertex. Throws read_failure, and what `told` throws.
  std::uint64_t run(vertex source, const round_function& told) {
    fill(graph_.most_blocks(), depths_, not_reached);
    clear(bitmaps_[0]);
    depths_.write_one(0, source);
    bitmaps_[0].write_one(1u << source % 32, source / 32);
    nreached_ = 1;
    depth_ = 0;
    ahead_ = graph_.nneighbours(source);
    left_ = graph_.nedges() - ahead_;
    std::uint64_t nfrontier = 1;
    bool pulls = false, grows = true;
    while (nfrontier != 0) {
      // As GAP decides: pull while the frontier has more edges than a fifteenth of those that nobody has looked at, until it
      // shrinks below an eighteenth of the vertices.
      pulls = pulls ? grows || nfrontier > graph_.nvertices() / 18 : ahead_ > left_ / 15;
      const std::uint64_t found = round(pulls);
      grows = found >= nfrontier;
      nfrontier = found;
      nreached_ += found;
      told(nreached_, graph_.nvertices());
    }
    return depth_;
  }
  const array<std::uint32_t>& depths() const { return depths_; }
  std::uint64_t nreached() const { return nreached_; }

 private:
  std::uint64_t round(bool pulls) {
    ++depth_;
    const array<std::uint32_t>&frontier = bitmaps_[(depth_ - 1) % 2], &next = bitmaps_[depth_ % 2];
    clear(next);
    counts_.write_one({});
    const bfs_state state{depths_.get(), depth_, frontier.get(), next.get(), counts_.get()};
    const bool most = pulls ? left_ > graph_.nedges() / 2 : ahead_ > graph_.nedges() / 8;
    by_share(edges_.expect(most ? share::most : share::few), [&]<share Share>() { run_by<Share>(pulls, state); });
    const counts got = checked(counts_);
    ahead_ = got.ahead;
    left_ -= std::min(left_, ahead_);
    return got.found;
  }
  template <share Share>
  void run_by(bool pulls, const bfs_state& state) {
    if (pulls) {
      const auto from = edges_.template targets<Share>(direction::in);
      run_on_device(graph_.most_blocks(), bfs_pull<std::remove_cv_t<decltype(from)>>{
                                              graph_.places(direction::in), graph_.places(direction::out).offsets, from, state});
    } else {
      const auto from = edges_.template targets<Share>(direction::out);
      run_on_device(graph_.most_blocks(), bfs_push<std::remove_cv_t<decltype(from)>>{graph_.places(direction::out), from, state});
    }
  }

  const device_graph& graph_;
  EdgesOf& edges_;
  array<std::uint32_t> depths_, bitmaps_[2];
  array<counts> counts_;
  std::uint32_t depth_ = 0;
  std::uint64_t nreached_ = 0;
  std::uint64_t ahead_ = 0;  // edges of the frontier
  std::uint64_t left_ = 0;   // edges of vertices that are not reached
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
