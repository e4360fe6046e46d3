// SPDX-License-Identifier: Apache-2.0
// A submission queue and its completion queue, as kernels use them (docs/design/nvme.md). Each lane of a group has a command of its
// own, or none. Groups: a thread, a tile of a warp, a warp.
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/nvme/detail/completion_queue.hpp"
#include "gpufs/nvme/detail/prp.hpp"
#include "gpufs/nvme/detail/submission_queue.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

// What a lane asks of the controller.
struct command {
  opcode what;
  std::uint32_t nsid;
  std::uint64_t lba;
  std::uint32_t nblocks;     // 1 to 65,536; flush: 0
  std::uint32_t flags;       // of cdw12: force_unit_access
  std::uint64_t nbytes;      // of all blocks; flush: 0
  const dma_memory* memory;  // nullptr: the record's own buffer
  std::uint64_t offset;      // in the memory, of the first byte: a multiple of 4
};

class queue_pair {
 public:
  GPUFS_DEVICE explicit queue_pair(const queue_layout& queue) : queue_(queue), records_(queue), out_(queue), in_(queue) {}

  // Collective. Submits the commands of the lanes that want it, as many as there are records for, with one reservation and one
  // publication. before(buffer) is called by each lane that gets one, with its record's buffer, to put there what is written.
  // Returns for each lane: 1, its command is under way, and `out` its ticket; 0, there is no record, so that it polls and tries
  // again; -EAGAIN, the queues are being made again; -ENODEV, the controller is lost; the errors of make_prps. Waits for nobody.
  template <class Group, class Before>
  GPUFS_DEVICE int submit(Group group, bool wanted, const command& what, ticket& out, Before before) const {
    queue_words& words = *queue_.words;
    const std::uint32_t askers = group.ballot(wanted);
    if (askers == 0) return 0;
    int error = 0;
    records::taken some{0, 0};
    if (group.leader()) {
      error = enter(words);
      if (error == 0) some = records_.take(static_cast<std::uint32_t>(simt::global_warp_rank()), simt::count_lanes(askers));
      if (error == 0 && some.mask == 0) leave(words);
    }
    error = group.broadcast(error);
    if (error != 0) return wanted ? error : 0;
    some = group.broadcast(some);
    if (some.mask == 0) return 0;

    const std::uint32_t number = simt::count_lanes(askers & ((1u << group.rank()) - 1));
    const bool has = wanted && drop_lowest(some.mask, number) != 0;
    prp_pair prps{0, 0};
    std::uint32_t record = 0;
    if (has) {
      record = some.first + lowest_bit(drop_lowest(some.mask, number));
      before(buffer(record));
      error = prps_of(what, record, prps);
      if (error != 0) records_.give_back({std::uint64_t{1} << record % 64, some.first});
    }
    const std::uint32_t ready = group.ballot(has && error == 0);
    std::uint64_t first = 0;
    const bool reserved = group.broadcast(ready != 0 && group.leader() && out_.reserve(simt::count_lanes(ready), first));
    first = group.broadcast(first);
    const bool sends = has && error == 0;
    if (reserved && sends) {
      out = records_.begin(record, epoch_of(words));
      out_.write(first + simt::count_lanes(ready & ((1u << group.rank()) - 1)), submission_of(what, record, prps));
    } else if (sends) {
      records_.give_back({std::uint64_t{1} << record % 64, some.first});
    }
    group.sync();  // all have written, or given back
    if (group.leader()) {
      if (reserved) {
        out_.publish(first, simt::count_lanes(ready));
        simt::atomic_ref<std::uint64_t>(words.ncommands).add_relaxed(simt::count_lanes(ready));
      }
      leave(words);
    }
    return error != 0 ? error : reserved && sends ? 1 : 0;
  }

  // Collective. Delivers what has been completed, to whomever it belongs; returns how many commands.
  template <class Group>
  GPUFS_DEVICE std::uint32_t poll(Group group) const {
    return in_.poll(group);
  }

  // Collective. Waits until the commands of the lanes with `mine` have ended, or until `until`. Returns for each its status, 0 or
  // more: the record, with its buffer, is the lane's until finish. Or -ETIMEDOUT, or -ENODEV, the controller is lost: then the
  // record is no longer the lane's, and the command's memory the controller's until has_ended.
  template <class Group>
  GPUFS_DEVICE int wait(Group group, bool mine, const ticket& of, const simt::deadline& until) const {
    simt::backoff pause;
    int result = 0;
    for (bool waits = mine;;) {
      status_word status = 0;
      if (waits && records_.is_done(of, status)) {
        result = static_cast<int>(status);
        waits = false;
      }
      if (!group.any(waits)) return result;
      const bool delivered = in_.poll(group) != 0;
      if (waits) {
        const int why = gate_error(*queue_.words) == -ENODEV ? -ENODEV : until.expired() ? -ETIMEDOUT : 0;
        if (why != 0 && records_.give_up(of)) {
          tell_host();
          result = why;
          waits = false;
        }
      }
      if (delivered) {
        pause.reset();
      } else {
        pause();
      }
    }
  }

  // Gives a record back whose command has ended. The lane's own, after wait.
  GPUFS_DEVICE void finish(const ticket& of) const { records_.finish(of); }
  // Whether the memory of a command that was given up may be used again. Somebody must poll for that to become true.
  GPUFS_DEVICE bool has_ended(const ticket& of) const { return records_.has_ended(of); }

  // The record's buffer: buffer_nbytes that the controller reaches.
  GPUFS_DEVICE std::byte* buffer(std::uint32_t record) const {
    return queue_.buffers.data + static_cast<std::uint64_t>(record) * queue_.buffer_nbytes;
  }

 private:
  // A mask without its n lowest bits; the number of its lowest bit (of a mask that is not 0).
  GPUFS_DEVICE static std::uint64_t drop_lowest(std::uint64_t mask, std::uint32_t n) {
    for (; n != 0; --n) mask &= mask - 1;
    return mask;
  }
  GPUFS_DEVICE static std::uint32_t lowest_bit(std::uint64_t mask) {
    const auto low = static_cast<std::uint32_t>(mask);
    return low != 0 ? simt::lowest_lane(low) : 32 + simt::lowest_lane(static_cast<std::uint32_t>(mask >> 32));
  }
  GPUFS_DEVICE int prps_of(const command& what, std::uint32_t record, prp_pair& out) const {
    if (what.what == opcode::flush) return 0;
    const std::uint64_t list = static_cast<std::uint64_t>(record) * queue_.list_pages;
    if (what.memory != nullptr)
      return make_prps(*what.memory, what.offset, what.nbytes, queue_.lists, list, queue_.list_pages, out);
    if (what.nbytes > queue_.buffer_nbytes) return -EFAULT;
    return make_prps(queue_.buffers, static_cast<std::uint64_t>(record) * queue_.buffer_nbytes, what.nbytes, queue_.lists, list,
                     queue_.list_pages, out);
  }
  GPUFS_DEVICE static submission submission_of(const command& what, std::uint32_t record, const prp_pair& prps) {
    submission made{};
    made.cdw0 = static_cast<std::uint32_t>(what.what) | record << 16;
    made.nsid = what.nsid;
    made.prp1 = prps.first;
    made.prp2 = prps.second;
    if (what.what != opcode::flush) {
      made.cdw10 = static_cast<std::uint32_t>(what.lba);
      made.cdw11 = static_cast<std::uint32_t>(what.lba >> 32);
      made.cdw12 = (what.nblocks - 1) | what.flags;
    }
    return made;
  }
  // A command was given up: the host looks which, and sees to it that its record comes back.
  GPUFS_DEVICE void tell_host() const {
    // Meets the host's acquire load in recover: the record's word comes before.
    simt::atomic_ref<std::uint64_t, simt::scope::system>(*queue_.given_up).store(simt::clock_ns(), std::memory_order_release);
  }

  const queue_layout& queue_;
  records records_;
  submission_queue out_;
  completion_queue in_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
