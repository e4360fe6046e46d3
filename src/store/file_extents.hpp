// SPDX-License-Identifier: Apache-2.0
// Where a file's bytes lie, as its file system says (FIEMAP).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "gpufs/names/words.hpp"

namespace gpufs::store {

// As many as an answer has at most.
inline constexpr std::size_t most_extents = 1024;

// What open_file::extents of an open descriptor gives. What the page cache has not written yet gets its place first.
std::int64_t extents_of(int fd, std::int64_t* offset, std::span<extent> out);

}  // namespace gpufs::store
