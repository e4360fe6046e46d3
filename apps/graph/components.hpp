// SPDX-License-Identifier: Apache-2.0
// Connected components on a device by Afforest: Sutton, Ben-Nun and Barak, "Optimizing parallel graph connectivity computation via
// subgraph sampling", IPDPS 2018. The first neighbours of each vertex are linked; of the rest, only lists of vertices outside of
// the component that is the largest by then. Of directed graphs the components are the weak ones.
#pragma once
#include <unordered_map>

#include "apps/graph/device_graph.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t neighbours_sampled = 2, vertices_sampled = 1024;

// Makes the trees of two vertices one: the higher root hangs below the lower one.
GPUFS_DEVICE void link(vertex* parents, vertex a, vertex b) {
  const auto parent = [&](vertex v) { return simt::atomic_ref<vertex>(parents[v]); };
  vertex x = parent(a).load_relaxed(), y = parent(b).load_relaxed();
  while (x != y) {
    const vertex high = x > y ? x : y, low = x > y ? y : x;
    vertex above = high;
    if (parent(high).compare_exchange(above, low, std::memory_order_relaxed) || above == low) return;
    x = parent(above).load_relaxed();
    y = parent(low).load_relaxed();
  }
}

struct parent_is_itself {
  vertex* parents;
  GPUFS_DEVICE void operator()(std::uint64_t v) const { parents[v] = static_cast<vertex>(v); }
};
struct hang_below_root {
  vertex* parents;
  GPUFS_DEVICE void operator()(std::uint64_t v) const {
    const simt::atomic_ref<vertex> mine(parents[v]);
    vertex root = mine.load_relaxed();
    for (;;) {
      const vertex above = simt::atomic_ref<vertex>(parents[root]).load_relaxed();
      if (above == root) break;
      root = above;
    }
    mine.store(root, std::memory_order_relaxed);
  }
};
struct sample_parents {
  const vertex* parents;
  std::uint64_t nvertices;
  vertex* sample;
  GPUFS_DEVICE void operator()(std::uint64_t i) const {
    __extension__ using wide = unsigned __int128;
    const std::uint64_t word = (i + 1) * 0x9e3779b97f4a7c15u;
    sample[i] = parents[static_cast<std::uint64_t>(static_cast<wide>(word) * nvertices >> 64)];
  }
};

// Links vertices with neighbours `first` to `end` of their lists, where a vertex is not in component `but`.
template <class Edges>
struct link_neighbours {
  list_places places;
  Edges edges;
  vertex* parents;
  std::uint64_t first, end;
  vertex but;  // not_reached: none
  counts* of_round;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    typename Edges::cursor cursor(edges);
    const int error = each_list(
        warp, places, [](std::uint64_t) { return true; },
        [&](const lane_list& list) {
          const bool wants =
              list.is_there && (but == not_reached || simt::atomic_ref<vertex>(parents[list.of]).load_relaxed() != but);
          const std::uint64_t list_begin = places.offsets[list.is_there ? list.of : places.nvertices];
          std::uint64_t from = list_begin + first > list.begin ? list_begin + first : list.begin;
          std::uint64_t past = end < list.end - list_begin ? list_begin + end : list.end;
          if (!wants || from >= past || list.begin >= list.end) from = past = list.end;  // the lanes' ends ascend
          return read_lists(warp, cursor, places.nvertices, from, past, all_of_a_list, [&](const edges_of_lanes& now) {
            const bool is_mine = is_wanted(warp, now);
            const vertex owner = warp.shfl(list.of, owner_of(warp, now, past));
            if (is_mine) link(parents, owner, now.target);
            return false;
          });
        });
    cursor.leave(warp);
    note_error(warp, of_round, error);
  }
};

template <class EdgesOf>
class components_on_device {
 public:
  components_on_device(const device_graph& graph, EdgesOf& edges, simt::platform& device)
      : graph_(graph), edges_(edges), parents_(graph.nvertices(), device), sample_(vertices_sampled, device), counts_(1, device) {}

  // Leaves components on the device; the number of rounds. Throws read_failure, and what `told` throws.
  std::uint64_t run(const round_function& told) {
    const std::uint64_t n = graph_.nvertices(), nrounds = graph_.is_directed() ? 3 : 2;
    if (n == 0) return 0;
    counts_.write_one({});
    run_on_device(graph_.most_blocks(), each_vertex<parent_is_itself>{n, {parents_.get()}});
    link_by(direction::out, 0, neighbours_sampled, not_reached);
    told(1, nrounds);
    const vertex largest = most_frequent();
    link_by(direction::out, neighbours_sampled, all_of_a_list, largest);
    if (graph_.is_directed()) {
      told(2, nrounds);
      link_by(direction::in, 0, all_of_a_list, largest);
    }
    told(nrounds, nrounds);
    return nrounds;
  }
  const array<vertex>& components() const { return parents_; }

 private:
  void link_by(direction of, std::uint64_t first, std::uint64_t end, vertex but) {
    by_share(edges_.expect(share::few), [&]<share Share>() { link_lists<Share>(of, first, end, but); });
    checked(counts_);
    run_on_device(graph_.most_blocks(), each_vertex<hang_below_root>{graph_.nvertices(), {parents_.get()}});
  }
  template <share Share>
  void link_lists(direction of, std::uint64_t first, std::uint64_t end, vertex but) const {
    const auto from = edges_.template targets<Share>(of);
    run_on_device(graph_.most_blocks(), link_neighbours<std::remove_cv_t<decltype(from)>>{graph_.places(of), from, parents_.get(),
                                                                                          first, end, but, counts_.get()});
  }
  vertex most_frequent() {
    run_on_device(1, each_vertex<sample_parents>{vertices_sampled, {parents_.get(), graph_.nvertices(), sample_.get()}});
    std::unordered_map<vertex, unsigned> times;
    vertex best = 0;
    for (const vertex v : sample_.read()) {
      if (++times[v] > times[best]) best = v;
    }
    return best;
  }

  const device_graph& graph_;
  EdgesOf& edges_;
  array<vertex> parents_, sample_;
  array<counts> counts_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
