// SPDX-License-Identifier: Apache-2.0
// Reads that do not wait: each warp has the next pages of its walk under way while it works on those that it has. Where to go next
// is known only from the data, but one step ahead of its use. For files that host threads read; pulled ones need none of this.
#include "example.hpp"

constexpr std::uint32_t node_nbytes = 4096, nnodes = 2048, nsteps = 24;
constexpr unsigned grid = 2, block = 64, nwarps = grid * block / 32;

struct node {
  std::uint32_t after_next;  // where the walk is two steps from here
  std::uint32_t weights[node_nbytes / 4 - 1];
};

struct walk_graph {
  gpufs::mount_ref fs;
  node* nodes;  // two a warp
  std::uint64_t* sums;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const auto me = static_cast<std::uint32_t>(gpufs::simt::global_warp_rank());
    const gpufs::file f = gpufs::open(warp, fs, "graph");
    node* const mine = nodes + std::size_t{2} * me;

    std::uint32_t here = me, next = me + nwarps;
    gpufs::pending_read reading = gpufs::read_async(warp, f, &mine[0], node_nbytes, std::int64_t{here} * node_nbytes);
    std::uint64_t sum = 0;
    for (std::uint32_t step = 0; step < nsteps; ++step) {
      const std::int64_t n = gpufs::wait(warp, reading);  // what pread would give
      if (n != node_nbytes) {
        if (warp.leader()) *error = n < 0 ? static_cast<int>(n) : -EIO;
        return;
      }
      const node& now = mine[step % 2];
      reading = gpufs::read_async(warp, f, &mine[(step + 1) % 2], node_nbytes, std::int64_t{next} * node_nbytes);
      std::uint64_t part = 0;
      for (std::uint32_t i = warp.rank(); i < node_nbytes / 4 - 1; i += warp.size()) part += now.weights[i] * (step + 1ull);
      sum += warp.reduce_add(part);
      here = next;
      next = now.after_next;
      warp.sync();  // all have read this node before the read after next goes to its place
    }
    if (warp.leader()) sums[me] = sum;
    gpufs::close(warp, f);  // the last read was begun for nothing; that harms nobody
  }
};

std::uint32_t after_next_of(std::uint32_t at) { return static_cast<std::uint32_t>((at * 7919ull + 12345) % nnodes); }
std::uint32_t weight_of(std::uint32_t at, std::uint32_t i) { return at * 31 + i; }

int main() {
  std::string bytes(std::size_t{nnodes} * node_nbytes, '\0');
  auto* const graph = reinterpret_cast<node*>(bytes.data());
  for (std::uint32_t at = 0; at < nnodes; ++at) {
    graph[at].after_next = after_next_of(at);
    for (std::uint32_t i = 0; i < node_nbytes / 4 - 1; ++i) graph[at].weights[i] = weight_of(at, i);
  }
  const example::folder folder;
  folder.write("graph", bytes);

  const gpufs::mount fs(folder.path(), {.cache_nbytes = 4 << 20, .store = gpufs::store_kind::posix});
  const example::device_array<node> nodes(2 * nwarps);
  const example::device_array<std::uint64_t> sums(nwarps);
  const example::device_array<int> error(1);
  gpufs::simt::launch({.grid = grid, .block = block}, walk_graph{fs.ref(), nodes.get(), sums.get(), error.get()});
  example::check(error.read_one() == 0, "every node was read");

  const std::vector<std::uint64_t> got = sums.read();
  bool right = true;
  for (std::uint32_t me = 0; me < nwarps; ++me) {
    std::uint32_t here = me, next = me + nwarps;
    std::uint64_t expected = 0;
    for (std::uint32_t step = 0; step < nsteps; ++step) {
      for (std::uint32_t i = 0; i < node_nbytes / 4 - 1; ++i) expected += weight_of(here, i) * (step + 1ull);
      const std::uint32_t after = after_next_of(here);
      here = next;
      next = after;
    }
    right &= got[me] == expected;
  }
  example::check(right, "each warp has added up the weights along its walk");
  example::check(fs.counters().pinned_frames == 0, "no page is held");
}
