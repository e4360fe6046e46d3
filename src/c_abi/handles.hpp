// SPDX-License-Identifier: Apache-2.0
// The contents of a gpufs_mount's 64 bits, for the code that makes it (src/c_abi/host.cpp) and the code that gets it (verbs.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/pointer/detail/mount_layout.hpp"
#include "gpufs/transport/detail/wire.hpp"
#include "gpufs/version.hpp"

namespace gpufs::c_abi {

// The low bits are the address of the mount_layout: no device or process has more address bits.
inline constexpr unsigned address_bits = 57;

// Seven bits, never 0, that stand for this gpufs and this machine. Kernels read what the host has laid out, so both must be of one
// build. One version has one layout; while a version is being made, the sizes of shared structs tell most of its states apart.
constexpr std::uint64_t stamp_of(bool is_cuda) {
  std::uint64_t hash = 0;
  for (const std::uint64_t part :
       {std::uint64_t{GPUFS_VERSION_MAJOR}, std::uint64_t{GPUFS_VERSION_MINOR}, std::uint64_t{GPUFS_VERSION_PATCH},
        std::uint64_t{sizeof(mount_layout)}, std::uint64_t{sizeof(file_mount)}, std::uint64_t{sizeof(cache::cache_layout)},
        std::uint64_t{sizeof(transport::transport_layout)}, std::uint64_t{sizeof(pointer_layout)},
        std::uint64_t{sizeof(file_block)}, std::uint64_t{sizeof(writable_block)}, std::uint64_t{sizeof(transport::request)},
        std::uint64_t{sizeof(transport::reply)}}) {
    hash = (hash ^ part) * 0x100000001b3u;
  }
  return (hash % 63 + 1) << 1 | (is_cuda ? 1 : 0);
}

inline constexpr std::uint64_t cpu_stamp = stamp_of(false), cuda_stamp = stamp_of(true);

constexpr std::uint64_t handle_of(std::uint64_t address, bool is_cuda) {
  return address | (is_cuda ? cuda_stamp : cpu_stamp) << address_bits;
}

}  // namespace gpufs::c_abi
