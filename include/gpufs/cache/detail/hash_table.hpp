// SPDX-License-Identifier: Apache-2.0
// The page table: one concurrent hash table for all files of a mount, (cache id, page number) -> frame.
// Look-ups take no lock and make one 16-byte load as a rule; inserts lock the key's home bucket; removals lock nothing.
// After "Supporting data-driven I/O on GPUs using GPUfs" (SYSTOR'16), section 4.1, with a fixed 16-byte bucket in place of chains
// and probing on (counted in the passed bucket's header) where a bucket is full; neighbouring pages have neighbouring buckets.
#pragma once
#include "gpufs/cache/detail/frames.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

class hash_table {
 public:
  GPUFS_HOST_DEVICE explicit hash_table(const cache_layout& cache) : storage_(cache.table) {}
  GPUFS_HOST_DEVICE explicit hash_table(const table_storage& storage) : storage_(storage) {}

  static constexpr std::uint32_t unlocked = 0;
  // Calls visit(frame) for each entry that may be `key`'s (equal tag; the caller compares the frame's key) until it
  // returns true. A miss is only certain under the key's lock. `locked_home`: what try_lock gave, where the caller has the lock.
  template <class Visit>
  GPUFS_DEVICE bool find(page_key key, Visit visit, std::uint32_t locked_home = unlocked) const {
    const std::uint32_t h = hash(key);
    std::uint32_t index = home(h);
    for (std::uint32_t probes = 0; probes <= storage_.bucket_mask; ++probes) {
      // Both at once, since most that look here miss. An entry of the key that lies beyond its home was counted in the home's
      // header under the key's lock, so the header that try_lock gave tells of it.
      std::uint32_t header = locked_home;
      if (locked_home == unlocked || probes != 0) header = header_of(index).load(std::memory_order_relaxed);
      const simt::vec16 slots = simt::load_relaxed_16<cache_layout::scope>(&storage_.buckets[index]);
      // For a slot with this tag, slot - first is its frame; for any other slot it exceeds all frames (an empty slot wraps around).
      // Several frames are visited from the last to the first: one body, few instructions, and the slots stay in registers.
      const std::uint32_t first = entry(h, frame_index{0});
      std::uint32_t end = (1u << storage_.frame_bits) - 1;
      for (;;) {
        std::uint32_t last = 0;  // frame + 1
        for (const std::uint32_t slot : slots.word) {
          const std::uint32_t frame = slot - first;
          last = frame < end && frame >= last ? frame + 1 : last;
        }
        if (last == 0) break;
        end = last - 1;
        if (visit(frame_index{end})) [[likely]]
          return true;
      }
      if ((header & passed_mask) == 0) return false;
      index = behind(index);
    }
    return false;
  }

  // The short form of `find`, which suffices for most keys: an entry of the home bucket, or of the bucket behind it, that may be
  // `key`'s. no_frame: the caller looks again with find. Pointers use it: it asks the second-level cache, through which pages
  // stream, to keep the buckets (find does not ask: hits of map_page were 1 % slower with it).
  static constexpr std::uint32_t no_frame = ~0u;
  GPUFS_DEVICE std::uint32_t first(page_key key) const {
    const std::uint32_t at = home(hash(key));
    const std::uint32_t found = match(key, at);
    return found != no_frame ? found : match(key, behind(at));
  }

  // Locks the key's home bucket against other inserts of the same key. False when `until` expired first. The holder
  // waits for nobody while it holds it. The acquire meets unlock's release.
  GPUFS_DEVICE bool lock(page_key key, const simt::deadline& until) const {
    auto header = header_of(home(hash(key)));
    simt::backoff pause;
    while ((header.fetch_or(lock_bit, std::memory_order_acquire) & lock_bit) != 0) {
      if (until.expired()) return false;
      pause();
    }
    return true;
  }

  // The same for a caller that does not wait; what it locks, for find.
  GPUFS_DEVICE bool try_lock(page_key key, std::uint32_t& locked_home) const {
    const std::uint32_t before = header_of(home(hash(key))).fetch_or(lock_bit, std::memory_order_acquire);
    locked_home = before | lock_bit;
    return (before & lock_bit) == 0;
  }

  GPUFS_DEVICE void unlock(page_key key) const { header_of(home(hash(key))).fetch_and(~lock_bit, std::memory_order_release); }
  // Unlocks. The caller has called a release fence since its last change.
  GPUFS_DEVICE void unlock_after_fence(page_key key) const { header_of(home(hash(key))).fetch_and(~lock_bit, simt::after_fence); }

  // Enters key -> frame; the caller holds the key's lock and has found no entry. There are twice as many slots as frames, so one is
  // free. Releases nothing: a lane that finds the entry pins before use, and a lane that must find it has the lock.
  GPUFS_DEVICE void insert(page_key key, frame_index f) const {
    const std::uint32_t h = hash(key);
    for (std::uint32_t index = home(h);; index = behind(index)) {
      bucket& b = storage_.buckets[index];
      const simt::vec16 slots = simt::load_relaxed_16<cache_layout::scope>(&b);
      for (std::uint32_t i = 0; i < 4; ++i) {
        std::uint32_t expected = 0;
        if (slots.word[i] == 0 &&
            word_ref<std::uint32_t>(b.slots[i]).compare_exchange(expected, entry(h, f), std::memory_order_relaxed)) {
          return;
        }
      }
      header_of(index).fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Removes key -> frame. The caller owns the frame (claimed, or filling and failed), so nobody else removes it.
  GPUFS_DEVICE void erase(page_key key, frame_index f) const {
    const std::uint32_t h = hash(key);
    const std::uint32_t wanted = entry(h, f);
    std::uint32_t index = home(h);
    for (std::uint32_t probes = 0; probes <= storage_.bucket_mask; ++probes) {
      bucket& b = storage_.buckets[index];
      const simt::vec16 slots = simt::load_relaxed_16<cache_layout::scope>(&b);
      std::uint32_t at = 4;
      for (std::uint32_t i = 0; i < 4; ++i) at = slots.word[i] == wanted ? i : at;
      if (at < 4) {
        word_ref<std::uint32_t>(b.slots[at]).store(0, std::memory_order_release);
        for (std::uint32_t i = home(h); i != index; i = behind(i)) {
          header_of(i).fetch_sub(1, std::memory_order_release);  // as the slot: a look-up that goes no further may go by this
        }
        return;
      }
      index = behind(index);
    }
  }

 private:
  static constexpr std::uint32_t lock_bit = 1u << 31;
  static constexpr std::uint32_t passed_mask = lock_bit - 1;
  // Neighbouring pages of a file have neighbouring home buckets: the buckets of 8 pages lie in 128 bytes, in an order of their own.
  // A reader that goes through a file finds the next buckets in the second-level cache.
  static constexpr std::uint32_t in_row = 7;

  // MurmurHash3's 32-bit finalizer of the row; the lowest bits are the page's place in it. The home bucket takes the low bits and
  // the tag the high ones. In a mount no bit is in both, as there are fewer buckets than 2^frame_bits. 32 bits, as a fault shares
  // registers with its kernel.
  GPUFS_DEVICE static std::uint32_t hash(page_key key) {
    const auto page = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key));
    const auto id = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> page_number_bits);
    std::uint32_t x = page / (in_row + 1) * 0x9e3779b1u + id * 0x85ebca77u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16 ^ (page & in_row);
  }
  // The bucket to which a full bucket passes entries on. It is in the next row, because the other buckets of the same row are as
  // full. From the last row, it is at the next place of the first row, so that a walk comes to all buckets.
  GPUFS_DEVICE std::uint32_t behind(std::uint32_t index) const {
    const std::uint32_t next = index + in_row + 1;
    return (next <= storage_.bucket_mask ? next : (next + 1) & in_row) & storage_.bucket_mask;
  }
  GPUFS_DEVICE std::uint32_t home(std::uint32_t h) const { return h & storage_.bucket_mask; }
  GPUFS_DEVICE std::uint32_t entry(std::uint32_t h, frame_index f) const {
    return h >> storage_.frame_bits << storage_.frame_bits | (static_cast<std::uint32_t>(f) + 1);
  }
  // The last slot of a bucket that may be `key`'s: its frame, or no_frame.
  GPUFS_DEVICE std::uint32_t match(page_key key, std::uint32_t index) const {
    const simt::vec16 slots = simt::load_kept_16<cache_layout::scope>(&storage_.buckets[index]);
    const std::uint32_t first = entry(hash(key), frame_index{0});
    std::uint32_t found = no_frame;
    for (const std::uint32_t slot : slots.word) found = slot - first < (1u << storage_.frame_bits) - 1 ? slot - first : found;
    return found;
  }
  GPUFS_DEVICE word_ref<std::uint32_t> header_of(std::uint32_t index) const {
    return word_ref<std::uint32_t>(storage_.headers[index]);
  }

  table_storage storage_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
