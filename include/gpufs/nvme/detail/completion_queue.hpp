// SPDX-License-Identifier: Apache-2.0
// The completion queue: whoever polls it delivers to all (docs/design/nvme.md, "Completion").
#pragma once
#include <cstdint>
#include <cstring>

#include "gpufs/nvme/detail/gate.hpp"
#include "gpufs/nvme/detail/records.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::nvme {
inline namespace GPUFS_MACHINE {

class completion_queue {
 public:
  GPUFS_DEVICE explicit completion_queue(const queue_layout& queue) : queue_(queue), words_(*queue.words), records_(queue) {}

  // Collective, for a thread, a tile of a warp, or a warp. Delivers what completions there are, to whomever they belong, as many at
  // a time as the group has lanes. Returns how many; 0 also while another group does this, and while the gate is closed. Waits for
  // nobody. Out of line: who waits calls it from several places.
  template <class Group>
  GPUFS_DEVICE_COLD std::uint32_t poll(Group group) const {
    const simt::atomic_ref<std::uint32_t> polling(words_.polling);
    bool mine = false;
    if (group.leader()) {
      // Meets the release below: the poller's words are as the last one left them.
      mine = gate_error(words_) == 0 && polling.exchange(1, std::memory_order_acquire) == 0;
      if (mine && look_from_inside(words_) != 0) {
        polling.store(0, std::memory_order_relaxed);
        mine = false;
      }
    }
    if (!group.broadcast(mine)) return 0;
    end_old(group);
    std::uint64_t at = group.broadcast(group.leader() ? words_.taken : 0);
    std::uint32_t delivered = 0;
    for (std::uint32_t n = group.size(); n == group.size() && delivered < queue_.nentries; at += n, delivered += n)
      n = take(group, at);
    group.sync();  // all lanes have read their entries, and delivered
    if (group.leader()) {
      words_.taken = at;
      if (at - words_.told >= (queue_.nentries + 3) / 4 || (delivered == 0 && at != words_.told)) {
        // Meets the controller's read of the doorbell, after which it writes where these entries were: the loads come before.
        simt::fence(std::memory_order_acq_rel, simt::scope::system);
        simt::store_register(queue_.completion_bell, static_cast<std::uint32_t>(at % queue_.nentries));
        words_.told = at;
      }
      // Meets the exchange above, and the host's look at `polling`.
      polling.store(0, std::memory_order_release);
    }
    return delivered;
  }

 private:
  // Commands of queues that are no more. The first poller of the new ones ends them.
  template <class Group>
  GPUFS_DEVICE void end_old(Group group) const {
    const std::uint32_t epoch = epoch_of(words_);
    if (!group.broadcast(group.leader() && words_.seen_epoch != epoch)) return;
    // Each record by one lane: of lanes that lie apart the first alone is the group's (lanes_with_commands).
    if (group.rank() < group.size()) {
      for (std::uint32_t id = group.rank(); id < queue_.nrecords; id += group.size()) records_.end_old(id, epoch);
    }
    group.sync();
    if (group.leader()) words_.seen_epoch = epoch;
  }

  // The phase that an entry at this position has when it is new: 1 in the first turn, then 0, and so on.
  GPUFS_DEVICE std::uint32_t phase_at(std::uint64_t position) const { return ~(position / queue_.nentries) & 1; }

  // Delivers the new entries among the group's next ones, from position `first` on: how many.
  template <class Group>
  GPUFS_DEVICE std::uint32_t take(Group group, std::uint64_t first) const {
    const std::uint64_t position = first + group.rank();
    // One load, which has the entry's other words if it has the new phase. Meets the controller's write.
    const simt::vec16 words = simt::load_published_16(&queue_.completions[position % queue_.nentries]);
    completion entry;
    std::memcpy(&entry, &words, sizeof entry);
    const bool is_new = (entry.status >> 16 & 1) == phase_at(position) && group.rank() < queue_.nentries;
    const std::uint32_t news = group.ballot(is_new);
    const std::uint32_t n = ~news == 0 ? simt::warp_lanes : simt::lowest_lane(~news);  // in a row
    if (n == 0) return 0;
    const std::uint32_t fetched = group.shfl(entry.submission_queue, n - 1) & 0xffff;
    if (group.leader()) move_head(fetched);
    group.sync();
    if (group.rank() < n &&
        (entry.submission_queue >> 16 != queue_.id || !records_.deliver(entry.status & 0xffff, entry.status >> 17))) {
      simt::atomic_ref<std::uint64_t>(words_.nunexpected).add_relaxed(1);
    }
    return n;
  }

  // The controller has fetched all up to this slot. That says nothing of what is done.
  GPUFS_DEVICE void move_head(std::uint32_t slot) const {
    const std::uint64_t head = words_.head;
    const std::uint64_t to = head + (slot + queue_.nslots - head % queue_.nslots) % queue_.nslots;
    const std::uint64_t tail = simt::atomic_ref<std::uint64_t>(words_.tail).load_relaxed();
    if (slot >= queue_.nslots || to > tail) {  // no controller that keeps to the rules says this
      simt::atomic_ref<std::uint64_t>(words_.nunexpected).add_relaxed(1);
    } else {
      // Meets reserve's acquire: these slots may be written.
      simt::atomic_ref<std::uint64_t>(words_.head).store(to, std::memory_order_release);
    }
  }

  const queue_layout& queue_;
  queue_words& words_;
  records records_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::nvme
