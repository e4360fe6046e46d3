// The page table: one concurrent hash table for all files of a mount, (cache id, page number) -> frame.
// Look-ups take no lock and make one 16-byte load as a rule; inserts lock the key's home bucket; removals lock nothing.
// After "Supporting data-driven I/O on GPUs using GPUfs" (SYSTOR'16), section 4.1, with a fixed 16-byte bucket in place of chains
// and probing on (counted in the passed bucket's header) where a bucket is full.
#pragma once
#include "gpufs/cache/frames.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

class hash_table {
 public:
  GPUFS_HOST_DEVICE explicit hash_table(const cache_layout& cache) : storage_(cache.table) {}
  GPUFS_HOST_DEVICE explicit hash_table(const table_storage& storage) : storage_(storage) {}

  // Calls visit(frame) for each entry that may be `key`'s (equal tag; the caller compares the frame's key) until it
  // returns true. A miss is only certain under the key's lock.
  template <class Visit>
  GPUFS_DEVICE bool find(page_key key, Visit visit) const {
    const std::uint64_t h = hash(key);
    std::uint32_t index = home(h);
    for (std::uint32_t probes = 0; probes <= storage_.bucket_mask; ++probes) {
      const simt::vec16 slots = simt::load_relaxed_16(&storage_.buckets[index]);
      // A slot of this tag, less `first`, is its frame; any other is more than all frames (and an empty one wraps around). Several
      // are visited from the last frame to the first: one body, few instructions, and the slots stay in registers.
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
      if ((header_of(index).load(std::memory_order_relaxed) & passed_mask) == 0) return false;
      index = (index + 1) & storage_.bucket_mask;
    }
    return false;
  }

  // What `find` finds for most keys, in less code: an entry of the home bucket, or of the one behind it, that may be
  // `key`'s. no_frame: look again with find. For pointers: buckets are asked to be kept in the second-level cache, through which
  // pages stream (find does without: hits of map_page were 1 % slower with it).
  static constexpr std::uint32_t no_frame = ~0u;
  GPUFS_DEVICE std::uint32_t first(page_key key) const {
    const std::uint32_t found = last_match(key, load_bucket(key, 0));
    return found != no_frame ? found : last_match(key, load_bucket(key, 1));
  }
  // The same in two steps, so that several loads can be under way: of the home bucket, or of the one that many behind it.
  GPUFS_DEVICE simt::vec16 load_bucket(page_key key, std::uint32_t behind) const {
    return simt::load_kept_16(&storage_.buckets[(home(hash(key)) + behind) & storage_.bucket_mask]);
  }
  GPUFS_DEVICE std::uint32_t last_match(page_key key, const simt::vec16& slots) const {
    std::uint32_t found = no_frame;
    for (unsigned i = 0; i < 4; ++i) found = is_match(key, slots.word[i]) ? frame_of(key, slots.word[i]) : found;
    return found;
  }
  GPUFS_DEVICE std::uint32_t first_match(page_key key, const simt::vec16& slots) const {
    std::uint32_t found = no_frame;
    for (unsigned i = 4; i-- > 0;) found = is_match(key, slots.word[i]) ? frame_of(key, slots.word[i]) : found;
    return found;
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

  GPUFS_DEVICE void unlock(page_key key) const { header_of(home(hash(key))).fetch_and(~lock_bit, std::memory_order_release); }

  // Enters key -> frame; the caller holds the key's lock and has found no entry. There are twice as many slots as
  // frames, so there is room somewhere. The release publishes the frame's state to `find`'s readers, who pin before use.
  GPUFS_DEVICE void insert(page_key key, frame_index f) const {
    const std::uint64_t h = hash(key);
    for (std::uint32_t index = home(h);; index = (index + 1) & storage_.bucket_mask) {
      bucket& b = storage_.buckets[index];
      for (std::uint32_t& slot : b.slots) {
        std::uint32_t expected = 0;
        simt::atomic_ref<std::uint32_t> ref(slot);
        if (ref.load(std::memory_order_relaxed) == 0 && ref.compare_exchange(expected, entry(h, f), std::memory_order_release)) {
          return;
        }
      }
      header_of(index).fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Removes key -> frame. The caller owns the frame (claimed, or filling and failed), so nobody else removes it.
  GPUFS_DEVICE void erase(page_key key, frame_index f) const {
    const std::uint64_t h = hash(key);
    const std::uint32_t wanted = entry(h, f);
    std::uint32_t index = home(h);
    for (std::uint32_t probes = 0; probes <= storage_.bucket_mask; ++probes) {
      for (std::uint32_t& slot : storage_.buckets[index].slots) {
        simt::atomic_ref<std::uint32_t> ref(slot);
        if (ref.load(std::memory_order_relaxed) == wanted) {
          ref.store(0, std::memory_order_release);
          for (std::uint32_t i = home(h); i != index; i = (i + 1) & storage_.bucket_mask) {
            header_of(i).fetch_sub(1, std::memory_order_release);  // as the slot: who looks no further may go by this
          }
          return;
        }
      }
      index = (index + 1) & storage_.bucket_mask;
    }
  }

 private:
  static constexpr std::uint32_t lock_bit = 1u << 31;
  static constexpr std::uint32_t passed_mask = lock_bit - 1;

  // splitmix64's finalizer: a bijection, so distinct keys stay distinct.
  GPUFS_DEVICE static std::uint64_t hash(page_key key) {
    std::uint64_t x = static_cast<std::uint64_t>(key);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  GPUFS_DEVICE std::uint32_t home(std::uint64_t h) const { return static_cast<std::uint32_t>(h) & storage_.bucket_mask; }
  GPUFS_DEVICE std::uint32_t tag(std::uint64_t h) const { return static_cast<std::uint32_t>(h >> 32) >> storage_.frame_bits; }
  GPUFS_DEVICE std::uint32_t entry(std::uint64_t h, frame_index f) const {
    return (tag(h) << storage_.frame_bits) | (static_cast<std::uint32_t>(f) + 1);
  }
  // Of a slot that may be `key`'s, its frame; of others, and of empty ones, a number beyond all frames.
  GPUFS_DEVICE std::uint32_t frame_of(page_key key, std::uint32_t slot) const { return slot - entry(hash(key), frame_index{0}); }
  GPUFS_DEVICE bool is_match(page_key key, std::uint32_t slot) const {
    return frame_of(key, slot) < (1u << storage_.frame_bits) - 1;
  }
  GPUFS_DEVICE simt::atomic_ref<std::uint32_t> header_of(std::uint32_t index) const {
    return simt::atomic_ref<std::uint32_t>(storage_.headers[index]);
  }

  table_storage storage_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
