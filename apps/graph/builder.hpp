// SPDX-License-Identifier: Apache-2.0
// Graphs' files, made of edges in any order. Host code.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/graph/generator.hpp"
#include "apps/graph/graph_file.hpp"
#include "apps/progress.hpp"

namespace gpufs::apps::graph {

struct weighted_edge {
  vertex from, to;
  weight of;
};

// The edges of a graph to be; they are read several times, and are the same each time.
class edge_source {
 public:
  virtual ~edge_source() = default;
  virtual std::uint64_t nvertices() const = 0;  // all vertices are below
  virtual bool has_weights() const = 0;
  virtual std::uint64_t nparts() const = 0;
  // Appends the edges of a part. Several threads call, each with a vector of its own. Throws gpufs::error.
  virtual void read_part(std::uint64_t part, std::vector<weighted_edge>& to) const = 0;
};

// Of a generator: n edges.
std::unique_ptr<edge_source> make_synthetic_edges(const synth_options& of, std::uint64_t n, bool weights);

// The steps of a build that go through all edges; an engine may do them in its own way. One thread calls.
class list_builder {
 public:
  virtual ~list_builder() = default;
  // Adds to counts[v] how many entries the list of each vertex v gets: of each edge that does not lead from a vertex to itself one
  // in its direction, and with `both` one back. done: of the edges.
  virtual void count(std::span<std::uint64_t> counts, direction of, bool both, const progress_function& progress) = 0;
  // The entries of the vertices from `first` on, of whose lists the first one begins at 0 and each next one at begins[i]; the last
  // element is the end of all. An entry is the target; with weights, the target in the upper half of 64 bits, and the weight. In
  // any order within a list.
  virtual void place(vertex first, std::span<const std::uint64_t> begins, direction of, bool both, std::uint32_t* entries,
                     const progress_function& progress) = 0;
  virtual void place(vertex first, std::span<const std::uint64_t> begins, direction of, bool both, std::uint64_t* entries,
                     const progress_function& progress) = 0;
};
std::unique_ptr<list_builder> make_list_builder_cpu(const edge_source& edges, unsigned nthreads);
// Of a generator, by kernels on the CPU machine, and on a GPU. Its edges are those of make_synthetic_edges.
std::unique_ptr<list_builder> make_list_builder_simt(const synth_options& of, std::uint64_t n, int device);
std::unique_ptr<list_builder> make_list_builder_cuda(const synth_options& of, std::uint64_t n, int device);

struct build_options {
  bool directed = false;
  bool wide_targets = false;  // of 8 bytes
  bool weights = false;
  std::uint64_t memory_nbytes = 0;  // for lists that are made at once; 0: half of what is available
  unsigned nthreads = 0;
  std::string made_by{};
};

struct build_report {
  std::uint64_t nvertices, nedges, ndropped;  // entries; dropped: those that were there already
  std::uint64_t nranges;                      // how often the edges were gone through
  std::uint64_t file_nbytes;
};

// stage: what is done, in words, of which `done` of `total` are done.
using stage_function = std::function<void(const char* stage, std::uint64_t done, std::uint64_t total)>;

// Writes a graph of nvertices vertices to `path`, whole or not at all: edges from a vertex to itself are left out, of those that
// come more than once the one of the least weight stays, and each list ascends, as in GAP's builder. The lists are made in ranges
// of vertices that fit into memory. Throws gpufs::error; `stage` may throw.
build_report build_graph(const std::string& path, std::uint64_t nvertices, list_builder& lists, const build_options& options,
                         const stage_function& stage);

}  // namespace gpufs::apps::graph
