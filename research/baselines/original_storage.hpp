// SPDX-License-Identifier: Apache-2.0
// The device memory of the baselines' policies, put beside a page cache that somebody else has laid out.
#pragma once
#include <bit>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "gpufs/simt/detail/device_memory.hpp"
#include "research/baselines/layout.hpp"

namespace gpufs::baselines {

struct storage_options {
  bool tree = true;                 // for radix_tree: 1.6 KB a frame
  std::uint32_t ahead = 0;          // of fifo_rings: eviction begins when so few of a ring's pages are free
  std::uint64_t counted_first = 0;  // which pages of a file the timed cache counts apart
  std::uint64_t counted_end = 0;
};

// Owns the memory. Host only. Kernels that use device() must have ended before it goes, and its cache must outlive it.
class original_storage {
 public:
  original_storage(simt::platform& machine, const cache::cache_layout& cache, const storage_options& options = {})
      : memory_(machine) {
    original_layout all{};
    static_cast<cache::cache_layout&>(all) = cache;
    if (options.tree) all.tree = make_tree(cache.frames.nframes);
    all.list = make_list(cache.frames.nframes);
    all.fifo = make_rings(cache, options.ahead);
    all.times = times_ = memory_.allocate<time_shard>(std::vector<time_shard>(ntime_shards));
    all.counted_first = options.counted_first;
    all.counted_end = options.counted_end;
    device_ = memory_.allocate<original_layout>(std::vector<original_layout>(1, all));
  }

  // What kernels get in the place of the cache's own layout.
  const original_layout* device() const { return device_; }

  // Sums since the start, or the last reset. No kernel runs.
  time_shard times() const {
    const auto shards = memory_.read(times_, ntime_shards);
    return std::accumulate(shards.begin(), shards.end(), time_shard{},
                           [](time_shard sum, const time_shard& one) { return sum += one; });
  }
  void reset_times() { memory_.zero(times_, ntime_shards); }

  original_layout read() const { return memory_.read_one(device_); }

 private:
  // n - 1 .. 0, so that a stack gives 0 first.
  std::uint32_t* allocate_stack(std::uint32_t n) {
    std::vector<std::uint32_t> numbers(n);
    std::iota(numbers.rbegin(), numbers.rend(), 0u);
    return memory_.allocate(numbers);
  }

  radix_storage make_tree(std::uint32_t nframes) {
    const std::uint64_t nnodes = std::uint64_t{max_height} * nframes;
    if (nnodes >= 1u << 28) throw std::invalid_argument("gpufs::baselines: too many frames for a radix tree's node numbers");
    radix_storage tree{};
    tree.nnodes = static_cast<std::uint32_t>(nnodes);
    tree.ntrees = nframes;
    tree.chain_mask = std::bit_ceil(nframes) - 1;
    tree.words = memory_.allocate<radix_words>(std::vector<radix_words>(1, {0, 0, tree.nnodes, tree.ntrees}));
    tree.nodes = memory_.allocate<radix_node>(tree.nnodes);
    tree.free_nodes = allocate_stack(tree.nnodes);
    tree.trees = memory_.allocate<file_tree>(tree.ntrees);
    tree.free_trees = allocate_stack(tree.ntrees);
    tree.chains = memory_.allocate<std::uint32_t>(tree.chain_mask + 1);
    return tree;
  }

  list_storage make_list(std::uint32_t nframes) {
    return {memory_.allocate<list_words>(std::vector<list_words>(1, {0, nframes, 0, 0})), allocate_stack(nframes),
            memory_.allocate<std::uint32_t>(nframes)};
  }

  // As many rings, as large, as the cache has.
  ring_storage make_rings(const cache::cache_layout& cache, std::uint32_t ahead) {
    const auto from = memory_.read(cache.rings.rings, cache.rings.nrings);
    std::vector<fifo_ring> rings;
    std::uint32_t first = 0;
    for (const cache::clock_ring& r : from) {
      rings.push_back({0, r.nframes, 0, first, r.nframes, std::min(ahead, r.nframes / 8), 0});
      first += r.nframes;
    }
    std::vector<std::uint32_t> order(cache.frames.nframes);
    std::iota(order.begin(), order.end(), 0u);
    return {memory_.allocate(rings), memory_.allocate(order), cache.rings.nrings};
  }

  simt::device_memory memory_;
  time_shard* times_ = nullptr;
  original_layout* device_ = nullptr;
};

}  // namespace gpufs::baselines
