// SPDX-License-Identifier: Apache-2.0
// PageRank on a device, each vertex adding up what its neighbours give (pull), as GAP's pr.cc: without what vertices that lead
// nowhere would give. Scores are whole numbers (results.hpp), so a list's parts may be added in any order.
#pragma once
#include "apps/graph/device_graph.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

struct first_shares {
  std::uint64_t* scores;
  float* shares;
  const std::uint64_t* offsets;
  std::uint64_t first;
  GPUFS_DEVICE void operator()(std::uint64_t v) const {
    scores[v] = first;
    shares[v] = score_rules::share_of(first, offsets[v + 1] - offsets[v]);
  }
};

template <class Edges>
struct add_up_shares {
  list_places places;  // of who leads to vertices
  Edges edges;
  const float* shares;
  std::uint64_t* sums;  // zeros
  counts* of_round;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    typename Edges::cursor cursor(edges);
    const int error = each_list(
        warp, places, [](std::uint64_t) { return true; },
        [&](const lane_list& list) {
          std::uint64_t sum = 0;
          const int got =
              read_lists(warp, cursor, places.nvertices, list.begin, list.end, all_of_a_list, [&](const edges_of_lanes& now) {
                const std::uint64_t up_to_here =
                    warp.inclusive_scan_add(now.is_there ? score_rules::taken(shares[now.target]) : std::uint64_t{0});
                const bool has_any = now.mine != 0;
                const unsigned first = has_any ? simt::lowest_lane(now.mine) : 0, last = has_any ? simt::highest_lane(now.mine) : 0;
                const std::uint64_t before = warp.shfl(up_to_here, first == 0 ? 0 : first - 1), all = warp.shfl(up_to_here, last);
                if (has_any) sum += all - (first == 0 ? 0 : before);
                return false;
              });
          if (!list.is_piece && list.is_there && list.begin < list.end) {
            sums[list.of] = sum;
          } else if (sum != 0) {
            simt::atomic_ref<std::uint64_t>(sums[list.of]).add_relaxed(sum);
          }
          return got;
        });
    cursor.leave(warp);
    note_error(warp, of_round, error);
  }
};

struct take_sums {
  score_rules rules;
  std::uint64_t nvertices;
  std::uint64_t* scores;
  float* shares;
  const std::uint64_t* sums;
  const std::uint64_t* offsets;
  counts* of_round;  // found: the change

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t step = std::uint64_t{simt::grid_size()} * simt::block_size();
    std::uint64_t change = 0;
    for (std::uint64_t v = std::uint64_t{simt::block_rank()} * simt::block_size() + simt::thread_rank(); v < nvertices; v += step) {
      const std::uint64_t was = scores[v], now = rules.score_of(sums[v]);
      scores[v] = now;
      shares[v] = score_rules::share_of(now, offsets[v + 1] - offsets[v]);
      change += now > was ? now - was : was - now;
    }
    add_to(this_warp(), of_round->found, change);
  }
};
struct score_as_float {
  const std::uint64_t* scores;
  float* to;
  GPUFS_DEVICE void operator()(std::uint64_t v) const { to[v] = static_cast<float>(scores[v]) * 0x1p-62f; }
};

template <class EdgesOf>
class pagerank_on_device {
 public:
  pagerank_on_device(const device_graph& graph, EdgesOf& edges, simt::platform& device)
      : graph_(graph),
        edges_(edges),
        scores_(graph.nvertices(), device),
        sums_(graph.nvertices(), device),
        shares_(graph.nvertices(), device),
        counts_(1, device) {}

  // Leaves scores on the device; the number of rounds. Throws read_failure, and what `told` throws.
  std::uint64_t run(const pagerank_options& how, const round_function& told) {
    const std::uint64_t n = graph_.nvertices();
    if (n == 0) return 0;
    const score_rules rules = score_rules::of(how.damping, n);
    const std::uint64_t* const offsets = graph_.places(direction::out).offsets;
    run_on_device(graph_.most_blocks(), each_vertex<first_shares>{n, {scores_.get(), shares_.get(), offsets, score_one / n}});
    edges_.expect(share::most);
    const auto from = edges_.template targets<share::most>(direction::in);
    for (std::uint64_t nrounds = 1;; ++nrounds) {
      clear(sums_);
      counts_.write_one({});
      run_on_device(graph_.most_blocks(), add_up_shares<std::remove_cv_t<decltype(from)>>{
                                              graph_.places(direction::in), from, shares_.get(), sums_.get(), counts_.get()});
      run_on_device(graph_.most_blocks(), take_sums{rules, n, scores_.get(), shares_.get(), sums_.get(), offsets, counts_.get()});
      change_ = static_cast<double>(checked(counts_).found) * 0x1p-62;
      told(nrounds, how.most_rounds);
      if (change_ < how.tolerance || nrounds >= how.most_rounds) break;
      nrounds_ = nrounds + 1;
    }
    run_on_device(graph_.most_blocks(), each_vertex<score_as_float>{n, {scores_.get(), shares_.get()}});
    return nrounds_;
  }
  const array<float>& scores() const { return shares_; }
  double change() const { return change_; }  // in the last round

 private:
  const device_graph& graph_;
  EdgesOf& edges_;
  array<std::uint64_t> scores_, sums_;
  array<float> shares_;
  array<counts> counts_;
  double change_ = 0;
  std::uint64_t nrounds_ = 1;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
