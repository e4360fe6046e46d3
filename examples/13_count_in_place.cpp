// SPDX-License-Identifier: Apache-2.0
// Pointers that write a file: the edges of a graph lie in one file, and another one gets how many lead to each node. Threads add in
// place, wherever their edges lead; files and cache are of no particular size to each other.
#include <fstream>

#include "example.hpp"

constexpr std::uint32_t nnodes = 1u << 14, nedges = 1u << 15;

GPUFS_HOST_DEVICE std::uint32_t target_of(std::uint32_t edge) { return edge * 2654435761u >> 18; }

struct count_targets {
  gpufs::mount_ref fs;
  std::int64_t* error;  // of each thread: 0 or a negative errno

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint32_t nthreads = gpufs::simt::grid_size() * gpufs::simt::block_size();
    const std::uint32_t me = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const gpufs::file edges = gpufs::open(warp, fs, "edges"), degrees = gpufs::open(warp, fs, "degrees", O_RDWR);
    {
      const auto targets = gpufs::map<const std::uint32_t>(warp, edges);
      const auto counts = gpufs::map<std::uint32_t>(warp, degrees);
      error[me] = targets.error() != 0 ? targets.error() : counts.error();  // also say so when a file did not open
      for (std::uint32_t i = me; i < nedges && error[me] == 0; i += nthreads) {
        gpufs::fetch_add_at(counts, targets[i], 1u);  // without a link: the next one is elsewhere
      }
    }
    warp.sync();
    gpufs::close(warp, edges);
    const int closed = gpufs::close(warp, degrees);  // all of it is in the file now, or this says why not; once, to one warp
    if (error[me] == 0) error[me] = closed;
  }
};

int main() {
  const example::folder folder;
  std::string edges;
  std::vector<std::uint32_t> expected(nnodes);
  for (std::uint32_t i = 0; i < nedges; ++i) {
    const std::uint32_t target = target_of(i);
    edges.append(reinterpret_cast<const char*>(&target), 4);
    ++expected[target];
  }
  folder.write("edges", edges);
  folder.write("degrees", std::string(std::size_t{nnodes} * 4, '\0'));

  constexpr unsigned grid = 2, block = 32, nthreads = grid * block;
  {
    // A thread holds a page of the edges, and for a moment one of the counts.
    gpufs::mount fs(folder.path(), {.cache_nbytes = std::uint64_t{4} * nthreads * 512, .page_nbytes = 512, .writable = true});
    const example::device_array<std::int64_t> error(nthreads);
    gpufs::simt::launch({.grid = grid, .block = block}, count_targets{fs.ref(), error.get()});
    bool good = true;
    for (const std::int64_t e : error.read()) good = good && e == 0;
    example::check(good && fs.counters().fault_errors == 0, "no access failed, and both files were closed");
  }
  std::vector<std::uint32_t> degrees(nnodes);
  std::ifstream(folder.path() + "/degrees", std::ios::binary).read(reinterpret_cast<char*>(degrees.data()), nnodes * 4);
  example::check(degrees == expected, "the file has all counts");
}
