// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "gpufs/simt/schedule.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt::runtime {

void check_launch_config(const launch_config& config, unsigned max_threads) {
  if (config.grid == 0 || config.grid > 0x7fffffff) {
    throw launch_error("a grid has 1 to 2147483647 blocks, not " + std::to_string(config.grid));
  }
  if (config.block == 0 || config.block > max_block_threads || config.block % warp_lanes != 0) {
    throw launch_error("a block has 32 to 1024 threads, a multiple of 32, not " + std::to_string(config.block));
  }
  if (max_threads != 0 && config.block > max_threads) {
    throw launch_error("the kernel is compiled for blocks of at most " + std::to_string(max_threads) + " threads, not " +
                       std::to_string(config.block));
  }
}

}  // namespace gpufs::simt::runtime
