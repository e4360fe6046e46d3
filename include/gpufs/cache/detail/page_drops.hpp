// SPDX-License-Identifier: Apache-2.0
// Takes pages out of the cache that need not make room for others.
#pragma once
#include "gpufs/cache/detail/clock_rings.hpp"
#include "gpufs/cache/detail/hash_table.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

class page_drops {
 public:
  GPUFS_DEVICE explicit page_drops(const cache_layout& cache) : frames_(cache), cache_(cache) {}

  // Takes a page that is marked dirty out of the cache, and drops its changes. False: the page is pinned, and stays. A look-up may
  // pin a page for a moment, so the call tries again for a while. It takes no pin itself, so several calls for one page at once do
  // not hinder each other.
  GPUFS_DEVICE bool drop_dirty(page_key key) const {
    const simt::deadline until(patience_ns);
    simt::backoff pause;
    while (!try_to_drop_dirty(key)) {
      if (until.expired()) return false;
      pause();
    }
    return true;
  }

  // Takes a page that nobody has pinned and nobody has written to out of the cache. One lane calls.
  GPUFS_DEVICE void drop_clean(page_key key) const {
    hash_table(cache_).find(key, [&](frame_index f) {
      constexpr std::uint64_t stays = frame_state::dirty | frame_state::filling | frame_state::pin_mask;
      const std::uint64_t seen = frames_.state(f).load(std::memory_order_acquire);  // meets end_fill: the key is there
      if (!frames_.holds(f, key, seen)) return false;
      if ((seen & stays) == 0 && frames_.claim(f, seen)) {
        hash_table(cache_).erase(key, f);
        clock_rings(cache_).count_eviction(f);
        frames_.release(f);
      }
      return true;
    });
  }

 private:
  static constexpr std::uint64_t patience_ns = 1'000'000;

  GPUFS_DEVICE bool try_to_drop_dirty(page_key key) const {
    bool pinned = false;
    hash_table(cache_).find(key, [&](frame_index f) {
      for (;;) {
        const std::uint64_t seen = frames_.state(f).load(std::memory_order_acquire);  // meets end_fill: the key is there
        if (!frames_.holds(f, key, seen)) return false;
        pinned = (seen & frame_state::dirty) != 0 && (seen & frame_state::pin_mask) != 0;
        if (pinned || (seen & frame_state::dirty) == 0) return true;
        if (frames_.claim(f, seen)) break;  // the stamp is the one seen with the key
      }
      hash_table(cache_).erase(key, f);
      clock_rings(cache_).count_eviction(f);
      frames_.release(f);
      return true;
    });
    return !pinned;
  }

  frames frames_;
  const cache_layout& cache_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
