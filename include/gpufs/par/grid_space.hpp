// SPDX-License-Identifier: Apache-2.0
// The memory that gather and scatter by a grid need. For host code, which allocates it, and kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs {

// Device memory as words of 4 bytes: one a row to gather, two to scatter, and a few thousand. Whatever is in it; kernels that use
// it by turns, or one grid whose calls follow each other, may share it.
struct grid_space {
  std::uint32_t* words;
  std::uint64_t nwords;  // at least nwords_for(n), or nwords_to_scatter(n)

  static constexpr std::uint32_t nwindows = 1024;
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nwords_for(std::uint64_t n) { return n + nwindows + 9; }
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nwords_to_scatter(std::uint64_t n) { return nwords_for(2 * n); }
};
static_assert(sizeof(grid_space) == 16 && offsetof(grid_space, words) == 0 && offsetof(grid_space, nwords) == 8);

}  // namespace gpufs
