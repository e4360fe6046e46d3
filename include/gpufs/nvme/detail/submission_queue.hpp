// SPDX-License-Identifier: Apache-2.0
// The submission queue: places for a group's commands, their publication, and the doorbell (docs/design/nvme.md, "Submission").
// After BaM (Qureshi et al., ASPLOS 2023, section 3.3), with one reservation and one publication for a group, and an order of
// memory that the model of PTX promises.
#pragma once
#include <cstdint>
#include <cstring>

#include "gpufs/nvme/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

class submission_queue {
 public:
  GPUFS_DEVICE explicit submission_queue(const queue_layout& queue) : queue_(queue), words_(*queue.words) {}

  // Reserves n positions (1 to 32) in a row. False: the controller has not fetched enough of what is there. One lane calls, for a
  // group that is inside the gate and has n records; it must publish them before it leaves.
  GPUFS_DEVICE bool reserve(std::uint32_t n, std::uint64_t& first) const {
    const simt::atomic_ref<std::uint64_t> tail(words_.tail);
    // Meets the poller's release (completion_queue): the controller has fetched what was there.
    const std::uint64_t head = simt::atomic_ref<std::uint64_t>(words_.head).load(std::memory_order_acquire);
    first = tail.load_relaxed();
    // A full queue keeps one slot empty. A tail that is behind the head is an old one, and the exchange fails.
    while (static_cast<std::int64_t>(first + n - head) <= static_cast<std::int64_t>(queue_.nslots) - 1) {
      // Meets the same of others: who reserves later sees the heads that gave their records free.
      if (tail.compare_exchange(first, first + n, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  // Writes the command to its position. Each lane for its own.
  GPUFS_DEVICE void write(std::uint64_t position, const submission& command) const {
    simt::vec16 words[4];
    std::memcpy(words, &command, sizeof words);
    auto* to = reinterpret_cast<simt::vec16*>(&queue_.commands[position % queue_.nslots]);
    for (int i = 0; i < 4; ++i) simt::store_device_16(&to[i], words[i]);
  }

  // The commands of n positions from `first` on are written, by lanes that the caller has met since. One lane calls: it rings the
  // doorbell, for all that is published, or leaves that to whoever rings now.
  GPUFS_DEVICE void publish(std::uint64_t first, std::uint32_t n) const {
    // Meets the acquire in sweep: the ringer has the commands, lists and records in its past.
    slot_of(first).store((first + 1) << 6 | n, std::memory_order_release);
    const simt::atomic_ref<std::uint32_t> ringers(words_.ringers);
    // Meets the subtraction below, of whoever rings now: it sees what was published, or this 1.
    if (ringers.fetch_add(1, std::memory_order_acq_rel) != 0) return;
    std::uint32_t seen = 1;
    do {
      sweep();
      seen = ringers.fetch_sub(seen, std::memory_order_acq_rel) - seen;
    } while (seen != 0);
  }

 private:
  GPUFS_DEVICE simt::atomic_ref<std::uint64_t> slot_of(std::uint64_t position) const {
    return simt::atomic_ref<std::uint64_t>(queue_.published[position % queue_.nslots]);
  }
  // One lane at a time.
  GPUFS_DEVICE void sweep() const {
    std::uint64_t to = words_.rung;
    for (;;) {
      // Meets the release of publish. The word names its position: one of an earlier turn is none.
      const std::uint64_t word = slot_of(to).load(std::memory_order_acquire);
      if (word >> 6 != to + 1) break;
      to += word & 63;
    }
    if (to == words_.rung) return;
    // Meets the controller's read of the doorbell, after which it reads the commands: of all lanes, whose releases this lane has
    // acquired.
    simt::fence(std::memory_order_acq_rel, simt::scope::system);
    simt::store_register(queue_.command_bell, static_cast<std::uint32_t>(to % queue_.nslots));
    words_.rung = to;
    ++words_.ndoorbells;
  }

  const queue_layout& queue_;
  queue_words& words_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
