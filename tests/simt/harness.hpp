// SPDX-License-Identifier: Apache-2.0
// What tests of the machine share.
#pragma once
#include <cstdint>

#include "gpufs/simt/device_array.hpp"

namespace gpufs::simt::test {
inline namespace GPUFS_MACHINE {

#if defined(__SANITIZE_THREAD__)
inline constexpr unsigned effort = 1;  // ThreadSanitizer makes a switch a hundred times slower
#else
inline constexpr unsigned effort = 20;
#endif

// Test data that looks like nothing in particular.
GPUFS_HOST_DEVICE std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt::test
