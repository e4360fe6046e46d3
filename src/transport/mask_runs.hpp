// SPDX-License-Identifier: Apache-2.0
// The mask of written bytes, one bit for each byte, as the host reads it.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace gpufs::transport {

// Calls run(begin, end) for each run of set bits in [begin, end), in order, until a call returns an error. Returns that error, or
// 0.
template <class Run>
int each_run(std::span<const std::uint32_t> mask, std::uint32_t begin, std::uint32_t end, Run run) {
  // The first bit from `at` on that is set or, if `inverted` is ~0u, clear; `end` if there is none.
  const auto next = [&](std::uint32_t at, std::uint32_t inverted) {
    while (at < end) {
      const std::uint32_t word = (mask[at / 32] ^ inverted) & ~0u << at % 32;
      if (word != 0) return std::min(end, at / 32 * 32 + static_cast<std::uint32_t>(std::countr_zero(word)));
      at = (at / 32 + 1) * 32;
    }
    return end;
  };
  for (std::uint32_t first = next(begin, 0), last = 0; first < end; first = next(last, 0)) {
    last = next(first, ~0u);
    if (const int error = run(first, last); error != 0) return error;
  }
  return 0;
}

}  // namespace gpufs::transport
