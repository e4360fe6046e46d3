// SPDX-License-Identifier: Apache-2.0
// Where frames come from: many rings, each a two-handed clock over its own frames, every nrings-th. Where few of these are free (an
// eighth), the front hand evicts `ahead` frames before the back hand allocates, so that a frame is free before it is needed; a page
// that was hit since the front hand last came by gets a second chance, a pinned one is passed over. One atomic add moves both
// hands.
// After SYSTOR'16, sections 4.3 and 5 (many rings, eviction before a ring is dry), with a clock in place of its FIFO.
#pragma once
#include "gpufs/cache/detail/frames.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

class clock_rings {
 public:
  GPUFS_HOST_DEVICE explicit clock_rings(const cache_layout& cache) : storage_(cache.rings) {}

  struct result {
    frame_index frame;  // claimed, when `found`
    bool found;
    bool transient;       // a frame was seen that is about to change (filling, or claimed by a running group)
    bool passed;          // a frame was given its second chance: the next pass may take it
    std::uint64_t state;  // of the frame that was found, a state since its last fill
  };

  // Looks for a frame in one ring (attempt 0: the lagging one of two; then they are walked from `start` on) and returns after at
  // most max_steps frames. Waits for nobody. Calls erase(frame, its state) to take an evicted page out of the page table.
  template <class Erase>
  GPUFS_DEVICE result allocate(const frames& pages, std::uint32_t start, std::uint32_t attempt, Erase erase) const {
    const std::uint32_t index = attempt == 0 ? lagging(start) : (start + attempt) % storage_.nrings;
    clock_ring& ring = storage_.rings[index];
    const std::uint32_t n = ring.nframes;
    const auto frame_at = [&](std::uint32_t position) { return frame_index{index + position % n * storage_.nrings}; };
    bool transient = false, passed = false;
    const std::uint32_t steps = n < max_steps / 2 ? 2 * n : max_steps;
    for (std::uint32_t i = 0; i < steps; ++i) {
      const std::uint32_t position = word_ref<std::uint32_t>(ring.hand).fetch_add(1, std::memory_order_relaxed);
      if (is_full(ring)) passed |= evict(pages, ring, frame_at(position + ring.ahead), erase);
      const frame_index f = frame_at(position);
      std::uint64_t now = pages.state(f).load(std::memory_order_relaxed);
      if ((now & frame_state::free) != 0 && pages.take_free(f, now)) {
        count_taken(ring);
        return {f, true, false, false, now};
      }
      // A frame that an operation fills is not taken before a lane has ended the operation.
      transient |= (now & frame_state::claimed) != 0 ||
                   ((now & frame_state::filling) != 0 && pages.operation(f).load(std::memory_order_relaxed) == 0);
    }
    return {frame_index{}, false, transient, passed, 0};
  }

  static constexpr bool takes = true;  // a page may ask for a frame
  // Takes this frame if it is free. If its ring has few free frames, also takes it if its page was not used since the clock's hand
  // last passed. The rest is as in allocate.
  template <class Erase>
  GPUFS_DEVICE result take(const frames& pages, frame_index f, Erase erase) const {
    constexpr result refused{};
    clock_ring& ring = storage_.rings[static_cast<std::uint32_t>(f) % storage_.nrings];
    std::uint64_t now = pages.state(f).load(std::memory_order_relaxed);
    if ((now & frame_state::free) != 0) {
      if (!pages.take_free(f, now)) return refused;
      count_taken(ring);
    } else {
      constexpr std::uint64_t stays =
          frame_state::pin_mask | frame_state::dirty | frame_state::filling | frame_state::claimed | frame_state::referenced;
      if ((now & stays) != 0 || !is_full(ring) || !pages.claim(f, now)) return refused;
      if ((now & frame_state::failed) == 0) {
        erase(f, now);
        word_ref<std::uint64_t>(ring.evictions).add_relaxed(1);
      }
      word_ref<std::uint64_t>(ring.allocations).add_relaxed(1);
    }
    return {f, true, false, false, now};
  }

  // So many attempts look at every frame twice. If they meet no transient frame, all frames are pinned.
  GPUFS_DEVICE std::uint32_t attempts_for_all(const frames& pages) const {
    return storage_.nrings + 2 * (pages.count() / (max_steps / 2) + 1);
  }

  // Whether pages are evicted to make room in this frame's ring.
  GPUFS_DEVICE bool is_full(frame_index f) const {
    return is_full(storage_.rings[static_cast<std::uint32_t>(f) % storage_.nrings]);
  }

  // A page was taken out of this frame, not by `allocate`.
  GPUFS_DEVICE void count_eviction(frame_index f) const {
    clock_ring& ring = storage_.rings[static_cast<std::uint32_t>(f) % storage_.nrings];
    word_ref<std::uint64_t>(ring.evictions).add_relaxed(1);
    word_ref<std::uint32_t>(ring.used).add_relaxed(~0u);
  }

 private:
  static constexpr std::uint32_t max_steps = 64;

  // Whether the ring has so few free frames that pages must be evicted. With more free frames, the hand finds one soon.
  GPUFS_DEVICE static bool is_full(clock_ring& ring) {
    const std::uint32_t wanted = ring.nframes / 8 > ring.ahead ? ring.nframes / 8 : ring.ahead;
    return word_ref<std::uint32_t>(ring.used).load(std::memory_order_relaxed) + wanted >= ring.nframes;
  }
  // A frame that was free.
  GPUFS_DEVICE static void count_taken(clock_ring& ring) {
    word_ref<std::uint64_t>(ring.allocations).add_relaxed(1);
    word_ref<std::uint32_t>(ring.used).add_relaxed(1);
  }

  // Chooses two rings, and returns the one whose hand has come less far. So all hands advance together, and pages that are filled
  // at one time lie close together. Then the device translates few addresses (with 512-byte pages, translation limits the speed).
  GPUFS_DEVICE std::uint32_t lagging(std::uint32_t start) const {
    const std::uint32_t a = start % storage_.nrings, b = (start * 0x9e3779b9u >> 16) % storage_.nrings;
    const auto hand = [&](std::uint32_t ring) {
      return word_ref<std::uint32_t>(storage_.rings[ring].hand).load(std::memory_order_relaxed);
    };
    return static_cast<std::int32_t>(hand(b) - hand(a)) < 0 ? b : a;
  }

  // True when it only took the second chance away.
  template <class Erase>
  GPUFS_DEVICE static bool evict(const frames& pages, clock_ring& ring, frame_index f, Erase erase) {
    const std::uint64_t now = pages.state(f).load(std::memory_order_relaxed);
    constexpr std::uint64_t stays = frame_state::pin_mask | frame_state::dirty | frame_state::filling | frame_state::claimed;
    if ((now & stays) != 0) return false;
    if ((now & frame_state::referenced) != 0) {
      pages.state(f).fetch_and(~frame_state::referenced, std::memory_order_relaxed);
      return true;
    }
    if (!pages.claim(f, now)) return false;
    if ((now & frame_state::failed) == 0) {
      erase(f, now);
      word_ref<std::uint64_t>(ring.evictions).add_relaxed(1);
    }
    pages.release(f);
    word_ref<std::uint32_t>(ring.used).add_relaxed(~0u);
    return false;
  }

  ring_storage storage_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
