// SPDX-License-Identifier: Apache-2.0
// The algorithms on a graph's file: the inside of `gpufs graph bfs|cc|pagerank|sssp`. All engines find the same, to the bit.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "apps/graph/graph_file.hpp"
#include "apps/graph/results.hpp"
#include "apps/progress.hpp"

namespace gpufs::apps::graph {

struct engine_options {
  unsigned nthreads = 0;           // cpu; 0: one for each core
  std::uint64_t cache_nbytes = 0;  // gpu, simt: of the page cache; 0: the mount's default
  std::uint32_t page_nbytes = 4096;
  int device = 0;
};

// Opens the graph once. One thread calls. Each call throws gpufs::error, whose text has the path: the file was cut or damaged, or
// cannot be read; progress may throw.
class engine {
 public:
  virtual ~engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  // source: a vertex of the graph.
  virtual bfs_result bfs(vertex source, const progress_function& progress) = 0;
  virtual components_result components(const progress_function& progress) = 0;
  virtual pagerank_result pagerank(const pagerank_options& how, const progress_function& progress) = 0;
  // Of a graph with weights. delta: how long a bucket is, 1 at least.
  virtual paths_result shortest_paths(vertex source, std::uint64_t delta, const progress_function& progress) = 0;

 protected:
  engine() = default;
};

// The graph must stay.
std::unique_ptr<engine> make_engine_cpu(const graph_file& graph, const engine_options& options);
std::unique_ptr<engine> make_engine_simt(const graph_file& graph, const engine_options& options);
std::unique_ptr<engine> make_engine_cuda(const graph_file& graph, const engine_options& options);

// Counts what vectors say.
void count_reached(bfs_result& result);
void count_components(components_result& result);
void count_reached(paths_result& result);

}  // namespace gpufs::apps::graph
