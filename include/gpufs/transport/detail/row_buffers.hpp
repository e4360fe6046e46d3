// SPDX-License-Identifier: Apache-2.0
// The buffers into which host threads gather rows for kernels (opcode::read_rows). They lie in pinned memory, and are larger than a
// request's payload, so that the request costs little beside its rows. In some rings each slot has one. Host and kernels use them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs::transport {

// A buffer begins with the list of its rows. The device writes there each row's offset in the file, in bytes. If the answer says
// that rows failed, the host has put 0 or a negative errno in place of each offset. The rows follow the list, one behind the other.
struct row_buffers {
  static constexpr std::uint32_t most_rows = 512;
  static constexpr std::uint32_t list_nbytes = most_rows * sizeof(std::uint64_t);

  std::byte* memory = nullptr;  // the same address for host and kernels; null: there are no buffers
  std::uint32_t nbytes = 0;     // of rows in a buffer, a multiple of 512
  std::uint32_t nslots = 0;     // slots of a ring, a power of two
  // The rings ring_begin + i * ring_step for i below nrings have buffers.
  std::uint32_t nrings = 0, ring_step = 1, ring_begin = 0;

  GPUFS_HOST_DEVICE std::uint32_t count() const { return nrings * nslots; }
  // Whether slot `index` of all rings has a buffer.
  GPUFS_HOST_DEVICE bool has(std::uint32_t index) const {
    const std::uint32_t ring = nslots != 0 ? index / nslots : 0;
    return memory != nullptr && ring >= ring_begin && (ring - ring_begin) % ring_step == 0 &&
           (ring - ring_begin) / ring_step < nrings;
  }
  GPUFS_HOST_DEVICE std::uint64_t* list(std::uint32_t index) const { return reinterpret_cast<std::uint64_t*>(begin(index)); }
  GPUFS_HOST_DEVICE std::byte* rows(std::uint32_t index) const { return begin(index) + list_nbytes; }
  // How many rows of this size one request may ask for.
  GPUFS_HOST_DEVICE std::uint32_t fitting(std::uint64_t row_nbytes) const {
    if (memory == nullptr || row_nbytes == 0 || row_nbytes > nbytes) return 0;
    const std::uint64_t n = nbytes / row_nbytes;
    return n < most_rows ? static_cast<std::uint32_t>(n) : most_rows;
  }

 private:
  GPUFS_HOST_DEVICE std::byte* begin(std::uint32_t index) const {
    const std::uint32_t ring = (index / nslots - ring_begin) / ring_step;
    return memory + (std::size_t{ring} * nslots + index % nslots) * (list_nbytes + nbytes);
  }
};
static_assert(sizeof(row_buffers) == 32 && offsetof(row_buffers, memory) == 0 && offsetof(row_buffers, nbytes) == 8);
static_assert(offsetof(row_buffers, nslots) == 12 && offsetof(row_buffers, nrings) == 16 && offsetof(row_buffers, ring_step) == 20);
static_assert(offsetof(row_buffers, ring_begin) == 24);

}  // namespace gpufs::transport
