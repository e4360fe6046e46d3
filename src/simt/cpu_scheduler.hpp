// SPDX-License-Identifier: Apache-2.0
// The CPU machine's scheduler. An OS thread (worker) hosts some blocks and switches between their lanes, which are fibers. A lane
// that waits leaves the run queue, and the lane that ends the wait puts it back. Flat arrays, nothing allocated while lanes run.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "fiber.hpp"
#include "gpufs/simt/detail/cpu_machine.hpp"
#include "gpufs/simt/schedule.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt::runtime {

struct worker;
struct block_state;

enum class lane_state : std::uint8_t { fresh, runnable, backing_off, in_warp, in_block, exited };

struct lane : cpu_lane {
  fiber stack;
  worker* owner = nullptr;
  block_state* home = nullptr;
  lane_state state = lane_state::exited;
  bool progress = false;   // the lane has written something atomically since it last backed off
  bool unwinding = false;  // it leaves by lane_stopped: nothing waits or throws any more
  bool abandoned = false;  // it could not be unwound, and never runs again
  std::uint32_t unwinding_steps = 0;
  // For schedules that are explored.
  std::uint64_t priority = 0;
  std::uint64_t held_until = 0;  // until its OS thread has made this many writes
  std::uint32_t nawake = 0;      // steps since it last backed off
  // The collective that it waits in (in_warp, in_block).
  cpu_op op = cpu_op::sync;
  unsigned nwords = 0;
  std::uint32_t mask = 0;
  std::uint32_t arg = 0;
  std::uint32_t converged = 0;  // its group in cpu_converge; 0: not closed yet
  const void* site = nullptr;   // the site of that call
  const std::uint64_t* value = nullptr;
  std::uint64_t* result = nullptr;
};

struct warp_state {
  std::uint32_t waiting = 0;   // lanes in a warp collective
  std::uint32_t wanted = 0;    // lanes that these wait for, themselves included
  std::uint32_t in_block = 0;  // lanes in a block collective
  std::uint32_t exited = 0;
  std::uint32_t converging = 0;  // lanes in cpu_converge whose group is not closed yet
  bool patient = false;          // these lanes wait longer, mostly until no other lane can run, so that warps are often whole
};

struct shared_object {
  const void* key;
  void* address;
};

inline constexpr std::size_t max_shared_nbytes = std::size_t{48} * 1024;  // what a CUDA kernel may declare
inline constexpr unsigned max_shared_objects = 64;

struct block_state {
  bool resident = false;
  std::uint32_t rank = 0;
  std::uint32_t nthreads = 0;
  std::uint32_t nexited = 0;
  std::uint32_t narrived = 0;    // at the block collective
  std::uint32_t generation = 0;  // how many blocks have used this place
  char ended[2];                 // ThreadSanitizer: orders after the lanes of an even and an odd generation
  lane** lanes = nullptr;        // by thread rank
  warp_state warps[max_block_threads / warp_lanes];
  shared_object shared[max_shared_objects];
  unsigned nshared = 0;
  std::size_t shared_nbytes = 0;
  std::byte* shared_memory = nullptr;
};

// One launch, shared by its workers.
struct launch_state {
  const launch_config* config = nullptr;
  void (*body)(const void*) = nullptr;
  const void* kernel = nullptr;
  std::uint64_t seed = 0;
  bool seed_given = false;
  int device = 0;
  unsigned nworkers = 0;
  unsigned resident = 0;
  std::uint64_t start_ns = 0;
  char started, ended;                   // ThreadSanitizer: orders after the work before the lanes, and after the lanes
  const std::uint32_t* order = nullptr;  // the blocks in the order in which they start; nullptr: by rank
  std::uint32_t countdowns[256];         // equally likely samples of the distance between two switches
  // Relaxed atomics through builtins: std::atomic's members would be instrumented inside the scheduler.
  std::uint64_t next_block = 0;
  std::uint32_t nended = 0;        // how many blocks have ended
  std::uint32_t grid_arrived = 0;  // of a cooperative launch: blocks at the grid barrier
  std::uint64_t grid_turn = 0;     // how many grid barriers all blocks have passed
  char grid_barrier;               // ThreadSanitizer: orders after the work before the barrier
  bool stopping = false;
  std::mutex mutex;
  std::string error;  // of the first failure
  std::exception_ptr exception;
};

// Thrown in a lane that must end because its launch stops. Not a std::exception, so that kernels do not catch it by accident.
struct lane_stopped {};

struct dice {  // splitmix64
  std::uint64_t state = 0;
  std::uint64_t operator()();
  unsigned below(unsigned n);
};

// A schedule that is explored: by priorities, with delays, or both. Holds the points to use, by step, and the points that were met.
inline constexpr std::size_t max_points = 1024;
struct exploration {
  bool by_priority = false;
  bool delays = false;            // delays are drawn
  bool writes_count = false;      // by_priority or delays: writes are counted
  std::uint32_t delay_gaps[256];  // samples, like launch_state::countdowns
  std::uint32_t until_delay = 0;  // how many writes until the next delay
  dice random;                    // not the worker's, so that given points leave the priorities unchanged
  std::uint64_t nwrites = 0;
  unsigned nquiet = 0;  // choices of a lane since the last write
  const schedule_point* next = nullptr;
  const schedule_point* end = nullptr;
  schedule_point* met = nullptr;
  std::size_t nmet = 0;
  std::uint64_t nsteps = 0, nswitches = 0, order = 0;
  lane* running = nullptr;     // the lane whose steps are not in nsteps yet
  std::uint32_t granted = 0;   // its countdown when it was last counted
  std::uint64_t resumed = 0;   // nsteps when it began to run
  const lane* last = nullptr;  // the lane that ran before
};

struct worker {
  launch_state* launch = nullptr;
  fiber main;
  unsigned index = 0;
  dice random;
  bool stopping = false;
  unsigned idle_rounds = 0;
  bool converging = false;  // a sleeping lane only waits for others to come to lanes_together(): no reason to nap
  unsigned until_clock = 0;
  lane** ready = nullptr;
  unsigned nready = 0;
  lane** sleeping = nullptr;
  unsigned nsleeping = 0;
  lane** idle = nullptr;  // fibers that no lane uses
  unsigned nidle = 0;
  lane** held = nullptr;  // delayed lanes
  unsigned nheld = 0;
  exploration explore;
  block_state* blocks = nullptr;
  unsigned nblocks = 0;
  unsigned nresident = 0;

  std::uint32_t draw_countdown();
  void make_ready(lane* l);
  bool start_block(block_state& block);
  void retire_block(block_state& block);
  lane* next();  // the lane to run now; nullptr: the worker's main
  void run();    // on main: runs all of this worker's blocks
  void nap();
  bool out_of_time();
  void stop(std::string message);  // fails the launch; message: what happened

  // cpu_priorities.cpp
  void count_steps();        // of the running lane, which is about to leave
  void count_last_steps();   // the block may end, and the lane be used for another
  lane* take_highest();      // of the ready lanes
  void meet_point(lane* l);  // the lane's countdown has ended: puts it into its queue
  void hold(lane* l, std::uint32_t nwrites);
  bool release_held(bool all);
  bool nobody_gets_on();  // except perhaps held lanes
  void wake_sleeping();
};

// Lets others run until `self` is runnable again. `self` is in a queue, or another lane will put it into one. Throws lane_stopped.
void leave(lane* self);
// Called when the launch has stopped, and this lane learns of it in some operation. Throws lane_stopped, or returns if the lane is
// unwinding already (an operation in a destructor).
void check_stopped(lane* self);

// cpu_fibers.cpp: stacks and their fibers are kept for the life of the process.
void take_lanes(lane** lanes, unsigned count);
void give_lanes(lane** lanes, unsigned count);

// cpu_calls.cpp: calls that a group's lanes make together
unsigned argument_on_stack(const lane& l, const cpu_call& call);  // the first that is on the lane's own stack; call.nargs: none
std::string describe_own_memory(const lane& l, const cpu_call& call, unsigned argument);
unsigned argument_of_other_device(const lane& l, const cpu_call& call);  // the first in another device's memory; call.nargs: none
std::string describe_other_device(const lane& l, const cpu_call& call, unsigned argument);
// Whether all lanes that wait for the same others as `self` are in the same call of their group, or all in none.
bool agree_on_call(const lane& self, lane* const* lanes, unsigned count);
std::string describe_calls(const lane& self, lane* const* lanes, unsigned count);  // how they disagree
std::string call_text(const lane& l);                                              // " (gpufs::pread)", or nothing

// cpu_report.cpp
std::string lane_name(const lane& l);
std::string short_name(const lane& l, const lane& beside);  // how a sentence about `beside` names another lane of its block
std::string lane_list(std::uint32_t mask);                  // "1, 2, 5 - 7"
std::string describe_wait(const lane& l);
std::string describe_waiters_for(const lane& l);  // names a lane in the block that waits for this lane
std::string describe_worker(const worker& w);     // which lanes wait for what
std::string how_to_repeat(const launch_state& launch);

GPUFS_SANITIZER_INLINE lane* this_lane() { return static_cast<lane*>(cpu_current); }

}  // namespace gpufs::simt::runtime
