// SPDX-License-Identifier: Apache-2.0
// Where the words of open files lie in device memory: blocks of them, which become more as the mount's files do.
#pragma once
#include "gpufs/file/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

class file_blocks {
 public:
  GPUFS_DEVICE explicit file_blocks(const file_mount& mount) : mount_(mount) {}

  // For a slot that was handed out. Its block was made before that, so the word is constant.
  GPUFS_DEVICE file_block& of(std::uint32_t index) const {
    return *reinterpret_cast<file_block*>(mount_.files.blocks[index / block_slots]);
  }
  // For any slot number. Null: there is no such slot (yet). The acquire meets add's release.
  GPUFS_DEVICE file_block* find(std::uint32_t index) const {
    if (index >= mount_.files.nslots) return nullptr;
    return reinterpret_cast<file_block*>(word(index / block_slots).load(std::memory_order_acquire));
  }
  GPUFS_DEVICE file_slot* find_slot(std::uint32_t index) const {
    file_block* const block = find(index);
    return block == nullptr ? nullptr : &block->slots[index % block_slots];
  }

  GPUFS_DEVICE file_slot& slot(std::uint32_t index) const { return of(index).slots[index % block_slots]; }
  // This processor's copy of the slot's counters.
  GPUFS_DEVICE call_counters& counters(std::uint32_t index) const {
    return of(index).calls[simt::processor_id() % file_shards][index % block_slots];
  }
  // Only where the mount may write.
  GPUFS_DEVICE std::uint32_t& gate(std::uint32_t slot, std::uint32_t shard) const {
    return static_cast<writable_block&>(of(slot)).gates[shard][slot % block_slots];
  }
  // Only where the mount may write. One number (`place`) names a list, too.
  GPUFS_DEVICE cache::dirty_list& list(std::uint32_t slot, std::uint32_t i) const {
    return static_cast<writable_block&>(of(slot)).lists[slot % block_slots][i];
  }
  GPUFS_DEVICE cache::dirty_list& list(std::uint32_t place) const { return list(place / lists_per_slot, place % lists_per_slot); }

  // How many blocks the mount may have.
  GPUFS_DEVICE std::uint32_t most() const { return (mount_.files.nslots + block_slots - 1) / block_slots; }
  // How many blocks there are. Their slots are free to take: the acquire meets add's release.
  GPUFS_DEVICE std::uint32_t count() const { return 1 + more().load(std::memory_order_acquire); }
  // Whether some list of slots is not empty.
  GPUFS_DEVICE bool any_free() const {
    for (std::uint32_t i = 0; i < free_lists; ++i) {
      const std::uint64_t top = simt::atomic_ref<std::uint64_t>(mount_.files.free_slots[i].top).load(std::memory_order_relaxed);
      if (static_cast<std::uint32_t>(top) != 0) return true;
    }
    return false;
  }
  // Adds the next block, which the host has made at this address; its slots become free. The caller holds mount_words::extend_lock.
  GPUFS_DEVICE void add(std::uint64_t address) const {
    const std::uint32_t n = 1 + more().load(std::memory_order_relaxed), first = n * block_slots;
    word(n).store(address, std::memory_order_release);
    const std::uint32_t end = first + block_slots < mount_.files.nslots ? first + block_slots : mount_.files.nslots;
    for (std::uint32_t index = first; index < end && index < first + free_lists; ++index)
      push_slots(index, index + (end - 1 - index) / free_lists * free_lists);
    more().store(n, std::memory_order_release);
  }

  // Puts a chain of slots, from the first to the last, back into the first slot's list.
  GPUFS_DEVICE void push_slots(std::uint32_t first, std::uint32_t last) const {
    simt::atomic_ref<std::uint64_t> top(mount_.files.free_slots[first % free_lists].top);
    simt::atomic_ref<std::uint32_t> next(slot(last).next);
    std::uint64_t seen = top.load(std::memory_order_relaxed);
    for (;;) {
      next.store(static_cast<std::uint32_t>(seen), std::memory_order_relaxed);
      const std::uint64_t wanted = (((seen >> 32) + 1) << 32) | (first + 1);
      if (top.compare_exchange(seen, wanted, std::memory_order_acq_rel)) return;
    }
  }

 private:
  GPUFS_DEVICE simt::atomic_ref<std::uint64_t> word(std::uint32_t n) const {
    return simt::atomic_ref<std::uint64_t>(mount_.files.blocks[n]);
  }
  GPUFS_DEVICE simt::atomic_ref<std::uint32_t> more() const { return simt::atomic_ref<std::uint32_t>(mount_.words->more_blocks); }

  const file_mount& mount_;
};

// Whether a mount may write.
GPUFS_DEVICE bool is_writable(const file_mount& mount) { return mount.cache.dirty.masks != nullptr; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
