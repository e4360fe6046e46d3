// SPDX-License-Identifier: Apache-2.0
// The allocator of SYSTOR'16, section 4.2 and 4.4: rings of pages, allocation by moving a ring's head, eviction at its tail under
// the ring's lock. With one ring and ahead == 0 it is the design that section 4.4 finds too slow.
#pragma once
#include "research/baselines/times.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

// A page_cache's Allocator.
class fifo_rings {
 public:
  GPUFS_DEVICE explicit fifo_rings(const cache::cache_layout& cache) : all_(original_of(cache)) {}

  struct result {
    cache::frame_index frame;  // claimed, when `found`
    bool found;
    bool transient;       // a lock did not come, or a frame was seen that is about to change
    bool passed;          // never: nothing gets a second chance
    std::uint64_t state;  // of the frame, since its last fill
  };

  template <class Erase>
  GPUFS_DEVICE result allocate(const cache::frames& pages, std::uint32_t start, std::uint32_t attempt, Erase erase) const {
    const original_layout& all = all_;
    const std::uint32_t index = (start + attempt) % all.fifo.nrings;
    fifo_ring& ring = all.fifo.rings[index];
    const simt::atomic_ref<std::uint64_t> head(ring.head), tail(ring.tail);
    bool transient = false;
    for (std::uint32_t tries = 0; tries < max_tries; ++tries) {
      std::uint64_t h = head.load(std::memory_order_relaxed);
      const std::uint64_t t = tail.load(std::memory_order_acquire);  // meets evict's release: its swap is seen
      if (t <= h) {
        const outcome evicted = evict(pages, all, ring, index, true, erase);
        transient |= evicted.changing;
        if (!evicted.any && !evicted.busy) break;
        continue;
      }
      // Read before the head moves: from then on the place is one of those in use, which eviction swaps.
      const std::uint32_t frame = simt::atomic_ref<std::uint32_t>(slot(all, ring, h)).load(std::memory_order_relaxed);
      if (!head.compare_exchange(h, h + 1, std::memory_order_acq_rel)) continue;
      if (t - h <= ring.ahead) evict(pages, all, ring, index, false, erase);
      simt::atomic_ref<std::uint64_t>(all.rings.rings[index].allocations).add_relaxed(1);
      result got{cache::frame_index{frame}, false, false, false, 0};
      got.found = pages.take_free(got.frame, got.state);
      return got;
    }
    return {cache::frame_index{}, false, transient, false, 0};
  }

  GPUFS_DEVICE std::uint32_t attempts_for_all(const cache::frames& pages) const {
    return all_rings() + 2 * (pages.count() / max_looks + all_rings());
  }

 private:
  static constexpr std::uint32_t max_tries = 64;
  static constexpr std::uint32_t max_looks = 64;
  static constexpr std::uint32_t batch = 8;  // pages that eviction ahead of need takes at once
  static constexpr std::uint64_t lock_timeout_ns = 1'000'000'000;

  struct outcome {
    bool any;       // a frame was freed
    bool busy;      // others evict, or have evicted meanwhile
    bool changing;  // a frame was seen that is about to change
  };

  GPUFS_DEVICE std::uint32_t all_rings() const { return all_.fifo.nrings; }
  GPUFS_DEVICE static std::uint32_t& slot(const original_layout& all, const fifo_ring& ring, std::uint64_t position) {
    return all.fifo.order[ring.first + position % ring.nframes];
  }

  // Frees pages from the tail on. `needed`: one is needed, and whoever asks waits for the lock; else whoever asks goes on.
  template <class Erase>
  GPUFS_DEVICE static outcome evict(const cache::frames& pages, const original_layout& all, fifo_ring& ring, std::uint32_t index,
                                    bool needed, Erase erase) {
    const simt::atomic_ref<std::uint32_t> lock(ring.lock);
    const simt::deadline until(needed ? lock_timeout_ns : 0);
    simt::backoff pause(256);
    // The acquire meets the release below. The holder waits for nobody.
    while (lock.exchange(1, std::memory_order_acquire) != 0) {
      if (!needed) return {false, true, false};
      if (until.expired()) return {false, false, true};
      pause();
    }
    const std::uint64_t h = simt::atomic_ref<std::uint64_t>(ring.head).load(std::memory_order_relaxed);
    const std::uint64_t t = simt::atomic_ref<std::uint64_t>(ring.tail).load(std::memory_order_relaxed);
    outcome got{false, needed && t > h, false};
    if (!got.busy) got = evict_locked(pages, all, ring, index, h, t, needed ? 1 : batch, erase);
    lock.store(0, std::memory_order_release);
    return got;
  }

  template <class Erase>
  GPUFS_DEVICE static outcome evict_locked(const cache::frames& pages, const original_layout& all, fifo_ring& ring,
                                           std::uint32_t index, std::uint64_t h, std::uint64_t t, std::uint32_t wanted,
                                           Erase erase) {
    using namespace cache::frame_state;
    const std::uint32_t in_use = static_cast<std::uint32_t>(h + ring.nframes - t);
    const std::uint32_t looks = in_use < max_looks ? in_use : max_looks;
    outcome got{false, false, false};
    std::uint32_t at = in_use == 0 ? 0 : ring.cursor % in_use;
    for (std::uint32_t i = 0; i < looks && wanted != 0 && t < h + ring.nframes; ++i) {
      if (t + at >= h + ring.nframes) at = 0;
      const simt::atomic_ref<std::uint32_t> place(slot(all, ring, t + at)), last(slot(all, ring, t));
      const cache::frame_index f{place.load(std::memory_order_relaxed)};
      const std::uint64_t now = pages.state(f).load(std::memory_order_relaxed);
      got.changing |= (now & (filling | claimed)) != 0;
      if ((now & (pin_mask | filling | claimed)) != 0 || !pages.claim(f, now)) {
        got.changing |= (now & pin_mask) == 0;
        ++at;
        continue;
      }
      if ((now & failed) == 0) {
        erase(f, now);
        simt::atomic_ref<std::uint64_t>(all.rings.rings[index].evictions).add_relaxed(1);
      }
      place.store(last.load(std::memory_order_relaxed), std::memory_order_relaxed);
      last.store(static_cast<std::uint32_t>(f), std::memory_order_relaxed);
      pages.release(f);
      simt::atomic_ref<std::uint64_t>(ring.tail).store(++t, std::memory_order_release);  // meets allocate's acquire
      got.any = true;
      at = at == 0 ? 0 : at - 1;  // the same place, seen from the new tail
      --wanted;
    }
    ring.cursor = got.any ? 0 : at;
    return got;
  }

  const original_layout& all_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
