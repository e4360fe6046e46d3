// SPDX-License-Identifier: Apache-2.0
// The gate between those that write a file and those that cut it: many may write, or one may cut.
#pragma once
#include "gpufs/file/file_table.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

inline constexpr std::uint32_t truncating = 1u << 31;

// Before a call changes bytes of a file: waits while it is being truncated. One lane calls. False: -ETIMEDOUT.
GPUFS_DEVICE bool begin_changes(const file_mount& mount, std::uint32_t slot) {
  simt::atomic_ref<std::uint32_t> writers(file_table(mount).slot(slot).writers);
  const simt::deadline until(2 * mount.io_timeout_ns);
  simt::backoff pause;
  while ((writers.fetch_add(1, std::memory_order_acquire) & truncating) != 0) {  // meets end_truncation
    writers.fetch_sub(1, std::memory_order_relaxed);
    while ((writers.load(std::memory_order_relaxed) & truncating) != 0) {
      if (until.expired()) return false;
      pause();
    }
  }
  return true;
}
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
  while (writers.load(std::memory_order_acquire) != truncating) {
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

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
