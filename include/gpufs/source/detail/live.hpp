// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/source/piece.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

struct live {
  // After begin_fill, where it is a page for the cache.
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    // Meets the fence of ftruncate: either we see its size, or it sees that the frame is filling, and waits for us.
    simt::fence(std::memory_order_seq_cst, simt::scope::device);
    // A reader that sees a size sees the bytes up to it: meets the releases of those that raise it.
    const auto size = static_cast<std::uint64_t>(simt::atomic_ref<std::int64_t>(of.bytes->nbytes).load(std::memory_order_acquire));
    const std::uint64_t host = simt::atomic_ref<std::uint64_t>(of.bytes->host_nbytes).load(std::memory_order_relaxed);
    const std::uint32_t nbytes = nbytes_before(size < host ? size : host, offset, wanted);
    if (nbytes == 0) return {place::zeros, 0, 0};
    return find_to_write(of, offset, nbytes);
  }

  GPUFS_DEVICE static piece find_to_write(const opened_file& of, std::uint64_t offset, std::uint32_t nbytes) {
    const std::uint64_t mapped = simt::atomic_ref<std::uint64_t>(of.bytes->mapped_nbytes).load(std::memory_order_relaxed);
    return {offset + nbytes <= mapped ? place::host_memory : place::host, nbytes, of.bytes->base + offset};
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
