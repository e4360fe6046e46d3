// SPDX-License-Identifier: Apache-2.0
// What is refused when it is compiled, a CASE each. 0 and 3 must compile.
#if CASE != 4
#define GPUFS_FOR_CUDA 1  // as gpufs::cuda does for C++ sources
#endif
#if CASE == 3
#define GPUFS_CPU_KERNELS 1
#endif
#include "gpufs/gpufs.hpp"

struct kernel {
  GPUFS_DEVICE void operator()() const { gpufs::this_warp().sync(); }
};

std::uint64_t host_only(const gpufs::mount& fs) { return fs.counters().hits; }
#if CASE == 1 || CASE >= 3
void run() { gpufs::simt::launch({.grid = 1, .block = 32}, kernel{}); }
#elif CASE == 2
void run(const gpufs::simt::stream& on) { gpufs::simt::launch<128>({.grid = 1, .block = 32}, kernel{}, on); }
#endif
