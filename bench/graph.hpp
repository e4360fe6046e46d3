// SPDX-License-Identifier: Apache-2.0
// An RMAT graph whose edges lie in a file, as those do whose graphs are larger than a GPU's memory: the lists of neighbours of all
// vertices, one behind the other, 4 bytes each. Where each list begins is in the device's memory.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "access.hpp"
#include "apps/graph/generator.hpp"
#include "written.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

using gpufs::apps::graph::vertex;

using graph_edges = gpufs::apps::graph::generator;

GPUFS_DEVICE std::uint64_t global_thread() {
  return std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
}
GPUFS_DEVICE std::uint64_t all_threads() { return std::uint64_t{gpufs::simt::grid_size()} * gpufs::simt::block_size(); }

// Counts each vertex's neighbours; every edge leads both ways.
struct count_neighbours {
  graph_edges edges;
  std::uint64_t nedges;
  std::uint32_t* degrees;

  GPUFS_DEVICE void operator()() const {
    for (std::uint64_t i = global_thread(); i < nedges; i += all_threads()) {
      const auto e = edges(i);
      atomic_ref<std::uint32_t>(degrees[e.from]).add_relaxed(1);
      atomic_ref<std::uint32_t>(degrees[e.to]).add_relaxed(1);
    }
  }
};

// Puts each neighbour into a place of its own in its vertex's list; `places` counts down from the vertex's degree.
struct place_neighbours {
  graph_edges edges;
  std::uint64_t nedges;
  const std::uint64_t* begins;
  std::uint32_t* places;
  vertex* neighbours;

  GPUFS_DEVICE void operator()() const {
    for (std::uint64_t i = global_thread(); i < nedges; i += all_threads()) {
      const auto e = edges(i);
      place(e.from, e.to);
      place(e.to, e.from);
    }
  }
  GPUFS_DEVICE void place(vertex from, vertex to) const {
    const std::uint32_t left = atomic_ref<std::uint32_t>(places[from]).fetch_add(~0u, std::memory_order_relaxed);
    neighbours[begins[from] + left - 1] = to;
  }
};

// A graph that is made on the device; where each vertex's list begins.
class graph {
 public:
  graph(unsigned scale, unsigned edges_a_vertex, const shape& how)
      : nvertices(std::uint64_t{1} << scale),
        nneighbours(2 * edges_a_vertex * nvertices),
        begins(nvertices + 1),
        edges_{{gpufs::apps::graph::synth_kind::kron, scale, 1}},
        how_(how),
        degrees_(nvertices) {
    run(how, count_neighbours{edges_, nneighbours / 2, degrees_.get()});
    begins_here.reserve(nvertices + 1);
    std::uint64_t next = 0;
    for (const std::uint32_t n : degrees_.read()) {
      begins_here.push_back(next);
      next += n;
    }
    begins_here.push_back(next);
    begins.write(begins_here);
  }

  // Writes the lists to a file. Once.
  void write(const std::string& path) const {
    const std::size_t nbytes = nneighbours * sizeof(vertex);
    const device_array<vertex> neighbours(nneighbours);
    run(how_, place_neighbours{edges_, nneighbours / 2, begins.get(), degrees_.get(), neighbours.get()});
    const auto file = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
    if (::ftruncate(file.get(), static_cast<off_t>(nbytes)) != 0) throw gpufs::error("cannot write " + path);
    void* const at = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (at == MAP_FAILED) throw gpufs::error("cannot map " + path);
    gpufs::simt::this_platform().copy_from_device(at, neighbours.get(), nbytes);
    ::munmap(at, nbytes);
  }

  // A vertex with neighbours.
  vertex root() const {
    vertex v = 0;
    while (begins_here[v] == begins_here[v + 1]) ++v;
    return v;
  }

  std::uint64_t nvertices, nneighbours;
  std::vector<std::uint64_t> begins_here;  // nvertices + 1
  device_array<std::uint64_t> begins;

 private:
  graph_edges edges_;
  shape how_;
  device_array<std::uint32_t> degrees_;
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
