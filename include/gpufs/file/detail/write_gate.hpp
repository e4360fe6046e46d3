// SPDX-License-Identifier: Apache-2.0
// The gate between those that write a file and those that cut it: many may write, or one may cut.
#pragma once
#include "gpufs/file/detail/file_table.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Bits of a gate's word above the number of calls inside. may_end_far: the file's end may move into the last quarter of the largest
// size, and every lane inside the gate has seen this bit (append.hpp).
inline constexpr std::uint32_t truncating = 1u << 31, may_end_far = 1u << 30;

GPUFS_DEVICE simt::atomic_ref<std::uint32_t> gate_word(const file_mount& mount, std::uint32_t slot, std::uint32_t shard) {
  return simt::atomic_ref<std::uint32_t>(file_blocks(mount).gate(slot, shard));
}
// Which word a block's lanes use: the same one when a call begins and when it ends.
GPUFS_DEVICE std::uint32_t gate_shard() { return simt::block_rank() % gate_shards; }

// Called before a call changes bytes of a file. Waits while the file is being truncated. One lane calls. Returns the gate's word
// from before; if it has `truncating`, the gate did not open in time.
GPUFS_DEVICE std::uint32_t pass_gate(const file_mount& mount, std::uint32_t slot) {
  const auto gate = gate_word(mount, slot, gate_shard());
  const simt::deadline until(2 * mount.io_timeout_ns);
  simt::backoff pause;
  std::uint32_t seen = 0;
  while (((seen = gate.fetch_add(1, std::memory_order_acquire)) & truncating) != 0) {  // meets end_truncation
    gate.fetch_sub(1, std::memory_order_relaxed);
    while ((gate.load(std::memory_order_relaxed) & truncating) != 0) {
      if (until.expired()) return truncating;
      pause();
    }
  }
  return seen;
}
// The same. False: -ETIMEDOUT.
GPUFS_DEVICE bool begin_changes(const file_mount& mount, std::uint32_t slot) { return (pass_gate(mount, slot) & truncating) == 0; }
GPUFS_DEVICE void end_changes(const file_mount& mount, std::uint32_t slot) {
  // Meets begin_truncation's acquire.
  gate_word(mount, slot, gate_shard()).fetch_sub(1, std::memory_order_release);
}

GPUFS_DEVICE void end_truncation(const file_mount& mount, std::uint32_t slot) {
  // The first word comes last: it makes its holder the one that truncates.
  for (std::uint32_t shard = gate_shards; shard-- > 0;) {
    gate_word(mount, slot, shard).fetch_and(~truncating, std::memory_order_release);
  }
}
// Makes new writers wait, and waits for the writers that are in a call now. One lane calls. False: -ETIMEDOUT.
GPUFS_DEVICE bool begin_truncation(const file_mount& mount, std::uint32_t slot) {
  const simt::deadline until(2 * mount.io_timeout_ns);
  simt::backoff pause;
  const auto first = gate_word(mount, slot, 0);
  while ((first.fetch_or(truncating, std::memory_order_acquire) & truncating) != 0) {  // one truncation at a time
    if (until.expired()) return false;
    pause();
  }
  for (std::uint32_t shard = 1; shard < gate_shards; ++shard) {
    gate_word(mount, slot, shard).fetch_or(truncating, std::memory_order_relaxed);
  }
  pause.reset();
  for (std::uint32_t shard = 0; shard < gate_shards; ++shard) {
    // Meets end_changes' releases.
    while ((gate_word(mount, slot, shard).load(std::memory_order_acquire) & ~may_end_far) != truncating) {
      if (until.expired()) {
        end_truncation(mount, slot);
        return false;
      }
      pause();
    }
  }
  return true;
}

// The quarters of a file's page numbers.
inline constexpr std::uint64_t quarter_npages = std::uint64_t{1} << (cache::page_number_bits - 2);
// Whether bytes up to `end` lie in the last one in part.
GPUFS_DEVICE bool ends_far(const file_mount& mount, std::uint64_t end) {
  return end >> mount.cache.frames.page_shift >= 3 * quarter_npages;
}
// Called before the file's end moves there; the caller is not inside the gate. Waits as a truncation does, once per open file. One
// lane calls. False: -ETIMEDOUT.
inline GPUFS_DEVICE_COLD bool let_it_end_far(const file_mount* mount, std::uint32_t slot) {
  // The word that gets it last. The acquire meets the release below: a lane that sees the bit here sees it in each word.
  if ((gate_word(*mount, slot, gate_shards - 1).load(std::memory_order_acquire) & may_end_far) != 0) return true;
  if (!begin_truncation(*mount, slot)) return false;
  for (std::uint32_t shard = 0; shard < gate_shards; ++shard) {
    gate_word(*mount, slot, shard).fetch_or(may_end_far, std::memory_order_release);
  }
  end_truncation(*mount, slot);
  return true;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
