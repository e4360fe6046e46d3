// SPDX-License-Identifier: Apache-2.0
// Clocks for the papers' tables 1 to 3: policies that measure and policies that cost nothing. The papers read clock(); we read the
// nanosecond timer, whose steps average out over the sums.
#pragma once
#include "gpufs/cache/detail/page_cache.hpp"
#include "research/baselines/layout.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

// What original_storage made, of which this is the beginning.
GPUFS_DEVICE const original_layout& original_of(const cache::cache_layout& cache) {
  return static_cast<const original_layout&>(cache);
}

struct untimed {
  GPUFS_DEVICE static std::uint64_t now() { return 0; }
  GPUFS_DEVICE static void add(const original_layout&, std::uint64_t time_shard::*, std::uint64_t) {}
};

struct timed {
  GPUFS_DEVICE static std::uint64_t now() { return simt::clock_ns(); }
  GPUFS_DEVICE static void add(const original_layout& all, std::uint64_t time_shard::*what, std::uint64_t n) {
    simt::atomic_ref<std::uint64_t>(all.times[simt::processor_id() % ntime_shards].*what).add_relaxed(n);
  }
};

// An allocator whose time is added up.
template <class Allocator>
class timed_allocator {
 public:
  GPUFS_DEVICE explicit timed_allocator(const cache::cache_layout& cache) : inner_(cache), all_(original_of(cache)) {}

  template <class Erase>
  GPUFS_DEVICE auto allocate(const cache::frames& pages, std::uint32_t start, std::uint32_t attempt, Erase erase) const {
    const std::uint64_t begin = timed::now();
    const auto result = inner_.allocate(pages, start, attempt, erase);
    timed::add(all_, &time_shard::allocate_ns, timed::now() - begin);
    return result;
  }
  GPUFS_DEVICE std::uint32_t attempts_for_all(const cache::frames& pages) const { return inner_.attempts_for_all(pages); }

 private:
  Allocator inner_;
  const original_layout& all_;
};

// A cache whose calls are timed and counted. Giving back a mapped page is one atomic and is not counted.
template <class Cache>
class timed_cache {
 public:
  using role = typename Cache::role;
  using acquired = typename Cache::acquired;
  using timeouts = typename Cache::timeouts;

  GPUFS_DEVICE explicit timed_cache(const cache::cache_layout& cache)
      : inner_(cache), all_(original_of(cache)), begin_ns_(timed::now()) {}

  GPUFS_DEVICE const cache::frames& pages() const { return inner_.pages(); }

  // All is timed.
  template <bool TakesPart = false, class... IsPart>
  GPUFS_DEVICE static bool pin_in_choice(const cache::frames&, cache::page_key, cache::frame_index&, IsPart&...) {
    return false;
  }

  GPUFS_DEVICE acquired acquire(cache::page_key key, std::uint32_t start, const timeouts& limits) const {
    const std::uint64_t begin = timed::now();
    const acquired got = inner_.acquire(key, start, limits);
    timed::add(all_, got.what == role::waited ? &time_shard::wait_ns : &time_shard::access_ns, timed::now() - begin);
    timed::add(all_, &time_shard::accesses, 1);
    if (got.what == role::fill) timed::add(all_, &time_shard::misses, 1);
    const std::uint64_t page = static_cast<std::uint64_t>(key) & ((std::uint64_t{1} << cache::page_number_bits) - 1);
    if (page >= all_.counted_first && page < all_.counted_end) {
      timed::add(all_, &time_shard::counted_accesses, 1);
      if (got.what == role::fill) timed::add(all_, &time_shard::counted_misses, 1);
    }
    return got;
  }
  // pin_in_choice has looked at nothing.
  GPUFS_DEVICE acquired acquire_elsewhere(cache::page_key key, std::uint32_t start, const timeouts& limits, bool = false) const {
    return acquire(key, start, limits);
  }

  static constexpr std::uint64_t at_hand = Cache::at_hand;
  GPUFS_DEVICE bool has(cache::page_key key) const { return inner_.has(key); }

  // Of an object that was made when the fill began.
  GPUFS_DEVICE void end_fill(cache::page_key key, cache::frame_index f, int error) const {
    const std::uint64_t begin = timed::now();
    timed::add(all_, &time_shard::fill_ns, begin - begin_ns_);
    inner_.end_fill(key, f, error);
    timed::add(all_, &time_shard::access_ns, timed::now() - begin);
  }

  GPUFS_DEVICE void unpin(cache::frame_index f) const {
    const std::uint64_t begin = timed::now();
    inner_.unpin(f);
    timed::add(all_, &time_shard::access_ns, timed::now() - begin);
  }
  GPUFS_DEVICE bool unpin_checked(cache::frame_index f) const { return inner_.unpin_checked(f); }

 private:
  Cache inner_;
  const original_layout& all_;
  std::uint64_t begin_ns_;
};

// A kernel whose callers' time is added up: `Caller` is the group (a warp, a block) that makes the calls.
template <class Kernel, class Caller>
struct timed_kernel {
  Kernel kernel;
  const original_layout* all;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t begin = timed::now();
    kernel();
    if (Caller{}.leader()) timed::add(*all, &time_shard::total_ns, timed::now() - begin);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
