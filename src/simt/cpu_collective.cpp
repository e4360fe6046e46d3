// SPDX-License-Identifier: Apache-2.0
// What lanes call: preemption points, back-off, collectives, shared memory. The last lane to arrive at a collective writes all
// results straight into the lanes' variables, and puts the lanes back into the run queue.
#include <bit>
#include <ctime>
#include <string>
#include <utility>

#include "cpu_scheduler.hpp"
#include "sanitizer.hpp"

namespace gpufs::simt::runtime {
namespace {

// Stops the launch because of something that `self` just did. Returns only if `self` is unwinding already.
void fail(lane* self, std::string message) {
  self->owner->stop(std::move(message));
  check_stopped(self);
}

GPUFS_NO_TSAN void copy_words(std::uint64_t* dst, const std::uint64_t* src, unsigned nwords) {
  for (unsigned i = 0; i < nwords; ++i) {
    dst[i] = src[i];
    asm volatile("" ::: "memory");  // else the compiler makes this a call of memcpy
  }
}

GPUFS_NO_TSAN std::uint64_t combine(cpu_op op, std::uint64_t a, std::uint64_t b) {
  const auto sa = static_cast<std::int64_t>(a);
  const auto sb = static_cast<std::int64_t>(b);
  switch (op) {
    case cpu_op::any:
      return a | b;
    case cpu_op::all:
      return a & b;
    case cpu_op::reduce_add:
      return a + b;
    case cpu_op::reduce_min_signed:
      return sb < sa ? b : a;
    case cpu_op::reduce_min_unsigned:
      return b < a ? b : a;
    case cpu_op::reduce_max_signed:
      return sa < sb ? b : a;
    default:
      return a < b ? b : a;
  }
}

GPUFS_NO_TSAN void give_results(lane** lanes, cpu_op op, std::uint32_t mask, unsigned nwords) {
  switch (op) {
    case cpu_op::sync:
      return;
    case cpu_op::ballot: {
      std::uint64_t votes = 0;
      for (std::uint32_t m = mask; m != 0; m &= m - 1) {
        const int i = std::countr_zero(m);
        votes |= lanes[i]->value[0] << i;
      }
      for (std::uint32_t m = mask; m != 0; m &= m - 1) lanes[std::countr_zero(m)]->result[0] = votes;
      return;
    }
    case cpu_op::shfl:
    case cpu_op::broadcast:
      for (std::uint32_t m = mask; m != 0; m &= m - 1) {
        lane* l = lanes[std::countr_zero(m)];
        copy_words(l->result, lanes[l->arg]->value, nwords);
      }
      return;
    case cpu_op::match_any:
      for (std::uint32_t left = mask; left != 0;) {
        const std::uint64_t value = lanes[std::countr_zero(left)]->value[0];
        std::uint32_t same = 0;
        for (std::uint32_t m = left; m != 0; m &= m - 1) {
          if (lanes[std::countr_zero(m)]->value[0] == value) same |= m & -m;
        }
        for (std::uint32_t m = same; m != 0; m &= m - 1) lanes[std::countr_zero(m)]->result[0] = same;
        left &= ~same;
      }
      return;
    default: {
      std::uint64_t total = lanes[std::countr_zero(mask)]->value[0];
      for (std::uint32_t m = mask & (mask - 1); m != 0; m &= m - 1) {
        total = combine(op, total, lanes[std::countr_zero(m)]->value[0]);
      }
      for (std::uint32_t m = mask; m != 0; m &= m - 1) lanes[std::countr_zero(m)]->result[0] = total;
      return;
    }
  }
}

// The result for a group of this lane alone. A destructor gets it while its lane is being unwound.
GPUFS_NO_TSAN void give_own_result(cpu_op op, unsigned lane_bit, unsigned nwords, const std::uint64_t* value,
                                   std::uint64_t* result) {
  if (nwords == 0) return;
  copy_words(result, value, nwords);
  if (op == cpu_op::ballot) result[0] = value[0] << lane_bit;
  if (op == cpu_op::match_any) result[0] = std::uint64_t{1} << lane_bit;
}

GPUFS_NO_TSAN void arrive_at(lane* self, lane_state where, cpu_op op, std::uint32_t mask, unsigned nwords, std::uint32_t arg,
                             const std::uint64_t* value, std::uint64_t* result) {
  self->op = op;
  self->mask = mask;
  self->nwords = nwords;
  self->arg = arg;
  self->value = value;
  self->result = result;
  self->state = where;
}

// After a collective, the seed decides whether the last lane to come goes on.
GPUFS_NO_TSAN void maybe_switch(lane* self) {
  if (self->countdown > 1) {
    --self->countdown;
    worker& w = *self->owner;
    if (!w.explore.by_priority) return;
    w.make_ready(self);  // one of the lanes that it made ready may have a higher priority
    leave(self);
  } else {
    self->countdown = 0;
    cpu_preempt();
  }
}

// Called when all lanes that `self` waits for wait too. Returns whether all of them wait in this collective. One may wait elsewhere
// for lanes outside the group, which will come (lanes that arrived together are a group whose lanes may be of several tiles); then
// it comes here. It must not wait for a lane that is here.
GPUFS_NO_TSAN bool all_meet(lane& self, lane** lanes) {
  std::uint32_t here = 0;
  for (std::uint32_t m = self.mask; m != 0; m &= m - 1) {
    if (lanes[std::countr_zero(m)]->mask == self.mask) here |= m & -m;
  }
  if (!agree_on_call(self, lanes, warp_lanes)) fail(&self, describe_calls(self, lanes, warp_lanes));
  for (std::uint32_t m = self.mask; m != 0; m &= m - 1) {
    const lane& l = *lanes[std::countr_zero(m)];
    const bool differs = l.op != self.op || l.nwords != self.nwords || (self.op == cpu_op::broadcast && l.arg != self.arg);
    if (l.mask == self.mask ? differs : (l.mask & here) != 0) {
      fail(&self, "lanes of one warp wait in different collectives: " + describe_wait(self) + "; " + describe_wait(l));
    }
    if (self.mask == ~0u && l.mask == self.mask && l.nline_words != self.nline_words) {
      fail(&self, "warp_line::get was not called by all lanes: " + std::to_string(self.nline_words) + " times by " +
                      lane_name(self) + ", " + std::to_string(l.nline_words) + " times by " + lane_name(l));
    }
  }
  return here == self.mask;
}

[[noreturn]] void refuse_host_thread(const char* what) { throw launch_error(std::string(what) + " was called outside a launch"); }

}  // namespace

GPUFS_NO_TSAN void cpu_preempt() {
  lane* self = this_lane();
  worker& w = *self->owner;
  if (w.stopping) {
    self->countdown = 1;
    return check_stopped(self);
  }
  if (w.explore.by_priority) {
    w.meet_point(self);
  } else {
    self->countdown = w.draw_countdown();
    w.make_ready(self);
  }
  leave(self);
}

GPUFS_NO_TSAN void cpu_check_call(const cpu_call& call) {
  lane* self = this_lane();
  if (self->countdown == 0) return;
  if (const unsigned i = argument_of_other_device(*self, call); i < call.nargs) fail(self, describe_other_device(*self, call, i));
}

GPUFS_NO_TSAN void cpu_enter_call(cpu_call& call) {
  lane* self = this_lane();
  if (self->countdown == 0) {
    call.signature = nullptr;
    return;
  }
  if (const unsigned i = argument_on_stack(*self, call); i < call.nargs) fail(self, describe_own_memory(*self, call, i));
  cpu_check_call(call);
  call.outer = self->call;
  self->call = &call;
}

GPUFS_NO_TSAN void cpu_leave_call(const cpu_call& call) { this_lane()->call = call.outer; }

void cpu_refuse_address(bool is_shared) {
  lane* self = this_lane();
  fail(self, lane_name(*self) + " uses an atomic of device or system scope on " + (is_shared ? "shared memory" : "its own stack") +
                 ", which CUDA cannot");
}

void cpu_report_misuse(const char* what) {
  lane* self = this_lane();
  if (self->countdown == 0 || self->unwinding) return;  // a host thread; or a lane that ends early, and so cannot keep the rules
  fail(self, lane_name(*self) + " " + what);
}

GPUFS_NO_TSAN void cpu_backoff(std::uint64_t cap_ns) {
  lane* self = this_lane();
  if (self->countdown == 0) {  // a host thread
    const timespec t{0, static_cast<long>(cap_ns < 1'000'000 ? cap_ns : 1'000'000)};
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
    return;
  }
  worker& w = *self->owner;
  if (w.stopping) return check_stopped(self);
  if (w.explore.by_priority) {
    w.count_steps();
    // How often the lane looked depends on the host's clock. Such steps do not count, so that points stay at the same steps.
    if (!self->progress) w.explore.nsteps = w.explore.resumed;
    self->nawake = 0;
  }
  if (self->progress) {
    self->progress = false;
    self->tells_writes = true;
    w.idle_rounds = 0;
  }
  self->state = lane_state::backing_off;
  w.sleeping[w.nsleeping++] = self;
  leave(self);
}

GPUFS_NO_TSAN void cpu_warp(cpu_op op, std::uint32_t mask, unsigned nwords, std::uint32_t arg, const std::uint64_t* value,
                            std::uint64_t* result) {
  lane* self = this_lane();
  if (self->countdown == 0) refuse_host_thread("a warp collective");
  worker& w = *self->owner;
  block_state& block = *self->home;
  warp_state& warp = block.warps[self->warp_rank];
  lane** lanes = block.lanes + std::size_t{self->warp_rank} * warp_lanes;
  const std::uint32_t bit = 1u << self->lane_id;
  if (w.stopping) {
    check_stopped(self);
    return give_own_result(op, self->lane_id, nwords, value, result);
  }
  const bool exchanges = op == cpu_op::shfl || op == cpu_op::broadcast;
  arrive_at(self, lane_state::in_warp, op, mask, nwords, arg, value, result);
  if (exchanges && (arg >= warp_lanes || (mask >> arg & 1) == 0)) {
    fail(self, describe_wait(*self) + ", from a rank that is not in the group");
  }
  sanitizer::release(lanes[std::countr_zero(mask)]);
  warp.waiting |= bit;
  warp.wanted |= mask;
  if (((warp.exited | warp.in_block) & mask) != 0) fail(self, describe_wait(*self));
  if ((warp.waiting & mask) != mask || !all_meet(*self, lanes)) {
    leave(self);
  } else {
    give_results(lanes, op, mask, nwords);
    warp.waiting &= ~mask;
    warp.wanted = 0;
    for (std::uint32_t m = warp.waiting; m != 0; m &= m - 1) warp.wanted |= lanes[std::countr_zero(m)]->mask;
    self->state = lane_state::runnable;
    for (std::uint32_t m = mask & ~bit; m != 0; m &= m - 1) w.make_ready(lanes[std::countr_zero(m)]);
    maybe_switch(self);
  }
  sanitizer::acquire(lanes[std::countr_zero(mask)]);
}

// A lane waits like a preempted one, or like one that backs off, which lets all others run first. The first lane of the group that
// runs again closes the group.
GPUFS_NO_TSAN std::uint32_t cpu_converge(const void* site) {
  lane* self = this_lane();
  const std::uint32_t bit = 1u << self->lane_id;
  if (self->countdown == 0) return bit;
  worker& w = *self->owner;
  if (w.stopping) {
    check_stopped(self);
    return bit;
  }
  block_state& block = *self->home;
  warp_state& warp = block.warps[self->warp_rank];
  if (warp.converging == 0) warp.patient = (w.random() & 1) != 0 || w.launch->config->schedule.whole_warps;
  warp.converging |= bit;
  self->converged = 0;
  self->site = site;
  const bool waits = warp.patient || (w.random() & 3) != 0;
  // The scheduler may also wake sleepers while others can run; then a patient lane sleeps again, for a limited number of times.
  for (unsigned naps = 0; self->converged == 0 && (naps == 0 || (naps < 64 && warp.patient && w.nready != 0)); ++naps) {
    if (waits) {
      self->state = lane_state::backing_off;
      w.sleeping[w.nsleeping++] = self;
      w.converging = true;
    } else {
      w.make_ready(self);
    }
    leave(self);
  }
  if (self->converged == 0) {
    lane** lanes = block.lanes + std::size_t{self->warp_rank} * warp_lanes;
    std::uint32_t mask = 0;
    for (std::uint32_t m = warp.converging; m != 0; m &= m - 1) {
      if (lanes[std::countr_zero(m)]->site == site) mask |= m & -m;
    }
    warp.converging &= ~mask;
    for (std::uint32_t m = mask; m != 0; m &= m - 1) lanes[std::countr_zero(m)]->converged = mask;
  }
  return self->converged;
}

GPUFS_NO_TSAN void cpu_block(cpu_op op, unsigned nwords, std::uint32_t arg, const std::uint64_t* value, std::uint64_t* result) {
  lane* self = this_lane();
  if (self->countdown == 0) refuse_host_thread("a block collective");
  worker& w = *self->owner;
  block_state& block = *self->home;
  warp_state& warp = block.warps[self->warp_rank];
  const std::uint32_t bit = 1u << self->lane_id;
  if (w.stopping) {
    check_stopped(self);
    return give_own_result(op, 0, nwords, value, result);
  }
  arrive_at(self, lane_state::in_block, op, 0, nwords, arg, value, result);
  if (op == cpu_op::broadcast && arg >= block.nthreads) {
    fail(self, describe_wait(*self) + ", from a rank that is not in the block");
  }
  sanitizer::release(&block.nexited);
  warp.in_block |= bit;
  ++block.narrived;
  if ((warp.wanted & bit) != 0) fail(self, describe_waiters_for(*self));
  if (block.nexited != 0) fail(self, describe_wait(*self));
  if (block.narrived != block.nthreads) {
    leave(self);
  } else {
    if (!agree_on_call(*self, block.lanes, block.nthreads)) fail(self, describe_calls(*self, block.lanes, block.nthreads));
    std::uint64_t total = nwords == 0 ? 0 : value[0];
    for (unsigned i = 0; i < block.nthreads; ++i) {
      const lane* l = block.lanes[i];
      if (l->op != op || l->nwords != nwords || l->arg != arg) {
        fail(self, "threads of one block wait in different collectives: " + describe_wait(*self) + "; " + describe_wait(*l));
      }
      if (nwords != 0 && l != self) total = combine(op, total, l->value[0]);
    }
    for (unsigned i = 0; i < block.nthreads; ++i) {
      lane* l = block.lanes[i];
      if (op == cpu_op::broadcast) {
        copy_words(l->result, block.lanes[arg]->value, nwords);
      } else if (nwords != 0) {
        l->result[0] = total;
      }
    }
    block.narrived = 0;
    for (unsigned i = 0; i < block.nthreads / warp_lanes; ++i) block.warps[i].in_block = 0;
    self->state = lane_state::runnable;
    for (unsigned i = 0; i < block.nthreads; ++i) {
      if (block.lanes[i] != self) w.make_ready(block.lanes[i]);
    }
    maybe_switch(self);
  }
  sanitizer::acquire(&block.nexited);
}

// Each block's first thread arrives for its block, and backs off until all blocks have arrived.
GPUFS_NO_TSAN void cpu_grid_sync() {
  lane* self = this_lane();
  if (self->countdown == 0) refuse_host_thread("a grid barrier");
  launch_state& launch = *self->owner->launch;
  if (!launch.config->cooperative) {
    fail(self, lane_name(*self) + " comes to a grid barrier in a launch that is not cooperative (launch_config::cooperative)");
  }
  cpu_block(cpu_op::sync, 0, 0, nullptr, nullptr);
  if (self->thread_rank == 0) {
    sanitizer::release(&launch.grid_barrier);
    const std::uint64_t turn = __atomic_load_n(&launch.grid_turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&launch.grid_arrived, 1, __ATOMIC_ACQ_REL) == launch.config->grid) {
      __atomic_store_n(&launch.grid_arrived, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&launch.grid_turn, turn + 1, __ATOMIC_RELEASE);
    }
    while (!self->unwinding) {
      // Read first, because a block that passed this barrier with us may have ended since.
      const bool lost = __atomic_load_n(&launch.nended, __ATOMIC_ACQUIRE) != 0;
      if (__atomic_load_n(&launch.grid_turn, __ATOMIC_ACQUIRE) != turn) break;
      if (lost) fail(self, lane_name(*self) + " waits in a grid barrier for blocks that have ended");
      cpu_backoff(0);
    }
    sanitizer::acquire(&launch.grid_barrier);
  }
  cpu_block(cpu_op::sync, 0, 0, nullptr, nullptr);
}

GPUFS_NO_TSAN void* cpu_shared(const void* key, std::size_t nbytes, std::size_t alignment) {
  lane* self = this_lane();
  if (self->countdown == 0) refuse_host_thread("shared()");
  block_state& block = *self->home;
  for (unsigned i = 0; i < block.nshared; ++i) {
    if (block.shared[i].key == key) return block.shared[i].address;
  }
  const std::size_t offset = (block.shared_nbytes + alignment - 1) & ~(alignment - 1);
  if (offset + nbytes > max_shared_nbytes || block.nshared == max_shared_objects) {
    throw launch_error("a block's shared objects exceed 48 KiB");
  }
  std::byte* address = block.shared_memory + offset;
  block.shared_nbytes = offset + nbytes;
  block.shared[block.nshared++] = {key, address};
  sanitizer::unpoison(address, nbytes);
  // Overwrites old bytes with a pattern that is unlikely to pass for a value.
  auto* bytes = reinterpret_cast<volatile unsigned char*>(address);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = 0xa5;
  return address;
}

GPUFS_NO_TSAN void cpu_fence([[maybe_unused]] bool does_acquire, [[maybe_unused]] bool does_release) {
  static char everything;
  if (does_release) sanitizer::release(&everything);
  if (does_acquire) sanitizer::acquire(&everything);
}

}  // namespace gpufs::simt::runtime
