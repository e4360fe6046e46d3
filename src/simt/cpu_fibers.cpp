// SPDX-License-Identifier: Apache-2.0
// The lanes' fibers: their stacks, what they run, and how they are unwound when a launch stops.
#include <sys/mman.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <typeinfo>
#include <vector>

#include "cpu_scheduler.hpp"

namespace gpufs::simt::runtime {
namespace {

constexpr std::size_t stack_nbytes = std::size_t{64} * 1024 * sanitizer::stack_factor;

// Never destroyed: fibers of the pool are suspended in the middle of their function.
struct pool {
  std::mutex mutex;
  std::vector<lane*> lanes;
};
pool& the_pool() {
  static pool* p = new pool;
  return *p;
}

// A lane that is unwinding is abandoned after this many steps (a destructor may spin on a word that nobody will write).
constexpr std::uint32_t max_unwinding_steps = 100'000;

// A lane starts after all that the launching thread did before, and after the blocks that used its shared memory before. It is not
// ordered after the lanes of its own block that happen to have ended already.
GPUFS_SANITIZER_INLINE void announce_start(const lane* self) {
  sanitizer::acquire(&self->owner->launch->started);
  sanitizer::acquire(&self->home->ended[~self->home->generation & 1]);
}
GPUFS_SANITIZER_INLINE void announce_end(const lane* self) {
  sanitizer::release(&self->home->ended[self->home->generation & 1]);
  sanitizer::release(&self->owner->launch->ended);
}

// This fiber never runs again. The objects on its stack stay.
[[noreturn]] GPUFS_NO_TSAN void abandon(lane* self) {
  worker& w = *self->owner;
  w.count_last_steps();
  self->abandoned = true;
  self->state = lane_state::exited;
  sanitizer::keep_reachable(self->stack.stack_bottom, self->stack.stack_nbytes);
  announce_end(self);
  if (++self->home->nexited == self->home->nthreads) w.retire_block(*self->home);
  lane* l = w.next();
  cpu_current = l;
  switch_fiber(self->stack, l == nullptr ? w.main : l->stack);
  std::abort();
}

std::terminate_handler outer_terminate_handler;

// Unwinding ends here if the lane was inside a noexcept function (any destructor is one): the lane is abandoned where it is.
void on_terminate() {
  lane* self = this_lane();
  if (self->countdown != 0 && self->unwinding) abandon(self);
  if (outer_terminate_handler != nullptr) outer_terminate_handler();
  std::abort();
}

void install_terminate_handler() {
  static std::once_flag once;
  std::call_once(once, [] { outer_terminate_handler = std::set_terminate(on_terminate); });
}

void report_exception(lane* self) {
  std::string what;
  try {
    throw;
  } catch (const std::exception& e) {
    what = std::string(typeid(e).name()) + ": " + e.what();
  } catch (...) {
    what = "not a std::exception";
  }
  worker& w = *self->owner;
  {
    const std::lock_guard lock(w.launch->mutex);
    if (w.launch->error.empty()) w.launch->exception = std::current_exception();
  }
  w.stop(lane_name(*self) + " threw an exception (" + what + ")");
}

// Instrumented like the kernel itself: its frame is part of the lane.
void run_body(lane* self) {
  try {
    self->owner->launch->body(self->owner->launch->kernel);
  } catch (const lane_stopped&) {
  } catch (...) {
    report_exception(self);
  }
}

GPUFS_NO_TSAN void lane_exits(lane* self) {
  worker& w = *self->owner;
  block_state& block = *self->home;
  warp_state& warp = block.warps[self->warp_rank];
  const std::uint32_t bit = 1u << self->lane_id;
  w.count_last_steps();
  self->state = lane_state::exited;
  warp.exited |= bit;
  w.idle_rounds = 0;
  ++block.nexited;
  if (!w.stopping && ((warp.wanted & bit) != 0 || block.narrived != 0)) {
    w.stop(describe_waiters_for(*self));
  }
  if (block.nexited == block.nthreads) w.retire_block(block);
}

GPUFS_NO_TSAN void lane_main(boost::context::detail::transfer_t transfer) {
  lane* const self = this_lane();
  arrive(nullptr, transfer);
  for (;;) {
    if (!self->owner->stopping) {
      self->state = lane_state::runnable;
      announce_start(self);
      run_body(self);
      announce_end(self);
    }
    worker& w = *self->owner;
    lane_exits(self);
    lane* l = w.next();
    if (l == self) continue;
    cpu_current = l;
    switch_fiber(self->stack, l == nullptr ? w.main : l->stack);
  }
}

// One mapping for the stacks of a warp, with a guard page below each stack.
void make_lanes(std::vector<lane*>& out) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t stride = stack_nbytes + page;
  void* base =
      ::mmap(nullptr, stride * warp_lanes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base == MAP_FAILED) throw launch_error(std::string("cannot map stacks for lanes: ") + std::strerror(errno));
  ::madvise(base, stride * warp_lanes, MADV_NOHUGEPAGE);
  for (unsigned i = 0; i < warp_lanes; ++i) {
    std::byte* bottom = static_cast<std::byte*>(base) + i * stride;
    ::mprotect(bottom, page, PROT_NONE);  // fails if there are too many mappings; then there is no guard
    auto* l = new lane;
    l->stack.stack_bottom = bottom + page;
    l->stack.stack_nbytes = stack_nbytes;
    l->stack.context = boost::context::detail::make_fcontext(bottom + stride, stack_nbytes, lane_main);
    l->stack.tsan = sanitizer::create_fiber();
    out.push_back(l);
  }
}

}  // namespace

void take_lanes(lane** lanes, unsigned count) {
  install_terminate_handler();
  pool& p = the_pool();
  const std::lock_guard lock(p.mutex);
  while (p.lanes.size() < count) make_lanes(p.lanes);
  for (unsigned i = 0; i < count; ++i) {
    lanes[i] = p.lanes.back();
    p.lanes.pop_back();
  }
}

void give_lanes(lane** lanes, unsigned count) {
  pool& p = the_pool();
  const std::lock_guard lock(p.mutex);
  p.lanes.insert(p.lanes.end(), lanes, lanes + count);
}

GPUFS_NO_TSAN void check_stopped(lane* self) {
  if (self->unwinding) {
    if (++self->unwinding_steps > max_unwinding_steps) abandon(self);
    return;
  }
  self->unwinding = true;
  self->countdown = 1;  // from now on, every operation comes by here
  throw lane_stopped{};
}

}  // namespace gpufs::simt::runtime
