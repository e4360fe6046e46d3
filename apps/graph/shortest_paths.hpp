// SPDX-License-Identifier: Apache-2.0
// Lengths of the shortest paths from a vertex, on a device, by delta-stepping: Meyer and Sanders, "Delta-stepping: a parallelizable
// shortest path algorithm", Journal of Algorithms 2003; as in GAP, edges are not told apart by their weights. A bucket is no list:
// what waits is a bitmap, of which each round takes the vertices nearer than the bucket's end.
#pragma once
#include "apps/graph/device_graph.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

// Takes those that are nearer than `limit` out of `waiting`, one warp a word; of_round: how many, and the least length of the rest.
struct take_bucket {
  std::uint64_t nvertices;
  const std::uint64_t* lengths;
  std::uint64_t limit;
  std::uint32_t* waiting;
  std::uint32_t* taken;
  const std::uint64_t* offsets;
  counts* of_round;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    std::uint64_t found = 0, ahead = 0, least = no_path;
    for (std::uint64_t w = simt::global_warp_rank(); w < (nvertices + 31) / 32; w += simt::global_warp_count()) {
      const std::uint32_t all = warp.broadcast(waiting[w]);
      if (all == 0) {
        if (warp.leader()) taken[w] = 0;
        continue;
      }
      const std::uint64_t v = w * 32 + warp.rank();
      const bool waits = (all >> warp.rank() & 1) != 0;
      const std::uint64_t length = waits ? lengths[v] : no_path;
      const bool is_near = waits && length < limit;
      const std::uint32_t near_ones = warp.ballot(is_near);
      if (warp.leader()) {
        taken[w] = near_ones;
        waiting[w] = all & ~near_ones;
      }
      if (is_near) {
        ++found;
        ahead += offsets[v + 1] - offsets[v];
      } else if (length < least) {
        least = length;
      }
    }
    least = warp.reduce_min(least);
    add_to(warp, of_round->found, found);
    add_to(warp, of_round->ahead, ahead);
    if (warp.leader()) simt::atomic_ref<std::uint64_t>(of_round->least).fetch_min(least, std::memory_order_relaxed);
  }
};

template <class Edges>
struct relax {
  list_places places;
  Edges edges;
  Edges weights;
  std::uint64_t* lengths;
  const std::uint32_t* taken;
  std::uint32_t* waiting;
  counts* of_round;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    typename Edges::cursor cursor(edges);
    typename Edges::cursor weight_cursor(weights);
    const int error = each_list(
        warp, places, [&](std::uint64_t w) { return taken[w] != 0; },
        [&](const lane_list& list) {
          const bool wants = list.is_there && has_bit(taken, list.of);
          const std::uint64_t length = wants ? simt::atomic_ref<std::uint64_t>(lengths[list.of]).load_relaxed() : std::uint64_t{0};
          run of{nullptr, 0, 0};  // the weights of the edges from of_first on
          std::uint64_t of_first = 0;
          int weight_error = 0;
          const int got = read_lists(
              warp, cursor, places.nvertices, wants ? list.begin : list.end, list.end, all_of_a_list,
              [&](const edges_of_lanes& now) {
                if (now.first < of_first || now.first + 32 > of_first + of.n) {
                  of = weight_cursor.at(warp, now.first, now.nread);
                  of_first = now.first;
                  if (of.n == 0) weight_error = of.error;
                }
                const bool is_mine = is_wanted(warp, now) && warp.rank() < of.n - (now.first - of_first);
                const std::uint64_t from = warp.shfl(length, owner_of(warp, now, list.end));
                if (is_mine) {
                  const std::uint64_t sum = from + reinterpret_cast<const weight*>(of.data)[now.first - of_first + warp.rank()];
                  const simt::atomic_ref<std::uint64_t> of_target(lengths[now.target]);
                  if (sum < of_target.load_relaxed() && sum < of_target.fetch_min(sum, std::memory_order_relaxed)) {
                    set_bit(waiting, now.target);
                  }
                }
                return weight_error != 0;
              });
          return got != 0 ? got : weight_error;
        });
    cursor.leave(warp);
    weight_cursor.leave(warp);
    note_error(warp, of_round, error);
  }
};

template <class EdgesOf>
class paths_on_device {
 public:
  paths_on_device(const device_graph& graph, EdgesOf& edges, simt::platform& device)
      : graph_(graph),
        edges_(edges),
        lengths_(graph.nvertices(), device),
        waiting_(graph.nwords(), device),
        taken_(graph.nwords(), device),
        counts_(1, device) {}

  // Leaves lengths on the device; the number of rounds. delta: of a bucket, 1 at least. Throws read_failure, and what `told`
  // throws.
  std::uint64_t run(vertex source, std::uint64_t delta, const round_function& told) {
    fill(graph_.most_blocks(), lengths_, no_path);
    clear(waiting_);
    lengths_.write_one(0, source);
    waiting_.write_one(1u << source % 32, source / 32);
    std::uint64_t limit = delta;
    for (std::uint64_t nrounds = 0;;) {
      counts_.write_one({0, 0, no_path, 0});
      run_on_device(graph_.most_blocks(), take_bucket{graph_.nvertices(), lengths_.get(), limit, waiting_.get(), taken_.get(),
                                                      graph_.places(direction::out).offsets, counts_.get()});
      const counts got = checked(counts_);
      if (got.found == 0) {
        if (got.least == no_path) return nrounds;
        limit = got.least > no_path - delta ? no_path : (got.least / delta + 1) * delta;
        continue;
      }
      const share wanted = got.ahead > graph_.nedges() / 8 ? share::most : share::few;
      by_share(edges_.expect(wanted), [&]<share Share>() { relax_by<Share>(); });
      checked(counts_);
      told(++nrounds, 0);
    }
  }
  const array<std::uint64_t>& lengths() const { return lengths_; }

 private:
  template <share Share>
  void relax_by() {
    const auto targets = edges_.template targets<Share>(direction::out);
    const auto weights = edges_.template weights<Share>();
    run_on_device(graph_.most_blocks(),
                  relax<std::remove_cv_t<decltype(targets)>>{graph_.places(direction::out), targets, weights, lengths_.get(),
                                                             taken_.get(), waiting_.get(), counts_.get()});
  }

  const device_graph& graph_;
  EdgesOf& edges_;
  array<std::uint64_t> lengths_;
  array<std::uint32_t> waiting_, taken_;
  array<counts> counts_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
