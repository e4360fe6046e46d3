// SPDX-License-Identifier: Apache-2.0
// Types that both machines share.
#pragma once
#include <cstdint>

namespace gpufs::simt {

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned max_block_threads = 1024;

// Which threads take part in an atomic access or a fence: the threads of the block, of the device, or all (host threads too).
enum class scope { block, device, system };

struct alignas(16) vec16 {
  std::uint32_t word[4];
};

}  // namespace gpufs::simt
