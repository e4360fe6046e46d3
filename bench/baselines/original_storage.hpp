// SPDX-License-Identifier: Apache-2.0
// The device memory of the baselines' policies, put beside a page cache that somebody else has laid out.
#pragma once
#include <bit>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "baselines/layout.hpp"
#include "gpufs/simt/platform.hpp"

namespace gpufs::baselines {

struct storage_options {
  bool tree = true;                 // for radix_tree: 1.6 KB a frame
  std::uint32_t ahead = 0;          // of fifo_rings: eviction begins when so few of a ring's pages are free
  std::uint64_t counted_first = 0;  // which pages of a file the timed cache counts apart
  std::uint64_t counted_end = 0;
};

// Owns the memory. Host only. Kernels that use layout() must have ended before it goes, and its cache must outlive it.
class original_storage {
 public:
  original_storage(simt::platform& machine, const cache::cache_layout& cache, const storage_options& options = {})
      : machine_(machine), cache_(cache) {
    original_layout all{};
    static_cast<cache::cache_layout&>(all) = cache;
    if (options.tree) all.tree = make_tree(cache.frames.nframes);
    all.list = make_list(cache.frames.nframes);
    all.fifo = make_rings(cache, options.ahead);
    all.times = times_ = allocate<time_shard>(std::vector<time_shard>(ntime_shards));
    all.counted_first = options.counted_first;
    all.counted_end = options.counted_end;
    device_ = allocate<original_layout>(std::vector<original_layout>(1, all));
    all.resident = device_;
    machine.copy_to_device(device_, &all, sizeof all);
    cache_.resident = device_;
  }
  ~original_storage() {
    for (void* ptr : owned_) machine_.deallocate_device(ptr);
  }
  original_storage(const original_storage&) = delete;
  original_storage& operator=(const original_storage&) = delete;

  // What kernels get in the place of the cache's own layout.
  const cache::cache_layout& layout() const { return cache_; }
  const original_layout* device() const { return device_; }

  // Sums since the start, or the last reset. No kernel runs.
  time_shard times() const {
    std::vector<time_shard> shards(ntime_shards);
    machine_.copy_from_device(shards.data(), times_, shards.size() * sizeof(time_shard));
    return std::accumulate(shards.begin(), shards.end(), time_shard{},
                           [](time_shard sum, const time_shard& one) { return sum += one; });
  }
  void reset_times() { machine_.zero_device(times_, ntime_shards * sizeof(time_shard)); }

  original_layout read() const {
    original_layout all;
    machine_.copy_from_device(&all, device_, sizeof all);
    return all;
  }

 private:
  template <class T>
  T* allocate(std::size_t n) {
    owned_.reserve(owned_.size() + 1);
    void* ptr = machine_.allocate_device(n * sizeof(T));
    owned_.push_back(ptr);
    machine_.zero_device(ptr, n * sizeof(T));
    return static_cast<T*>(ptr);
  }
  template <class T>
  T* allocate(const std::vector<T>& initial) {
    T* ptr = allocate<T>(initial.size());
    machine_.copy_to_device(ptr, initial.data(), initial.size() * sizeof(T));
    return ptr;
  }
  // n - 1 .. 0, so that a stack gives 0 first.
  std::uint32_t* allocate_stack(std::uint32_t n) {
    std::vector<std::uint32_t> numbers(n);
    std::iota(numbers.rbegin(), numbers.rend(), 0u);
    return allocate(numbers);
  }

  radix_storage make_tree(std::uint32_t nframes) {
    const std::uint64_t nnodes = std::uint64_t{max_height} * nframes;
    if (nnodes >= 1u << 28) throw std::invalid_argument("gpufs::baselines: too many frames for a radix tree's node numbers");
    radix_storage tree{};
    tree.nnodes = static_cast<std::uint32_t>(nnodes);
    tree.ntrees = nframes;
    tree.chain_mask = std::bit_ceil(nframes) - 1;
    tree.words = allocate<radix_words>(std::vector<radix_words>(1, {0, 0, tree.nnodes, tree.ntrees}));
    tree.nodes = allocate<radix_node>(tree.nnodes);
    tree.free_nodes = allocate_stack(tree.nnodes);
    tree.trees = allocate<file_tree>(tree.ntrees);
    tree.free_trees = allocate_stack(tree.ntrees);
    tree.chains = allocate<std::uint32_t>(tree.chain_mask + 1);
    return tree;
  }

  list_storage make_list(std::uint32_t nframes) {
    return {allocate<list_words>(std::vector<list_words>(1, {0, nframes, 0, 0})), allocate_stack(nframes),
            allocate<std::uint32_t>(nframes)};
  }

  // As many rings, as large, as the cache has.
  ring_storage make_rings(const cache::cache_layout& cache, std::uint32_t ahead) {
    std::vector<cache::clock_ring> from(cache.rings.nrings);
    machine_.copy_from_device(from.data(), cache.rings.rings, from.size() * sizeof(cache::clock_ring));
    std::vector<fifo_ring> rings;
    std::uint32_t first = 0;
    for (const cache::clock_ring& r : from) {
      rings.push_back({0, r.nframes, 0, first, r.nframes, std::min(ahead, r.nframes / 8), 0});
      first += r.nframes;
    }
    std::vector<std::uint32_t> order(cache.frames.nframes);
    std::iota(order.begin(), order.end(), 0u);
    return {allocate(rings), allocate(order), cache.rings.nrings};
  }

  simt::platform& machine_;
  cache::cache_layout cache_;
  std::vector<void*> owned_;
  time_shard* times_ = nullptr;
  original_layout* device_ = nullptr;
};

}  // namespace gpufs::baselines
