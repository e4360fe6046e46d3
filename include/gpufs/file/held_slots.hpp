// SPDX-License-Identifier: Apache-2.0
// Who holds a slot: references to it, the last of which closes the file on the host.
#pragma once
#include "gpufs/file/path_chains.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

class held_slots : public file_slots {
 public:
  GPUFS_DEVICE explicit held_slots(const file_mount& mount) : file_slots(mount) {}

  // Gives one open back; the last one closes the file on the host. One lane calls. 0 or a negative errno.
  GPUFS_DEVICE_COLD static int close(const file_mount* mount, file_number number, std::uint32_t start) {
    const held_slots table(*mount);
    const file_view opened = table.view_of_any(number);
    if (opened.error != 0) return opened.error;
    bool held = true;
    const int error = table.drop(opened.slot, start, held);
    if (!held) count_bad_number(mount);  // closed by another at the same moment
    return error;
  }

  struct last_close {
    bool done;
    int error;
  };
  // As close, if nobody else holds the file; else (or when it is not open) it does nothing. One lane calls.
  GPUFS_DEVICE_COLD static last_close close_if_last(const file_mount* mount, file_number number, std::uint32_t start) {
    const held_slots table(*mount);
    const file_view opened = table.view_of_any(number);
    if (opened.error != 0) return {false, opened.error};
    simt::atomic_ref<std::uint32_t> refs(opened.opened->refs);
    std::uint32_t before = refs.load(std::memory_order_relaxed);
    while (is_last_of_open(before)) {
      // As in drop.
      if (refs.compare_exchange(before, 1, std::memory_order_acq_rel)) return {true, table.retire(opened.slot, before, start)};
    }
    return {false, 0};
  }

 protected:
  GPUFS_DEVICE path_chains paths() const { return path_chains(mount_); }

  // What wait_open gives, and an open of a path, where the file is open for writing already, in another slot: of this one, which is
  // dead, cache_id is that one's index and handle its handle.
  static constexpr int open_elsewhere = 1;
  // What wait_open gives of a slot that is open, and had left its path's chain before.
  static constexpr int open_apart = 2;

  // Looks for a live slot of this path and takes a reference, as a look-up pins a page. Without the chain's lock the chain may
  // change under us; then the walk strays and ends after max_steps, and the caller looks again under the lock.
  GPUFS_DEVICE std::uint32_t join(path_bucket& chain, const path_name& name, std::uint32_t max_steps) const {
    std::uint32_t next = simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_acquire);
    for (std::uint32_t steps = 0; next != 0 && steps < max_steps; ++steps) {
      const std::uint32_t index = next - 1;
      file_slot* const found = blocks_.find_slot(index);
      if (found == nullptr) return none;  // a walk that strayed to a slot of a block that we do not see yet
      file_slot& slot = *found;
      if (path_chains::may_join(slot, name)) {
        const std::uint32_t before = simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_acquire);
        if ((before & slot_live) != 0 && path_chains::may_join(slot, name)) return index;
        drop(index, index);
        return none;
      }
      next = simt::atomic_ref<std::uint32_t>(slot.next).load(std::memory_order_acquire);
    }
    return none;
  }

  // Takes a reference to the file that the host knows by `handle`, and says is open for writing in this slot: whichever path it was
  // opened by, and whether that one still leads to it or not. False: it is being closed, or was. Waits for who is opening it.
  GPUFS_DEVICE bool join_file(std::uint32_t index, std::uint32_t handle) const {
    file_slot* const found = blocks_.find_slot(index);
    if (found == nullptr) return false;
    file_slot& slot = *found;
    // The acquire meets link's release; and wait_open's the opener's.
    const std::uint32_t before = simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_acquire);
    if ((before & (slot_live | slot_detached)) != 0) {
      const int error = wait_open(slot);
      if ((error == 0 || error == open_apart) &&
          simt::atomic_ref<std::uint32_t>(slot.handle).load(std::memory_order_relaxed) == handle) {
        return true;
      }
    }
    drop(index, index);
    return false;
  }

  GPUFS_DEVICE int wait_open(file_slot& slot) const {
    const simt::deadline until(2 * mount_.io_timeout_ns);
    simt::backoff pause;
    for (;;) {
      const std::uint32_t word = simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_acquire);
      if (state_of(word) == slot_state::open) return (word & slot_apart) != 0 ? open_apart : 0;
      if (state_of(word) == slot_state::dead) return slot.error;
      if (until.expired()) return -ETIMEDOUT;
      pause();
    }
  }

  // A slot that could not be taken out of its chain must never be used again. The lock's holders wait for nobody, so this
  // takes a kernel that was stopped in the middle.
  GPUFS_DEVICE void keep_for_ever(file_slot& slot) const {
    simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_relaxed);
    count_timeout();
  }

  // Gives a reference back. Whoever gives back the last one of a live slot closes the file; of a dead one, frees it. 0, what the
  // host said when it closed the file, or -EBADF and !held when there was none.
  GPUFS_DEVICE int drop(std::uint32_t index, std::uint32_t start, bool& held) const {
    file_slot& slot = this->slot(index);
    // Read while we hold the slot: once it is given back, it may be freed and taken for another path before we look again.
    const std::uint32_t generation = generation_of(simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_relaxed));
    simt::atomic_ref<std::uint32_t> refs(slot.refs);
    std::uint32_t before = refs.load(std::memory_order_relaxed);
    do {
      if ((before & slot_refs) == 0) {
        held = false;
        return -EBADF;
      }
      // The last one of an open slot keeps it, and nobody joins it from here on. The acquire meets the release of those who gave
      // theirs back: what they wrote, listed and stored.
    } while (!refs.compare_exchange(before, is_last_of_open(before) ? 1 : before - 1, std::memory_order_acq_rel));
    if (is_last_of_open(before)) return retire(index, before, start);
    if (before == 1) recycle(slot, index, generation);
    return 0;
  }
  GPUFS_DEVICE void drop(std::uint32_t index, std::uint32_t start) const {
    bool held = true;
    drop(index, start, held);
  }

  // Closes a slot whose refs were `before` until we took its end: it is ours, and stays this path's, until we give it back. We do
  // so when the host has closed the file, so that no more files are open there than there are slots.
  GPUFS_DEVICE_COLD int retire(std::uint32_t index, std::uint32_t before, std::uint32_t start) const {
    file_slot& slot = this->slot(index);
    path_bucket& chain = paths().chain_of(slot);
    if (!paths().lock(chain, simt::deadline(mount_.io_timeout_ns))) {
      keep_for_ever(slot);
      return -ETIMEDOUT;
    }
    if ((before & slot_live) != 0) paths().unlink(chain, index);
    simt::atomic_ref<std::uint32_t> word(slot.word);
    const std::uint32_t handle = slot.handle;
    const std::uint32_t generation = generation_of(word.load(std::memory_order_relaxed));
    for (std::uint32_t shard = 0; shard < file_shards; ++shard)
      put(entry(index, shard)->word, word_of(generation, slot_state::dead));
    word.store(word_of(generation, slot_state::dead), std::memory_order_release);
    paths().unlock(chain);
    const bool written = mode_of(slot) != slot_mode::read;
    const bool left = written && has_left_pages(index);
    if (left) forget_unwritten(index);
    // What has been synced is the file's own: who cuts that later takes nothing from us.
    const bool unsynced = written && simt::atomic_ref<std::uint32_t>(slot.unsynced).load(std::memory_order_relaxed) != 0;
    const std::uint64_t stored = unsynced ? simt::atomic_ref<std::uint64_t>(slot.stored_nbytes).load(std::memory_order_relaxed) : 0;
    const names::closed closed = mount_names(mount_, start).close(handle, stored);
    const int error = stored != 0 ? closed.error : 0;
    if (!closed.asked) return error;  // still open there: the slot stays taken, too
    if (left && has_lost_list(index)) mount_requests(mount_).end_late();
    if (left && has_lost_list(index)) return error;  // as does one whose file the host may yet write
    if (simt::atomic_ref<std::uint32_t>(slot.refs).fetch_sub(1, std::memory_order_acq_rel) == 1) recycle(slot, index, generation);
    return error;
  }

 private:
  // Whether pages are listed or a list is lost, as a close has told that could not bring all to the host. One lane's loads, all
  // under way together; drop's acquire, or close_if_last's, comes before them.
  GPUFS_DEVICE bool has_left_pages(std::uint32_t index) const {
    bool unused = true;
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) unused &= cache::dirty_pages::is_unused(list(index, i));
    return !unused;
  }

  GPUFS_DEVICE bool has_lost_list(std::uint32_t index) const {
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      if (cache::dirty_pages::is_lost(list(index, i))) return true;
    }
    return false;
  }

  // What close could not even send to the host, as it has told: else it would go to the next file that uses the slot.
  GPUFS_DEVICE void forget_unwritten(std::uint32_t index) const {
    const cache::dirty_pages pages(mount_.cache);
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      const auto next = [&] { return pages.leave(list(index, i), [](cache::frame_index) { return false; }); };
      for (auto left = next(); left.found; left = next()) {
        pages.begin_write_back(left.frame);
        pages.unmark(simt::this_thread(), left.frame, 0);
        cache::frames(mount_.cache).unpin(left.frame);
        simt::atomic_ref<std::uint64_t>(mount_.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
        simt::atomic_ref<std::uint64_t>(mount_.words->write_errors).add_relaxed(1);
      }
    }
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
