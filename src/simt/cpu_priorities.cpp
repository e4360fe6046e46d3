// SPDX-License-Identifier: Apache-2.0
// Schedules that are explored: by priorities, and with delays of lanes that write. Lanes pay for it only if it is asked for: by the
// countdown that they have anyway, and by a call after each atomic write.
#include "cpu_scheduler.hpp"
#include "sanitizer.hpp"

namespace gpufs::simt::runtime {
namespace {

// A lane that has passed so many preemption points without backing off may spin on another lane: it is passed over once.
constexpr std::uint32_t patience = 1u << 14;
// After so many choices of a lane without a write, the held lanes go on: the other lanes may be waiting for them.
constexpr unsigned max_quiet = 512;

GPUFS_NO_TSAN void note(exploration& e, const schedule_point& p) {
  if (e.nmet != max_points) e.met[e.nmet++] = {e.nsteps, p.priority, p.nwrites};
}

// 1 to 512; short delays are as likely as long ones.
GPUFS_NO_TSAN std::uint32_t draw_delay(dice& random) { return 1 + random.below(1u << (1 + random.below(9))); }

}  // namespace

GPUFS_NO_TSAN void worker::count_steps() {
  exploration& e = explore;
  if (e.running == nullptr) return;
  const std::uint32_t passed = e.granted - e.running->countdown;
  e.granted = e.running->countdown;
  e.nsteps += passed;
  e.running->nawake += passed;
}

GPUFS_NO_TSAN void worker::count_last_steps() {
  count_steps();
  explore.running = nullptr;
}

GPUFS_NO_TSAN lane* worker::take_highest() {
  unsigned highest = 0;
  for (unsigned i = 1; i < nready; ++i) {
    if (ready[i]->priority > ready[highest]->priority) highest = i;
  }
  lane* l = ready[highest];
  ready[highest] = ready[--nready];
  exploration& e = explore;
  if (e.nsteps != e.resumed) {  // else the lane that ran only looked whether its wait was over
    const std::uint64_t who = std::uint64_t{e.last->block_rank} << 32 | e.last->thread_rank;
    e.order = (e.order ^ who ^ (e.nsteps - e.resumed) << 16) * 0x9e3779b97f4a7c15;
    e.order ^= e.order >> 29;
    e.nswitches += l != e.last;
  }
  e.resumed = e.nsteps;
  e.last = e.running = l;
  e.granted = patience > l->nawake ? patience - l->nawake : 1;
  if (e.next != e.end) {
    const std::uint64_t distance = e.next->step > e.nsteps ? e.next->step - e.nsteps : 1;
    if (distance < e.granted) e.granted = static_cast<std::uint32_t>(distance);
  }
  l->countdown = e.granted;
  return l;
}

GPUFS_NO_TSAN void worker::meet_point(lane* l) {
  exploration& e = explore;
  count_steps();
  if (e.next == e.end || e.next->step > e.nsteps) {
    l->nawake = 0;
    l->state = lane_state::backing_off;
    sleeping[nsleeping++] = l;
    return;
  }
  const schedule_point& p = *e.next++;
  note(e, p);
  if (p.priority == 0) return hold(l, p.nwrites);
  wake_sleeping();
  l->priority = p.priority;
  make_ready(l);
}

GPUFS_NO_TSAN void worker::hold(lane* l, std::uint32_t nwrites) {
  l->held_until = explore.nwrites + nwrites;
  held[nheld++] = l;
  explore.nquiet = 0;
}

// Releases the held lanes whose time has come, or all held lanes. Returns whether there were any.
GPUFS_NO_TSAN bool worker::release_held(bool all) {
  const unsigned before = nheld;
  for (unsigned i = 0; i < nheld;) {
    if (all || held[i]->held_until <= explore.nwrites) {
      make_ready(held[i]);
      held[i] = held[--nheld];
    } else {
      ++i;
    }
  }
  return nheld != before;
}

// Their state stays backing_off until they run, because a report may be made before that.
GPUFS_NO_TSAN void worker::wake_sleeping() {
  for (unsigned i = 0; i < nsleeping; ++i) ready[nready++] = sleeping[i];
  nsleeping = 0;
}

GPUFS_NO_TSAN bool worker::nobody_gets_on() { return ++explore.nquiet > max_quiet || (nready == 0 && nsleeping == 0); }

GPUFS_NO_TSAN void cpu_wrote() {
  lane* self = this_lane();
  worker& w = *self->owner;
  exploration& e = w.explore;
  self->progress = true;
  self->tells_writes = e.writes_count;
  if (!e.writes_count || w.stopping) return;
  ++e.nwrites;
  e.nquiet = 0;
  const bool released = w.nheld != 0 && w.release_held(false);
  const bool delayed = e.delays && --e.until_delay == 0;
  if (delayed) e.until_delay = e.delay_gaps[e.random() & 255];
  if (e.by_priority && --self->countdown == 0 && !delayed) return cpu_preempt();
  if (delayed) {
    const schedule_point p{.nwrites = draw_delay(e.random)};
    // Sleeping lanes are not woken here, unlike at other points: delays never end, so a lower lane might never run.
    if (e.by_priority) {
      w.count_steps();
      note(e, p);
    }
    w.hold(self, p.nwrites);
  } else if (e.by_priority && released) {
    w.make_ready(self);
  } else {
    return;
  }
  leave(self);
}

}  // namespace gpufs::simt::runtime
