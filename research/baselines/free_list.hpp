// SPDX-License-Identifier: Apache-2.0
// The original allocator: one free list under one lock, and eviction under the same lock, the page that was allocated first going
// first. README.md says which paper each part follows.
#pragma once
#include "research/baselines/times.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

// A page_cache's Allocator.
class free_list {
 public:
  GPUFS_DEVICE explicit free_list(const cache::cache_layout& cache) : all_(original_of(cache)) {}

  struct result {
    cache::frame_index frame;  // claimed, when `found`
    bool found;
    bool transient;       // the lock did not come, or a frame was seen that is about to change
    bool passed;          // never: nothing gets a second chance
    std::uint64_t state;  // of the frame, since its last fill
  };

  template <class Erase>
  GPUFS_DEVICE result allocate(const cache::frames& pages, std::uint32_t, std::uint32_t, Erase erase) const {
    list_words& list = *all_.list.words;
    const simt::atomic_ref<std::uint32_t> lock(list.lock);
    const simt::deadline until(lock_timeout_ns);
    simt::backoff pause(256);
    // The acquire meets the release below. The holder waits for nobody.
    while (lock.exchange(1, std::memory_order_acquire) != 0) {
      if (until.expired()) return {cache::frame_index{}, false, true, false, 0};
      pause();
    }
    result got{cache::frame_index{}, false, false, false, 0};
    if (list.nfree == 0) got.transient = evict(pages, erase);
    if (list.nfree != 0) {
      const std::uint32_t frame = all_.list.free[--list.nfree];
      all_.list.order[list.newest++ % pages.count()] = frame;
      got.frame = cache::frame_index{frame};
      got.found = pages.take_free(got.frame, got.state);
      simt::atomic_ref<std::uint64_t>(all_.rings.rings[0].allocations).add_relaxed(1);
    }
    lock.store(0, std::memory_order_release);
    return got;
  }

  GPUFS_DEVICE std::uint32_t attempts_for_all(const cache::frames& pages) const { return 2 * (pages.count() / max_looks + 1); }

 private:
  static constexpr std::uint32_t max_looks = 64;
  static constexpr std::uint32_t batch = 64;  // pages evicted at once, at most an eighth of the cache
  static constexpr std::uint64_t lock_timeout_ns = 1'000'000'000;

  // Looks at the frames that were allocated first. What cannot go (pinned) goes behind the others. True when one is about to
  // change.
  template <class Erase>
  GPUFS_DEVICE bool evict(const cache::frames& pages, Erase erase) const {
    using namespace cache::frame_state;
    list_words& list = *all_.list.words;
    const std::uint32_t n = pages.count();
    const std::uint32_t in_use = static_cast<std::uint32_t>(list.newest - list.oldest);
    const std::uint32_t looks = in_use < max_looks ? in_use : max_looks;
    const std::uint32_t wanted = n / 8 < 1 ? 1 : n / 8 < batch ? n / 8 : batch;
    bool changing = false;
    for (std::uint32_t i = 0; i < looks && list.nfree < wanted; ++i) {
      const std::uint32_t frame = all_.list.order[list.oldest++ % n];
      const cache::frame_index f{frame};
      const std::uint64_t now = pages.state(f).load(std::memory_order_relaxed);
      changing |= (now & (filling | claimed)) != 0;
      if ((now & (pin_mask | filling | claimed)) != 0 || !pages.claim(f, now)) {
        changing |= (now & pin_mask) == 0;  // somebody pins it, or changes it, just now
        all_.list.order[list.newest++ % n] = frame;
        continue;
      }
      if ((now & failed) == 0) {
        erase(f, now);
        simt::atomic_ref<std::uint64_t>(all_.rings.rings[0].evictions).add_relaxed(1);
      }
      pages.release(f);
      all_.list.free[list.nfree++] = frame;
    }
    return changing;
  }

  const original_layout& all_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
