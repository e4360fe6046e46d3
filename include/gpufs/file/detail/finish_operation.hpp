// SPDX-License-Identifier: Apache-2.0
// Waiting for a page that an operation brings in.
#pragma once
#include "gpufs/file/detail/page_operations.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Waits for a page that the leader has pinned and that an operation brings in, and ends the operation. All lanes call; `frame` is
// the leader's. 0; or an error, and then nothing is pinned any more: -EAGAIN (look the page up again, because another group's
// request has failed, or the copy was given up) or -ETIMEDOUT.
template <class Group>
GPUFS_DEVICE_COLD int finish_operation(Group group, const file_mount* mount, cache::frame_index frame) {
  using state = operation_step::state;
  const cache::frames frames(mount->cache);
  const mount_requests rings(*mount);
  const simt::deadline until(mount->io_timeout_ns), last(2 * mount->io_timeout_ns);
  // CUDA may keep a copy waiting. Then the group gives the copy up, looks the page up again, and pulls it. Of many such pages that
  // are read one after the other, only the first takes that long.
  const simt::deadline copied(mount->copy_timeout_ns), copied_beside_held(mount->copy_timeout_ns / 16);
  frame = group.broadcast(frame);
  operation_step step = by_leader(group, [&] {
    operation::asked of;
    simt::backoff pause = pause_for(operation(*mount, frame).look(of) && of.to_frame ? bringer::engine : bringer::host);
    for (;;) {
      operation_step found = look_at_operation(*mount, frame);
      if (found.what != state::waits) return found;
      const bool is_late = copied.expired() || (operation::are_copies_held(*mount) && copied_beside_held.expired());
      const bool is_held = found.of.to_frame && is_late && give_up_operation(*mount, frame);
      if (is_held || (until.expired() && (give_up_operation(*mount, frame) || last.expired()))) {
        found.what = state::failed;
        found.error = is_held ? -EAGAIN : -ETIMEDOUT;
        return found;
      }
      pause();
    }
  });
  const bool timed_out = step.error == -ETIMEDOUT;
  if (step.what == state::ours) {
    step.error = enter_answer(group, frames.data(frame), frames.page_nbytes(), step.answered, step.asked, payload_of(rings, step));
    group.sync();  // the bytes of all lanes happen before the leader's releases
    if (group.leader()) {
      rings.give_back(step.of.ticket);
      operation(*mount, frame).end(step.slot, step.error);
    }
  }
  if (step.error != 0 && group.leader()) frames.unpin(frame);
  simt::rejoin(group);
  return step.error == 0 ? 0 : timed_out ? -ETIMEDOUT : -EAGAIN;
}

// Ends the operation that the leader's look-up has found, or waits for it. If that fails, looks the page up again by the leader's
// `look_up`. All lanes call. Returns the last look-up's result: the page is pinned and there (waited), or is to be filled, or
// error. `ours`: the caller has begun the operation, so it is not counted as a wait.
template <class Group, class Acquired, class LookUp>
GPUFS_DEVICE Acquired finish_or_look_anew(Group group, const file_mount& mount, std::uint32_t slot, Acquired got, LookUp look_up,
                                          bool ours = false) {
  const simt::deadline until(2 * mount.io_timeout_ns);
  while (got.what == decltype(got.what)::under_way) {
    const int error = simt::call_cold(&finish_operation<Group>, group, &mount, got.frame);
    if (error == 0) {
      if (group.leader() && !ours) count(file_table(mount).counters(slot).waits, 1);
      return {got.frame, decltype(got.what)::waited, 0};
    }
    ours = false;
    got = by_leader(group, [&]() -> Acquired {
      if (error == -EAGAIN && !until.expired()) return look_up();
      return {{}, decltype(got.what)::error, -ETIMEDOUT};
    });
  }
  return got;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
