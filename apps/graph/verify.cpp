// SPDX-License-Identifier: Apache-2.0
#include "apps/graph/verify.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "apps/bus_guard.hpp"

namespace gpufs::apps::graph {
namespace {

// Lists, read one at a time. Reads of the mapping are guarded each, since what uses them owns memory.
class list_reader {
 public:
  list_reader(const graph_file& graph, direction of) : graph_(graph), of_(of), offsets_(graph.read_offsets(of)) { graph.map(); }

  const std::vector<vertex>& targets(vertex v) {
    const std::uint64_t begin = offsets_[v], n = offsets_[v + 1] - begin;
    targets_.resize(n);
    const std::byte* const from = graph_.map() + graph_.targets_at(of_);
    const bool is_wide = graph_.head().target_nbytes == 8;
    bool is_good = true;
    const bool is_whole = bus_guarded([&] {
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t target = is_wide ? reinterpret_cast<const std::uint64_t*>(from)[begin + i]
                                             : reinterpret_cast<const std::uint32_t*>(from)[begin + i];
        is_good = is_good && target < graph_.nvertices();
        targets_[i] = static_cast<vertex>(target);
      }
    });
    if (!is_whole) graph_.fail_changed();
    if (!is_good) graph_.fail_target();
    return targets_;
  }
  const std::vector<weight>& weights(vertex v) {
    const std::uint64_t begin = offsets_[v];
    weights_.resize(offsets_[v + 1] - begin);
    const auto* const from = reinterpret_cast<const weight*>(graph_.map() + graph_.weights_at()) + begin;
    if (!bus_guarded([&] { std::copy(from, from + weights_.size(), weights_.begin()); })) graph_.fail_changed();
    return weights_;
  }
  std::uint64_t size(vertex v) const { return offsets_[v + 1] - offsets_[v]; }

 private:
  const graph_file& graph_;
  direction of_;
  std::vector<std::uint64_t> offsets_;
  std::vector<vertex> targets_;
  std::vector<weight> weights_;
};

template <class T>
std::string first_difference(std::span<const T> got, const std::vector<T>& wanted, const char* what, T none) {
  const auto text = [&](T value) {
    return value == none ? std::string("not reached") : std::string(what) + " " + std::to_string(value);
  };
  if (got.size() != wanted.size())
    return "there are " + std::to_string(got.size()) + " values for " + std::to_string(wanted.size()) + " vertices";
  for (std::size_t v = 0; v < wanted.size(); ++v) {
    if (got[v] != wanted[v]) return "vertex " + std::to_string(v) + " is " + text(got[v]) + ", and should be " + text(wanted[v]);
  }
  return {};
}

}  // namespace

std::string wrong_in_bfs(const graph_file& graph, vertex source, std::span<const std::uint32_t> depths) {
  std::vector<std::uint32_t> wanted(graph.nvertices(), not_reached);
  list_reader lists(graph, direction::out);
  std::vector<vertex> queue{source};
  wanted[source] = 0;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const vertex v = queue[i];
    for (const vertex target : lists.targets(v)) {
      if (wanted[target] != not_reached) continue;
      wanted[target] = wanted[v] + 1;
      queue.push_back(target);
    }
  }
  return first_difference(depths, wanted, "at depth", not_reached);
}

std::string wrong_in_components(const graph_file& graph, std::span<const vertex> components) {
  std::vector<vertex> wanted(graph.nvertices(), not_reached), queue;
  list_reader out(graph, direction::out), in(graph, direction::in);
  for (std::uint64_t first = 0; first < wanted.size(); ++first) {
    if (wanted[first] != not_reached) continue;
    const auto label = static_cast<vertex>(first);
    queue.assign(1, label);
    wanted[first] = label;
    while (!queue.empty()) {
      const vertex v = queue.back();
      queue.pop_back();
      for (list_reader* const lists : {&out, &in}) {
        for (const vertex target : lists->targets(v)) {
          if (wanted[target] != not_reached) continue;
          wanted[target] = label;
          queue.push_back(target);
        }
        if (!graph.is_directed()) break;
      }
    }
  }
  return first_difference(components, wanted, "in component", not_reached);
}

std::string wrong_in_pagerank(const graph_file& graph, const pagerank_options& how, std::span<const float> scores) {
  const std::uint64_t n = graph.nvertices();
  if (scores.size() != n) return "there are " + std::to_string(scores.size()) + " scores for " + std::to_string(n) + " vertices";
  list_reader lists(graph, direction::out);
  std::vector<double> next(n, (1 - how.damping) / static_cast<double>(n == 0 ? 1 : n));
  for (std::uint64_t v = 0; v < n; ++v) {
    const double share = how.damping * static_cast<double>(scores[v]) / static_cast<double>(lists.size(static_cast<vertex>(v)));
    for (const vertex target : lists.targets(static_cast<vertex>(v))) next[target] += share;
  }
  constexpr double rounding = 1e-6;  // of 24 bits a score
  double change = 0;
  for (std::uint64_t v = 0; v < n; ++v) change += std::abs(next[v] - static_cast<double>(scores[v]));
  if (change < how.tolerance + rounding) return {};
  return "one more round changes the scores by " + std::to_string(change) + " in all, and " + std::to_string(how.tolerance) +
         " is allowed";
}

std::string wrong_in_paths(const graph_file& graph, vertex source, std::span<const std::uint64_t> lengths) {
  std::vector<std::uint64_t> wanted(graph.nvertices(), no_path);
  list_reader lists(graph, direction::out);
  using place = std::pair<std::uint64_t, vertex>;
  std::priority_queue<place, std::vector<place>, std::greater<>> queue;
  queue.emplace(0, source);
  wanted[source] = 0;
  while (!queue.empty()) {
    const auto [length, v] = queue.top();
    queue.pop();
    if (length != wanted[v]) continue;
    const std::vector<vertex>& targets = lists.targets(v);
    const std::vector<weight>& weights = lists.weights(v);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (length + weights[i] >= wanted[targets[i]]) continue;
      wanted[targets[i]] = length + weights[i];
      queue.emplace(wanted[targets[i]], targets[i]);
    }
  }
  return first_difference(lengths, wanted, "at length", no_path);
}

}  // namespace gpufs::apps::graph
