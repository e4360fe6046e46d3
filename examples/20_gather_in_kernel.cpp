// SPDX-License-Identifier: Apache-2.0
// A kernel that finds out itself which rows it wants: each block goes through a graph in a file, from a node of its own, step by
// step. The rows of one step name those of the next.
#include "gpufs/par/gather.hpp"

#include "example.hpp"

constexpr std::uint64_t nnodes = 4000, degree = 8;
constexpr unsigned nsteps = 3, nblocks = 6;
constexpr std::uint64_t most = degree * degree * degree;  // nodes of the last step

struct walk {
  gpufs::file graph;
  std::int32_t* nodes;       // of each block: `most` of this step, and as many of the next
  std::int32_t* neighbours;  // of each block: a row for each of them
  std::uint64_t* sums;
  int* errors;

  GPUFS_DEVICE void operator()() const {
    const auto block = gpufs::this_block();
    const std::uint32_t me = gpufs::simt::block_rank();
    std::int32_t* const here = nodes + me * most;
    std::int32_t* const rows = neighbours + me * most * degree;
    const gpufs::row_layout layout{.row_nbytes = degree * sizeof(std::int32_t), .nrows = nnodes};
    if (block.leader()) here[0] = static_cast<std::int32_t>(me * 100);
    std::uint64_t n = 1;
    for (unsigned step = 0; step < nsteps; ++step) {
      block.sync();  // what lanes have written into `here`
      const gpufs::row_failure failed = gpufs::gather(block, graph, layout, here, n, rows);
      if (failed.error != 0) {  // the same for all lanes
        if (block.leader()) errors[me] = failed.error;
        return;
      }
      n *= degree;  // all neighbours of all nodes; many come more than once, and are read once
      for (std::uint64_t i = block.rank(); i < n; i += block.size()) here[i] = rows[i];
    }
    std::uint64_t sum = 0;
    for (std::uint64_t i = block.rank(); i < n; i += block.size()) sum += static_cast<std::uint64_t>(rows[i]);
    sum = block.reduce_add(sum);
    if (block.leader()) sums[me] = sum;
  }
};

int main() {
  const example::folder folder;
  std::vector<std::int32_t> graph(nnodes * degree);
  for (std::size_t i = 0; i < graph.size(); ++i) graph[i] = static_cast<std::int32_t>((i * 2654435761u >> 7) % nnodes);
  folder.write("graph", std::string(reinterpret_cast<const char*>(graph.data()), graph.size() * sizeof(std::int32_t)));

  const gpufs::mount fs(folder.path(), {.cache_nbytes = 1 << 20});
  const gpufs::host_file file(fs, "graph");
  const example::device_array<std::int32_t> nodes(nblocks * most), neighbours(nblocks * most * degree);
  const example::device_array<std::uint64_t> sums(nblocks);
  const example::device_array<int> errors(nblocks);
  // Launch bounds: the slow paths of gather would else take registers from all of the kernel.
  gpufs::simt::launch<128, 4>({.grid = nblocks, .block = 128},
                              walk{file.ref(), nodes.get(), neighbours.get(), sums.get(), errors.get()});

  bool right = errors.read() == std::vector<int>(nblocks);
  const std::vector<std::uint64_t> got = sums.read();
  for (unsigned block = 0; block < nblocks; ++block) {
    std::vector<std::int32_t> now{static_cast<std::int32_t>(block * 100)};
    for (unsigned step = 0; step < nsteps; ++step) {
      std::vector<std::int32_t> next;
      for (const std::int32_t node : now) {
        for (std::uint64_t k = 0; k < degree; ++k) next.push_back(graph[static_cast<std::uint64_t>(node) * degree + k]);
      }
      now = next;
    }
    std::uint64_t sum = 0;
    for (const std::int32_t node : now) sum += static_cast<std::uint64_t>(node);
    right &= got[block] == sum;
  }
  example::check(right, "each block has come to the nodes that a walk in memory comes to");
}
