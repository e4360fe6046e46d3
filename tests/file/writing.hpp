// SPDX-License-Identifier: Apache-2.0
// What the tests of writing share.
#pragma once
#include <algorithm>

#include "file/script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint32_t page = 512;

inline mount_options writing(std::uint32_t nframes = 64) { return writing_options(page, nframes); }

// The bytes of `whole` with `part` at `offset`.
inline void put(std::vector<std::byte>& whole, const std::vector<std::byte>& part, std::size_t offset) {
  whole.resize(std::max(whole.size(), offset + part.size()));
  std::copy(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(offset));
}

inline void expect_all_written(const mount& m) {
  const mount_counters now = m.counters();
  EXPECT_EQ(now.unwritten_pages, 0u);
  EXPECT_EQ(now.dirty_frames, 0u);
  EXPECT_EQ(now.pins, 0u);
  EXPECT_EQ(now.write_errors, 0u);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
