// SPDX-License-Identifier: Apache-2.0
// One more block of slots, which the host makes while kernels run.
#pragma once
#include "gpufs/file/detail/file_slots.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// One lane calls. 0; -ENOMEM, as extend; or what the host says.
GPUFS_DEVICE int ask_for_block(const file_mount& mount, std::uint32_t n, std::uint32_t start) {
  const mount_requests rings(mount);
  // The driver may let the host wait until we end. Then the block is for opens that come later.
  constexpr std::uint64_t soon_ns = 2'000'000'000;
  const simt::deadline until(mount.io_timeout_ns < soon_ns ? mount.io_timeout_ns : soon_ns);
  const auto ticket = rings.take(start, until);
  transport::request ask{};
  ask.op = transport::opcode::extend;
  ask.offset = n;
  transport::reply answer;
  if (ticket.index == transport::no_slot || rings.call(ticket, ask, answer, until) != 0) {
    file_slots(mount).count_timeout();
    return -ENOMEM;
  }
  rings.give_back(ticket);
  if (answer.result < 0) return static_cast<int>(answer.result);
  file_blocks(mount).add(answer.pull_base);
  return 0;
}

// Called when all slots of `nblocks` blocks are taken. Has the host make one more block, unless another open does so; then the
// caller goes on once a slot is free. 0: look for a slot again. -ENFILE: the mount has all blocks that it may have. -ENOMEM: the
// device has no memory, or gives none soon (also to an open that waits for another's request). -ETIMEDOUT, or what the host says.
inline GPUFS_DEVICE_COLD int extend(const file_mount& mount, std::uint32_t nblocks, std::uint32_t start,
                                    const simt::deadline& until) {
  const file_slots slots(mount);
  const file_blocks blocks(mount);
  if (nblocks >= blocks.most()) return -ENFILE;
  if (until.expired()) return slots.count_timeout();
  simt::atomic_ref<std::uint32_t> lock(mount.words->extend_lock), failures(mount.words->extend_failures);
  const std::uint32_t failed = failures.load(std::memory_order_relaxed);
  simt::backoff pause;
  while (lock.load(std::memory_order_relaxed) != 0 ||
         lock.exchange(1, std::memory_order_acquire) != 0) {  // meets the release below: the count, and failures
    if (blocks.count() != nblocks || blocks.any_free()) return 0;
    if (until.expired()) return slots.count_timeout();
    pause();
  }
  int error = 0;
  if (blocks.count() == nblocks) {
    const bool no_memory = failures.load(std::memory_order_relaxed) != failed;
    error = no_memory ? -ENOMEM : ask_for_block(mount, nblocks, start);
    if (error == -ENOMEM && !no_memory) failures.store(failed + 1, std::memory_order_relaxed);
    if (error == -ENOMEM && blocks.any_free()) error = 0;
  }
  lock.store(0, std::memory_order_release);
  return error;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
