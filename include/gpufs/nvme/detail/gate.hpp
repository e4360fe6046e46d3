// SPDX-License-Identifier: Apache-2.0
// Whom the host waits for before it makes a pair of queues again: groups that are inside (docs/design/nvme.md, "The gate").
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/nvme/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

// 0: the queues may be used. -EAGAIN: not for now; -ENODEV: never again. A hint, unless the caller has said before that it is
// inside, and look_from_inside follows that.
GPUFS_DEVICE int gate_error(const queue_words& words) {
  // Meets the host's store that opens the gate: the words are those of the new queues.
  const auto gate = simt::atomic_ref<gate_state>(const_cast<gate_state&>(words.gate)).load(std::memory_order_acquire);
  return gate == gate_state::open ? 0 : gate == gate_state::closed ? -EAGAIN : -ENODEV;
}
// The same after the caller has added itself to `users`, or has taken `polling`. Its fence stands between that and the look at the
// gate, as the host's stands between its store to the gate and its look at them: the host sees the caller inside, or the caller
// sees the gate closed.
GPUFS_DEVICE int look_from_inside(const queue_words& words) {
  simt::fence(std::memory_order_seq_cst, simt::scope::system);
  return gate_error(words);
}

// One lane calls each. enter: as gate_error; only after 0 the caller is inside, and must leave. What it does inside waits for
// nobody.
GPUFS_DEVICE int enter(queue_words& words) {
  if (const int error = gate_error(words); error != 0) return error;  // so that those who wait do not hide that nobody is inside
  const simt::atomic_ref<std::uint32_t> users(words.users);
  users.fetch_add(1, std::memory_order_relaxed);
  const int error = look_from_inside(words);
  if (error != 0) users.fetch_sub(1, std::memory_order_relaxed);
  return error;
}
GPUFS_DEVICE void leave(queue_words& words) {
  // Meets the host's look at `users`: what the group has done inside comes before what the host does then.
  simt::atomic_ref<std::uint32_t>(words.users).fetch_sub(1, std::memory_order_release);
}

// The queue's epoch, for who is inside.
GPUFS_DEVICE std::uint32_t epoch_of(const queue_words& words) {
  return simt::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(words.epoch)).load_relaxed();
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
