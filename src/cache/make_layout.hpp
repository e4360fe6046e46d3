// SPDX-License-Identifier: Apache-2.0
// Lays out a page cache in device memory.
#pragma once
#include <cstdint>

#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs::cache {

struct cache_options {
  std::uint32_t nframes;      // 1 to 2^28
  std::uint32_t page_nbytes;  // a power of two, 512 or more
  std::uint32_t nrings;       // 1 to nframes
  bool writable;              // pages may be written: an eighth of the frames' memory more, and 20 bytes a frame
};

// An empty cache, in `memory`, with its copy there.
cache_layout make_layout(simt::device_memory& memory, const cache_options& options);
// Of a cache of so many frames.
touched_storage make_touched(simt::device_memory& memory, std::uint32_t nframes);

}  // namespace gpufs::cache
