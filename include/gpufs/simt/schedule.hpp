// SPDX-License-Identifier: Apache-2.0
// How a launch runs: its geometry, and on the CPU machine its schedule.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace gpufs::simt {

enum class block_order { in_order, reversed, random };

// Which lane runs next on the CPU machine.
enum class schedule_policy {
  random,  // at switch_percent of the atomics another lane runs, drawn anew each time
  // PCT (Burckhardt et al., ASPLOS 2010, section 2.3): each lane has a drawn priority, and the lane with the highest priority that
  // does not wait runs. At depth - 1 drawn points the running lane falls below all others. A lane that backs off is passed over
  // until all others wait or such a point comes, so that waits end.
  priorities
};

// A point where a schedule by priorities does not go on with the highest lane.
struct schedule_point {
  std::uint64_t step = 0;  // preemption points that the launch passes before it; rounds of waiting that write nothing do not count
  std::uint32_t priority = 0;  // the running lane's new priority, lower than any drawn one; 0: a delay
  std::uint32_t nwrites = 0;   // of a delay: the lane is held back until others have written so many atomics, or all wait
};

// A schedule by priorities, recorded or given.
struct schedule_trace {
  std::vector<schedule_point> points;  // by step. in: the points to use; out: the points that were met
  bool given = false;                  // in: use `points`, draw none
  std::uint64_t nsteps = 0;            // out
  std::uint64_t nswitches = 0;         // out: from one lane to another
  std::uint64_t order = 0;             // out: a hash of which lanes ran, and for how many steps; equal runs have equal ones
};

// The schedule of a launch on the CPU machine (CUDA ignores it). Every choice is drawn from the seed; with nthreads = 1 and
// no outside influence (host threads, clocks) a run repeats exactly.
struct cpu_schedule {
  std::uint64_t seed = 0;  // 0: GPUFS_SIMT_SEED, else a seed that the clock gave this process
  block_order order = block_order::in_order;
  unsigned resident_blocks = 0;  // at most so many blocks at once, in all OS threads together; 0: four for each OS thread
  unsigned nthreads = 0;         // OS threads; 0: GPUFS_SIMT_THREADS, else one for each core. The calling thread is one of them
  unsigned switch_percent = 25;  // how often an atomic lets another lane run (0: only now and then, so that spins end)
  bool whole_warps = false;      // lanes_together() waits for all of the warp that come there, as on a GPU; else half of the time
  schedule_policy policy = schedule_policy::random;
  unsigned depth = 3;               // of priorities: finds mistakes that need so many orderings
  std::uint64_t nsteps = 0;         // of priorities: about how many preemption points the launch passes; 0: the seed guesses
  unsigned delay_percent = 0;       // how often a lane that writes an atomic is held back, so that others see its write for long
  schedule_trace* trace = nullptr;  // of priorities, with nthreads = 1; must outlive the launch
  std::uint64_t timeout_ns = 120'000'000'000;  // then the launch stops with an error; 0: never
};

struct launch_config {
  unsigned grid = 1;    // blocks, at least 1
  unsigned block = 32;  // threads a block: 32 .. 1024, a multiple of 32
  cpu_schedule schedule = {};
  // All blocks run at once, so that they may wait for each other (simt/grid.hpp); refused if so many do not fit.
  bool cooperative = false;
};

// The launch was refused, could not run, or stopped. On the CPU machine the message names the lanes and the seed. If kernel code
// threw, the launch_error also derives from std::nested_exception, which holds the original.
class launch_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace runtime {
// Throws launch_error for a geometry that no machine runs, and for blocks of more than max_threads (0: any).
void check_launch_config(const launch_config& config, unsigned max_threads = 0);
}  // namespace runtime

}  // namespace gpufs::simt
