// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/source/piece.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

struct windows {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    return version_at(is_registered(of, offset) ? place::host_memory : place::host, of, offset, wanted);
  }

  // Whether the device may read the page at this offset.
  GPUFS_DEVICE static bool is_registered(const opened_file& of, std::uint64_t offset) {
    file_windows& all = *of.windows;
    simt::atomic_ref<std::uint64_t> base(all.pull_base);
    // The host writes these words one after another, and each write ends before the next begins. We read them in the opposite
    // order, so the words read in between belong to the mapping that both reads of pull_base name.
    if (base.load(std::memory_order_acquire) != of.base) return false;
    if (simt::atomic_ref<std::uint32_t>(all.handle).load(std::memory_order_acquire) != of.handle) return false;
    const std::uint32_t shift = simt::atomic_ref<std::uint32_t>(all.shift).load(std::memory_order_acquire);
    const std::uint64_t registered = simt::atomic_ref<std::uint64_t>(all.registered).load(std::memory_order_acquire);
    return base.load(std::memory_order_relaxed) == of.base && (registered >> (offset >> shift) & 1) != 0;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
