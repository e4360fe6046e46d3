// SPDX-License-Identifier: Apache-2.0
#include "cpu_scheduler.hpp"

#include <sched.h>
#include <ctime>
#include <utility>

namespace gpufs::simt::runtime {
namespace {

constexpr unsigned clock_interval = 512;  // switches between looks at the clock

}  // namespace

GPUFS_NO_TSAN std::uint64_t dice::operator()() {
  std::uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

GPUFS_NO_TSAN unsigned dice::below(unsigned n) { return static_cast<unsigned>((((*this)() >> 32) * n) >> 32); }

GPUFS_NO_TSAN std::uint32_t worker::draw_countdown() { return launch->countdowns[random() & 255]; }

GPUFS_NO_TSAN void worker::make_ready(lane* l) {
  l->state = lane_state::runnable;
  ready[nready++] = l;
}

// Starts the next block of the launch; false if there is none.
GPUFS_NO_TSAN bool worker::start_block(block_state& block) {
  const launch_config& config = *launch->config;
  const std::uint64_t turn = __atomic_fetch_add(&launch->next_block, 1, __ATOMIC_RELAXED);
  if (turn >= config.grid) return false;
  block.resident = true;
  ++block.generation;
  block.rank = launch->order == nullptr ? static_cast<std::uint32_t>(turn) : launch->order[turn];
  block.nthreads = config.block;
  block.nexited = block.narrived = 0;
  block.nshared = 0;
  block.shared_nbytes = 0;
  sanitizer::poison(block.shared_memory, max_shared_nbytes);
  for (unsigned i = 0; i < config.block / warp_lanes; ++i) {
    warp_state& w = block.warps[i];
    w.waiting = w.wanted = w.in_block = w.exited = w.converging = 0;
  }
  for (unsigned i = 0; i < config.block; ++i) {
    lane* l = idle[--nidle];
    block.lanes[i] = l;
    l->lane_id = i % warp_lanes;
    l->warp_rank = i / warp_lanes;
    l->thread_rank = i;
    l->block_size = config.block;
    l->block_rank = block.rank;
    l->grid_size = config.grid;
    l->processor = index;
    l->device = launch->device;
    l->countdown = draw_countdown();
    l->progress = false;
    l->shared_begin = reinterpret_cast<std::uintptr_t>(block.shared_memory);
    l->shared_nbytes = max_shared_nbytes;
    l->stack_begin = reinterpret_cast<std::uintptr_t>(l->stack.stack_bottom);
    l->cpu_lane::stack_nbytes = l->stack.stack_nbytes;
    l->owner = this;
    l->home = &block;
    l->unwinding = false;
    l->unwinding_steps = 0;
    l->tells_writes = true;
    l->nline_words = 0;
    l->call = nullptr;
    l->nawake = 0;
    if (explore.by_priority) l->priority = random() | std::uint64_t{1} << 63;
    make_ready(l);
    l->state = lane_state::fresh;
  }
  ++nresident;
  idle_rounds = 0;
  return true;
}

GPUFS_NO_TSAN void worker::retire_block(block_state& block) {
  block.resident = false;
  --nresident;
  __atomic_add_fetch(&launch->nended, 1, __ATOMIC_RELEASE);
  for (unsigned i = 0; i < block.nthreads; ++i) {
    if (!block.lanes[i]->abandoned) idle[nidle++] = block.lanes[i];
  }
  sanitizer::unpoison(block.shared_memory, max_shared_nbytes);
  if (!stopping) start_block(block);
}

// Called when all lanes here back off: lets the threads run for which they wait. Naps stay short while lanes make progress.
GPUFS_NO_TSAN void worker::nap() {
  if (++idle_rounds < 32) {
    ::sched_yield();
  } else {
    const timespec t{0, idle_rounds < 256 ? 10'000 : 50'000};
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
  }
}

GPUFS_NO_TSAN bool worker::out_of_time() {
  const std::uint64_t timeout_ns = launch->config->schedule.timeout_ns;
  return timeout_ns != 0 && cpu_clock_ns() - launch->start_ns >= timeout_ns;
}

void worker::stop(std::string message) {
  stopping = true;
  {
    const std::lock_guard lock(launch->mutex);
    if (launch->error.empty()) launch->error = std::move(message);
  }
  __atomic_store_n(&launch->stopping, true, __ATOMIC_RELAXED);
  sanitizer::release(&launch->ended);  // this lane may have done so already, when it ended
}

GPUFS_NO_TSAN lane* worker::next() {
  if (explore.by_priority) count_steps();
  for (;;) {
    if (stopping || __atomic_load_n(&launch->stopping, __ATOMIC_RELAXED)) {
      stopping = true;  // one lane after the other comes back to find this out
      for (unsigned b = 0; b < nblocks; ++b) {
        if (!blocks[b].resident) continue;
        for (unsigned i = 0; i < blocks[b].nthreads; ++i) {
          lane* l = blocks[b].lanes[i];
          if (l->state != lane_state::exited) return l;
        }
      }
      return nullptr;
    }
    if (--until_clock == 0) {
      until_clock = clock_interval;
      if (out_of_time()) {
        stop("the launch ran into its deadline (launch_config::schedule.timeout_ns); " + describe_worker(*this));
        continue;
      }
    }
    if (nheld != 0 && nobody_gets_on()) release_held(true);
    if (explore.by_priority && nready != 0) return take_highest();
    // Lanes that back off come last, but now and then first: others may spin on them without backing off.
    if (nready != 0 && (nsleeping == 0 || (random() & 7) != 0)) {
      const unsigned i = random.below(nready);
      lane* l = ready[i];
      ready[i] = ready[--nready];
      if (l->state == lane_state::backing_off) l->state = lane_state::runnable;
      return l;
    }
    if (nready != 0) {
      const unsigned i = random.below(nsleeping);
      lane* l = sleeping[i];
      sleeping[i] = sleeping[--nsleeping];
      l->state = lane_state::runnable;
      return l;
    }
    if (nsleeping != 0) {
      if (!converging && nheld == 0) nap();
      converging = false;
      if (idle_rounds >= 32 && out_of_time()) {
        stop("the launch ran into its deadline (launch_config::schedule.timeout_ns); " + describe_worker(*this));
        continue;
      }
      wake_sleeping();
      continue;
    }
    if (nresident == 0) return nullptr;
    stop("all lanes wait; " + describe_worker(*this));
  }
}

GPUFS_NO_TSAN void worker::run() {
  main.tsan = sanitizer::current_fiber();
  sanitizer::release(&launch->started);  // the OS thread has set up the thread-local storage that its lanes use
  until_clock = clock_interval;
  for (unsigned i = 0; i < nblocks; ++i) start_block(blocks[i]);
  cpu_lane* outside = cpu_current;
  while (lane* l = next()) {
    cpu_current = l;
    switch_fiber(main, l->stack);
  }
  cpu_current = outside;
}

GPUFS_NO_TSAN void leave(lane* self) {
  lane* l = self->owner->next();
  if (l != self) {
    cpu_current = l;
    switch_fiber(self->stack, l->stack);
  }
  if (self->owner->stopping) check_stopped(self);
}

}  // namespace gpufs::simt::runtime
