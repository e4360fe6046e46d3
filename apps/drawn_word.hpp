// SPDX-License-Identifier: Apache-2.0
// Random words that any number of threads draws alike. For host code and kernels.
#pragma once
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs::apps {
inline namespace GPUFS_MACHINE {

// Word i of a generator that has no state: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of a seed.
GPUFS_HOST_DEVICE std::uint64_t drawn_word(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps
