// SPDX-License-Identifier: Apache-2.0
// Lays out a page cache in device memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs::cache {

struct cache_options {
  std::uint32_t nframes;          // 1 to 2^28
  std::uint32_t page_nbytes;      // a power of two, 512 or more
  std::uint32_t nrings;           // 1 to nframes
  bool writable;                  // pages may be written: an eighth of the frames' memory more, and 20 bytes a frame
  std::span<std::byte> frames{};  // the device's, and the caller's: for the frames, frames_nbytes() of it; empty: in `memory`
};

// The memory that frames take, with their words, wherever it begins; and how many frames so much memory has room for.
std::uint64_t frames_nbytes(std::uint32_t nframes, std::uint32_t page_nbytes);
std::uint32_t frames_within(std::uint64_t nbytes, std::uint32_t page_nbytes);

// An empty cache, in `memory`, with its copy there.
cache_layout make_layout(simt::device_memory& memory, const cache_options& options);
// Of a cache of so many frames.
touched_storage make_touched(simt::device_memory& memory, std::uint32_t nframes);

}  // namespace gpufs::cache
