// SPDX-License-Identifier: Apache-2.0
// Reads and writes of files by all host threads at once. Host code.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/helper_threads.hpp"
#include "apps/par/pieces.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::par {

inline constexpr std::uint64_t copied_part_nbytes = 1 << 20;
inline constexpr unsigned most_threads = 16;

template <class Work>
void by_all_threads(std::size_t n, const Work& work) {
  parallel_for(std::min(most_threads, thread_count(0)), n, work, helper_threads::of_process());
}

// All of the ranges to memory, side by side. Throws what `from` throws.
inline void read_by_all(const bytes_from& from, std::span<const range> ranges, std::byte* to) {
  struct part {
    range of;
    std::byte* to;
  };
  std::vector<part> parts;
  for (const range& each : ranges) {
    for (std::uint64_t at = 0; at < each.nbytes; at += copied_part_nbytes) {
      const std::uint64_t n = std::min(copied_part_nbytes, each.nbytes - at);
      parts.push_back({{each.offset + at, n}, to});
      to += n;
    }
  }
  by_all_threads(parts.size(), [&](std::size_t i) { from.read(parts[i].to, parts[i].of.nbytes, parts[i].of.offset); });
}

inline void write_by_all(const bytes_to& to, const std::byte* from, std::uint64_t nbytes, std::uint64_t offset) {
  by_all_threads((nbytes + copied_part_nbytes - 1) / copied_part_nbytes, [&](std::size_t i) {
    const std::uint64_t at = i * copied_part_nbytes;
    to.write(from + at, std::min(copied_part_nbytes, nbytes - at), offset + at);
  });
}

}  // namespace gpufs::apps::par
