// SPDX-License-Identifier: Apache-2.0
// What the papers' designs keep in device memory beside a cache's own layout.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/cache/detail/layout.hpp"

namespace gpufs::baselines {

inline constexpr unsigned fanout_bits = 6;
inline constexpr std::uint32_t fanout = 1u << fanout_bits;
inline constexpr std::uint32_t max_height =
    (cache::page_number_bits + fanout_bits - 1) / fanout_bits;  // levels that cover every page number

// A node of a radix tree. A child is 0, or node + 1, or on the last level frame + 1.
struct alignas(16) radix_node {
  std::uint32_t children[fanout];
  std::uint32_t nchildren;  // that are not 0; a node with none is free
  std::uint32_t reserved[3];
};
static_assert(sizeof(radix_node) == 272 && offsetof(radix_node, nchildren) == 256);

// One file's tree. It exists while a page of the file is in the cache.
struct alignas(16) file_tree {
  std::uint32_t cache_id;
  std::uint32_t root;  // levels << 28 | node + 1
  std::uint32_t next;  // in its chain: tree + 1
  std::uint32_t reserved;
};

struct alignas(128) radix_words {
  std::uint32_t lock;     // of all trees
  std::uint32_t version;  // odd while the lock's holder changes something
  std::uint32_t nfree_nodes;
  std::uint32_t nfree_trees;
};

struct radix_storage {
  radix_words* words;
  radix_node* nodes;
  std::uint32_t* free_nodes;  // a stack
  file_tree* trees;
  std::uint32_t* free_trees;  // a stack
  std::uint32_t* chains;      // by cache id: tree + 1
  std::uint32_t nnodes;
  std::uint32_t ntrees;
  std::uint32_t chain_mask;
};

// The free list and, in the order of their allocation, the frames that are not on it.
struct alignas(128) list_words {
  std::uint32_t lock;
  std::uint32_t nfree;
  std::uint64_t oldest, newest;  // running positions in `order`
};

struct list_storage {
  list_words* words;
  std::uint32_t* free;   // a stack
  std::uint32_t* order;  // a ring
};

// A ring of pages: running positions [head, tail) of `order` are free, [tail, head + nframes) are in use, the oldest first.
struct alignas(128) fifo_ring {
  std::uint64_t head;
  std::uint64_t tail;
  std::uint32_t lock;  // of eviction
  std::uint32_t first;
  std::uint32_t nframes;
  std::uint32_t ahead;   // eviction begins when so few are free; 0: when none is
  std::uint32_t cursor;  // how far from the tail the search goes on, where pages near the tail are pinned
};

struct ring_storage {
  fifo_ring* rings;
  std::uint32_t* order;  // frame numbers; a ring's own at [first, first + nframes)
  std::uint32_t nrings;
};

// What the timed policies add up, in nanoseconds of the calling lanes.
struct alignas(128) time_shard {
  std::uint64_t total_ns;     // in kernels, by those who call (a warp, or a block)
  std::uint64_t access_ns;    // in the cache's calls, without waiting for another group's fill
  std::uint64_t lock_ns;      // of that: waiting for the page table's lock
  std::uint64_t allocate_ns;  // of that: in the allocator
  std::uint64_t wait_ns;      // for pages that another group was filling
  std::uint64_t fill_ns;      // from being told to fill a page until it was filled
  std::uint64_t accesses;     // pages asked for
  std::uint64_t misses;
  std::uint64_t counted_accesses;  // the same for pages of the counted range
  std::uint64_t counted_misses;

  time_shard& operator+=(const time_shard& other) {
    total_ns += other.total_ns;
    access_ns += other.access_ns;
    lock_ns += other.lock_ns;
    allocate_ns += other.allocate_ns;
    wait_ns += other.wait_ns;
    fill_ns += other.fill_ns;
    accesses += other.accesses;
    misses += other.misses;
    counted_accesses += other.counted_accesses;
    counted_misses += other.counted_misses;
    return *this;
  }
};
inline constexpr std::uint32_t ntime_shards = 64;

// In device memory.
struct original_layout : cache::cache_layout {
  radix_storage tree;
  list_storage list;
  ring_storage fifo;
  time_shard* times;
  std::uint64_t counted_first, counted_end;  // page numbers
};

}  // namespace gpufs::baselines
