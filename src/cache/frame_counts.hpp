// SPDX-License-Identifier: Apache-2.0
// What host code counts of a page cache in device memory, while kernels may run.
#pragma once
#include <cstdint>

#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs::cache {

struct frame_counts {
  std::uint64_t pinned, free, dirty;  // frames; pinned by somebody, not only by the operation that fills it
  std::uint64_t pins;                 // of somebody
  std::uint64_t under_way;            // frames that operations fill
};
frame_counts count_frames(const simt::device_memory& memory, const cache_layout& cache);

}  // namespace gpufs::cache
