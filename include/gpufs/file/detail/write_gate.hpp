// SPDX-License-Identifier: Apache-2.0
// The gate between those that write a file and those that cut it: many may write, or one may cut.
#pragma once
#include "gpufs/file/detail/file_table.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Bits of file_slot::writers above the number of writers. may_end_far: the file's end may move into the last quarter of the largest
// size, and every lane inside the gate has seen this bit (append.hpp).
inline constexpr std::uint32_t truncating = 1u << 31, may_end_far = 1u << 30;

// Called before a call changes bytes of a file. Waits while the file is being truncated. One lane calls. Returns the gate's word
// from before; if it has `truncating`, the gate did not open in time.
GPUFS_DEVICE std::uint32_t pass_gate(const file_mount& mount, std::uint32_t slot) {
  simt::atomic_ref<std::uint32_t> writers(file_table(mount).slot(slot).writers);
  const simt::deadline until(2 * mount.io_timeout_ns);
  simt::backoff pause;
  std::uint32_t seen = 0;
  while (((seen = writers.fetch_add(1, std::memory_order_acquire)) & truncating) != 0) {  // meets end_truncation
    writers.fetch_sub(1, std::memory_order_relaxed);
    while ((writers.load(std::memory_order_relaxed) & truncating) != 0) {
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
  simt::atomic_ref<std::uint32_t>(file_table(mount).slot(slot).writers).fetch_sub(1, std::memory_order_release);
}

// Makes new writers wait, and waits for the writers that are in a call now. One lane calls. False: -ETIMEDOUT.
GPUFS_DEVICE bool begin_truncation(const file_mount& mount, std::uint32_t slot) {
  simt::atomic_ref<std::uint32_t> writers(file_table(mount).slot(slot).writers);
  const simt::deadline until(2 * mount.io_timeout_ns);
  simt::backoff pause;
  while ((writers.fetch_or(truncating, std::memory_order_acquire) & truncating) != 0) {  // one truncation at a time
    if (until.expired()) return false;
    pause();
  }
  pause.reset();
  while ((writers.load(std::memory_order_acquire) & ~may_end_far) != truncating) {
    if (until.expired()) {
      writers.fetch_and(~truncating, std::memory_order_release);
      return false;
    }
    pause();
  }
  return true;
}
GPUFS_DEVICE void end_truncation(const file_mount& mount, std::uint32_t slot) {
  simt::atomic_ref<std::uint32_t>(file_table(mount).slot(slot).writers).fetch_and(~truncating, std::memory_order_release);
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
  simt::atomic_ref<std::uint32_t> writers(file_table(*mount).slot(slot).writers);
  if ((writers.load(std::memory_order_relaxed) & may_end_far) != 0) return true;
  if (!begin_truncation(*mount, slot)) return false;
  writers.fetch_or(may_end_far, std::memory_order_relaxed);
  end_truncation(*mount, slot);
  return true;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
