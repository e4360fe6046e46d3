// SPDX-License-Identifier: Apache-2.0
// How a launch runs: its geometry, and on the CPU machine its schedule.
#pragma once
#include <cstdint>
#include <stdexcept>

namespace gpufs::simt {

enum class block_order { in_order, reversed, random };

// The schedule of a launch on the CPU machine (CUDA ignores it). Every choice is drawn from the seed; with nthreads = 1 and
// no outside influence (host threads, clocks) a run repeats exactly.
struct cpu_schedule {
  std::uint64_t seed = 0;  // 0: GPUFS_SIMT_SEED, else one that the clock gave this process
  block_order order = block_order::in_order;
  unsigned resident_blocks = 0;  // at most so many blocks at once, all OS threads together; 0: four an OS thread
  unsigned nthreads = 0;         // OS threads; 0: GPUFS_SIMT_THREADS, else one a core. The calling thread is one of them
  unsigned switch_percent = 25;  // how often an atomic lets somebody else run (0: only now and then, so that spins end)
  std::uint64_t timeout_ns = 120'000'000'000;  // then the launch stops with an error; 0: never
};

struct launch_config {
  unsigned grid = 1;    // blocks, at least 1
  unsigned block = 32;  // threads a block: 32 .. 1024, a multiple of 32
  cpu_schedule schedule = {};
};

// A launch that was refused, could not run, or stopped. On the CPU machine the message names the lanes and the seed, and when
// kernel code threw, the exception thrown also derives from std::nested_exception, which holds the original.
class launch_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gpufs::simt
