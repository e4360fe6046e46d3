// SPDX-License-Identifier: Apache-2.0
// Whether results are right, found by one thread and other algorithms, as GAP's verifiers do. Host code.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "apps/graph/graph_file.hpp"
#include "apps/graph/results.hpp"

namespace gpufs::apps::graph {

// Each gives what is wrong in a line, or nothing. Throws gpufs::error where the graph is cut or damaged.

// By a search with a queue.
std::string wrong_in_bfs(const graph_file& graph, vertex source, std::span<const std::uint32_t> depths);
// By searches from the least vertices; each component has the number of its least one.
std::string wrong_in_components(const graph_file& graph, std::span<const vertex> components);
// One more round, by real numbers, changes scores by less than the tolerance in all.
std::string wrong_in_pagerank(const graph_file& graph, const pagerank_options& how, std::span<const float> scores);
// By Dijkstra's algorithm.
std::string wrong_in_paths(const graph_file& graph, vertex source, std::span<const std::uint64_t> lengths);

}  // namespace gpufs::apps::graph
