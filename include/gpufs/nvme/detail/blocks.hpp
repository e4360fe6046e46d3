// SPDX-License-Identifier: Apache-2.0
// Blocks of a namespace, read and written by each lane of a group for itself. The controller moves them to and from buffers of its
// records, and lanes copy: so no memory of a caller's is the controller's, whatever comes late.
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/nvme/detail/queue_pair.hpp"
#include "gpufs/nvme/detail/status.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

namespace detail {

inline constexpr std::uint32_t most_retries = 3;  // of a command that failed, and may pass

// What a command of a lane has moved, or is to move, of what the lane wants: so many bytes behind the first `done`.
struct moved_part {
  std::uint64_t done, nbytes;
};
struct transferred {
  std::uint32_t nblocks;  // done, in order
  int error;              // what came then; 0: nothing
  GPUFS_DEVICE std::int64_t nbytes_or_error(const namespace_layout& space) const {
    return nblocks != 0 ? static_cast<std::int64_t>(std::uint64_t{nblocks} << space.block_shift) : error;
  }
};

// Collective, for a thread, a tile or a warp; arguments may differ by lane. nblocks 0: the lane wants nothing (flush: `wanted`
// says). before(buffer, part): each lane that gets a record calls it with its buffer. after(is_moved, buffer, part) -> 0 or -errno:
// all lanes call it, while the records of those whose commands have moved bytes are theirs still.
template <opcode What, class Group, class Before, class After>
GPUFS_DEVICE transferred transfer_each(Group group, const namespace_layout& space, bool wanted, std::uint64_t lba,
                                       std::uint32_t nblocks, std::uint32_t flags, std::uint64_t timeout_ns, Before before,
                                       After after) {
  const simt::deadline until(timeout_ns);
  simt::backoff pause;
  std::uint32_t done = 0, retries = 0;
  int error = 0;
  if (wanted && What == opcode::write && space.writable == 0) error = -EROFS;
  if (wanted && (lba > space.nblocks || nblocks > space.nblocks - lba)) error = -ENXIO;
  bool open = wanted && error == 0;
  for (auto at = static_cast<std::uint32_t>(simt::global_warp_rank() % space.nqueues); group.any(open);
       at = (at + 1) % space.nqueues) {
    const queue_pair queue(space.queues[at]);
    const std::uint32_t n = nblocks - done < space.blocks_a_command ? nblocks - done : space.blocks_a_command;
    const std::uint64_t nbytes = std::uint64_t{n} << space.block_shift;
    const moved_part part{std::uint64_t{done} << space.block_shift, nbytes};
    ticket sent{};
    const int submitted = queue.submit(group, open, {What, space.nsid, lba + done, n, flags, nbytes, nullptr, 0}, sent,
                                       [&](std::byte* buffer) { before(buffer, part); });
    if (submitted < 0 && submitted != -EAGAIN) error = submitted;
    const bool is_mine = submitted == 1;
    if (!group.any(is_mine)) {
      if (queue.poll(group) == 0) pause();
      if (open && error == 0 && until.expired()) error = -ETIMEDOUT;
      open = open && error == 0;
      continue;
    }
    pause.reset();
    const int status = queue.wait(group, is_mine, sent, until);
    const bool is_moved = is_mine && status == 0;
    const int failed = after(is_moved, queue.buffer(sent.record), part);
    if (is_mine && status < 0) {
      error = status;
    } else if (is_mine) {
      const auto word = static_cast<status_word>(status);
      if (word == 0) {
        error = failed;
        if (error == 0) done += n;
        retries = 0;
      } else if (may_pass(word) && retries < most_retries) {
        // That its queue was made again is no fault of the command's: only time bounds how often.
        if (code_of(word) != code::queue_deleted) ++retries;
        if (until.expired()) error = -ETIMEDOUT;
      } else {
        error = status_errno(word);
      }
      queue.finish(sent);
    }
    // A flush has one command, others as many as their blocks take.
    open = open && error == 0 && (What == opcode::flush ? !is_moved : done < nblocks);
  }
  return {done, error};
}

struct copy_nothing {
  GPUFS_DEVICE void operator()(std::byte*, const moved_part&) const {}
  GPUFS_DEVICE int operator()(bool, const std::byte*, const moved_part&) const { return 0; }
};

}  // namespace detail

// Collective, for a thread, a tile of a warp or a warp; arguments may differ by lane. Reads nblocks blocks (0: none) from block
// `lba` on to `to`, which is the lane's, in global memory or on its stack. Waits for at most timeout_ns. Returns bytes: fewer than
// asked only where an error came after whole commands were done; or -errno: -ENXIO, beyond the namespace's end; -ETIMEDOUT;
// -ENODEV, the controller is lost; status_errno's. A command that fails and may pass is sent again three times; one
// whose queue was made again, until time is up.
template <class Group>
GPUFS_DEVICE std::int64_t read_each(Group group, const namespace_layout& space, std::uint64_t lba, std::uint32_t nblocks, void* to,
                                    std::uint64_t timeout_ns) {
  auto* const bytes = static_cast<std::byte*>(to);
  const auto take = [&](bool is_moved, const std::byte* buffer, const detail::moved_part& part) {
    return is_moved ? simt::copy_from_host(simt::this_thread(), bytes + part.done, buffer, part.nbytes) : 0;
  };
  return detail::transfer_each<opcode::read>(group, space, nblocks != 0, lba, nblocks, 0, timeout_ns, detail::copy_nothing{}, take)
      .nbytes_or_error(space);
}
// The same, to the namespace, of bytes in global memory. `flags`: force_unit_access, each block is on the medium when the call
// returns. -EROFS: the namespace was not opened to write. After an error any of the blocks may be old or new.
template <class Group>
GPUFS_DEVICE std::int64_t write_each(Group group, const namespace_layout& space, std::uint64_t lba, std::uint32_t nblocks,
                                     const void* from, std::uint32_t flags, std::uint64_t timeout_ns) {
  const auto* const bytes = static_cast<const std::byte*>(from);
  const auto put = [&](std::byte* buffer, const detail::moved_part& part) {
    simt::copy_to_host(simt::this_thread(), buffer, bytes + part.done, part.nbytes);
  };
  return detail::transfer_each<opcode::write>(group, space, nblocks != 0, lba, nblocks, flags, timeout_ns, put,
                                              detail::copy_nothing{})
      .nbytes_or_error(space);
}
// Collective. All writes that had returned before the call are on the medium when it returns 0; or -errno, as above.
template <class Group>
GPUFS_DEVICE int flush(Group group, const namespace_layout& space, std::uint64_t timeout_ns) {
  return group.broadcast(detail::transfer_each<opcode::flush>(group, space, group.leader(), 0, 0, 0, timeout_ns,
                                                              detail::copy_nothing{}, detail::copy_nothing{})
                             .error);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
