// SPDX-License-Identifier: Apache-2.0
// Words in pinned memory by which groups of a kernel, and the host, wait for each other.
#pragma once
#include <atomic>
#include <cstdint>

#include "file/harness.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// All lanes of a warp call: until the host or another group has set the word, or 20 s have passed.
GPUFS_DEVICE void wait_until_set(std::uint32_t* word) {
  const simt::deadline until(20'000'000'000);
  simt::backoff pause;
  // Meets the release stores of tell and tell_kernels.
  while (simt::this_warp().broadcast(
      simt::atomic_ref<std::uint32_t, simt::scope::system>(*word).load(std::memory_order_acquire) == 0 && !until.expired())) {
    pause();
  }
}
// All lanes of a warp call: sets a word for the host, or for another group.
GPUFS_DEVICE void tell(std::uint32_t* word) {
  const auto warp = simt::this_warp();
  warp.sync();
  // Meets the acquires of wait_until_set and is_set.
  if (warp.leader()) simt::atomic_ref<std::uint32_t, simt::scope::system>(*word).store(1, std::memory_order_release);
}
// The host's.
inline void tell_kernels(std::uint32_t* word) { std::atomic_ref(*word).store(1, std::memory_order_release); }
inline bool is_set(std::uint32_t* word) { return std::atomic_ref(*word).load(std::memory_order_acquire) != 0; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
