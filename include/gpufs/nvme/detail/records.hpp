// SPDX-License-Identifier: Apache-2.0
// Who has a record, and what becomes of its command. A record's number is the command's identifier; it says nothing of the
// command's slot. There are fewer records than slots and than entries, so whoever has one never passes a full queue
// (docs/design/nvme.md).
#pragma once
#include <cstdint>

#include "gpufs/nvme/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

// A command under way: the record that it has, and the how-manieth use of it. Its owner is the lane that submitted it, until its
// completion has been taken, or it was given up.
struct ticket {
  std::uint32_t record;
  std::uint32_t use;
};

class records {
 public:
  GPUFS_DEVICE explicit records(const queue_layout& queue) : queue_(queue) {}

  // Some records that lie in one word of free_records: bit i of `mask` is record first + i.
  struct taken {
    std::uint64_t mask;
    std::uint32_t first;
  };
  // Takes up to `most` (1 to 32) free ones; the search starts at word `start`. mask 0: all are in use. One lane calls.
  GPUFS_DEVICE taken take(std::uint32_t start, std::uint32_t most) const {
    const std::uint32_t nwords = (queue_.nrecords + 63) / 64;
    for (std::uint32_t i = 0; i < nwords; ++i) {
      const std::uint32_t at = (start + i) % nwords;
      const simt::atomic_ref<std::uint64_t> word(queue_.free_records[at]);
      std::uint64_t free = word.load_relaxed();
      while (free != 0) {
        std::uint64_t rest = free;
        for (std::uint32_t n = 0; n < most && rest != 0; ++n) rest &= rest - 1;
        // Meets the release of give_back: records, lists and buffers are written after their last use.
        if (word.compare_exchange(free, rest, std::memory_order_acquire)) return {free & ~rest, at * 64};
      }
    }
    return {0, 0};
  }
  // Gives records back whose words are idle.
  GPUFS_DEVICE void give_back(const taken& some) const {
    // Meets the acquire of take.
    simt::atomic_ref<std::uint64_t>(queue_.free_records[some.first / 64]).fetch_or(some.mask, std::memory_order_release);
  }

  // The record's next use begins. Its holder calls, before the command is published, which publishes this word too.
  GPUFS_DEVICE ticket begin(std::uint32_t record, std::uint32_t epoch) const {
    const std::uint32_t use = record_word::use(word(record).load_relaxed()) + 1;
    word(record).store(record_word::make(record_state::pending, epoch, use), std::memory_order_relaxed);
    return {record, use};
  }

  // Whether the command has ended; then takes its status. The record stays the caller's, with its buffer.
  GPUFS_DEVICE bool is_done(const ticket& of, status_word& status) const {
    // Meets the release of deliver, or of end_old: the command's data are there, or it is the controller's no more.
    const std::uint64_t now = word(of.record).load(std::memory_order_acquire);
    if (record_word::state(now) != record_state::done) return false;
    status = record_word::status(now);
    return true;
  }
  // Gives a record back whose command is done.
  GPUFS_DEVICE void finish(const ticket& of) const {
    word(of.record).store(record_word::make(record_state::idle, 0, of.use), std::memory_order_relaxed);
    give_back({std::uint64_t{1} << of.record % 64, of.record / 64 * 64});
  }

  // The caller waits no longer. False: the command is done, and the record still the caller's.
  GPUFS_DEVICE bool give_up(const ticket& of) const {
    std::uint64_t now = word(of.record).load_relaxed();
    while (record_word::state(now) == record_state::pending) {
      const std::uint64_t next = record_word::make(record_state::given_up, record_word::epoch(now), of.use);
      // Release: with the word, the host's look at it comes after what the lane has done with the command. Meets deliver and
      // end_old.
      if (word(of.record).compare_exchange(now, next, std::memory_order_release)) return true;
    }
    return false;
  }
  // Whether memory of a command that was given up is the controller's no more: its completion has come, or the queue has ended.
  GPUFS_DEVICE bool has_ended(const ticket& of) const {
    // Meets the release of end: what the controller did with that memory comes before what the caller does.
    const std::uint64_t now = word(of.record).load(std::memory_order_acquire);
    return record_word::use(now) != of.use || record_word::state(now) == record_state::idle;
  }

  // The controller has said what became of command `id`. False: no such command is under way. Of the poller alone.
  GPUFS_DEVICE bool deliver(std::uint32_t id, status_word status) const {
    return id < queue_.nrecords && end(id, word(id).load_relaxed(), status);
  }
  // Ends the record's command if it was sent in an epoch other than `epoch`: its queue is gone. Of the poller alone.
  GPUFS_DEVICE void end_old(std::uint32_t id, std::uint32_t epoch) const {
    const std::uint64_t now = word(id).load_relaxed();
    if (record_word::epoch(now) != (epoch & record_word::epoch_mask)) end(id, now, code::queue_deleted);
  }

 private:
  GPUFS_DEVICE simt::atomic_ref<std::uint64_t> word(std::uint32_t record) const {
    return simt::atomic_ref<std::uint64_t>(queue_.records[record]);
  }
  GPUFS_DEVICE bool end(std::uint32_t id, std::uint64_t now, status_word status) const {
    for (;;) {
      const std::uint32_t use = record_word::use(now), epoch = record_word::epoch(now);
      if (record_word::state(now) == record_state::pending) {
        // Meets is_done's acquire: the waiter reads the data.
        if (word(id).compare_exchange(now, record_word::make(record_state::done, epoch, use, status), std::memory_order_acq_rel)) {
          return true;
        }
      } else if (record_word::state(now) == record_state::given_up) {
        // Nobody waits: the record is free. Meets has_ended's acquire.
        if (word(id).compare_exchange(now, record_word::make(record_state::idle, 0, use), std::memory_order_acq_rel)) {
          give_back({std::uint64_t{1} << id % 64, id / 64 * 64});
          return true;
        }
      } else {
        return false;
      }
    }
  }

  const queue_layout& queue_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
