// SPDX-License-Identifier: Apache-2.0
// References to the slots of open files. When the last reference to a slot is given back, the host closes the file.
#pragma once
#include "gpufs/file/detail/path_chains.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

class held_slots : public file_slots {
 public:
  GPUFS_DEVICE explicit held_slots(const file_mount& mount) : file_slots(mount) {}

  // Gives back one open of the file. The last one closes the file on the host, and waits for the host's answer. One lane calls.
  // Returns 0 or a negative errno. `start` is the ring where the search for a request slot starts.
  GPUFS_DEVICE_COLD static int close(const file_mount* mount, file_number number, std::uint32_t start) {
    const held_slots table(*mount);
    const file_view opened = table.view_of_any(number);
    if (opened.error != 0) return opened.error;
    bool held = true;
    const int error = table.drop(opened.slot, start, giver::program, held);
    if (!held) count_bad_number(mount);  // another lane has closed the file at the same moment
    return error;
  }

  struct last_close {
    bool done;
    int error;
  };
  // Does what close does if nobody else holds the file. Otherwise, or if the file is not open, it does nothing. One lane calls.
  GPUFS_DEVICE_COLD static last_close close_if_last(const file_mount* mount, file_number number, std::uint32_t start) {
    const held_slots table(*mount);
    const file_view opened = table.view_of_any(number);
    if (opened.error != 0) return {false, opened.error};
    simt::atomic_ref<std::uint32_t> refs(opened.opened->refs);
    std::uint32_t before = refs.load(std::memory_order_relaxed);
    while (is_last_of_open(before)) {
      // acq_rel as in drop.
      if (refs.compare_exchange(before, 1, std::memory_order_acq_rel)) return {true, table.retire(opened.slot, before, start)};
    }
    return {false, 0};
  }

 protected:
  GPUFS_DEVICE path_chains paths() const { return path_chains(mount_); }

  // A result of wait_open, and of an open of a path: the file is already open for writing, in another slot. Then this slot is dead.
  // Its cache_id holds the index of the other slot, and its handle holds the handle of that slot.
  static constexpr int open_elsewhere = 1;
  // A result of wait_open: the slot is open, but it left its path's chain before it was open.
  static constexpr int open_apart = 2;

  // Looks for a slot of this path that opens may join (slot_joinable), and takes a reference to it. Returns the slot's index, or
  // `none`. The order is that of a look-up that pins a page: first add the reference, then check that the slot still is the one
  // that was looked for. If the caller does not hold the chain's lock, the chain may change during the walk. The walk may then
  // stray into another chain; it ends after max_steps, and the caller looks again under the lock. A reference to a slot that proves
  // to be another goes back at once; or, where the caller holds the lock, which closing the slot takes, it is left in `unwanted`,
  // for the caller to drop after that.
  GPUFS_DEVICE std::uint32_t join(path_bucket& chain, const path_name& name, std::uint32_t max_steps,
                                  std::uint32_t* unwanted = nullptr) const {
    // The acquires of `head`, `next` and `refs` meet the releases of path_chains::link and unlink.
    std::uint32_t next = simt::atomic_ref<std::uint32_t>(chain.head).load(std::memory_order_acquire);
    for (std::uint32_t steps = 0; next != 0 && steps < max_steps; ++steps) {
      const std::uint32_t index = next - 1;
      file_slot* const found = blocks_.find_slot(index);
      if (found == nullptr) return none;  // the walk strayed to a slot of a block that we do not see yet
      file_slot& slot = *found;
      if (path_chains::may_join(slot, name)) {
        const std::uint32_t before = simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_acquire);
        if ((before & slot_joinable) != 0 && path_chains::may_join(slot, name)) return index;
        if (unwanted == nullptr) {
          drop(index, index);
        } else {
          *unwanted = index;
        }
        return none;
      }
      next = simt::atomic_ref<std::uint32_t>(slot.next).load(std::memory_order_acquire);
    }
    return none;
  }

  // Takes a reference to a file that is open for writing. The host has named the slot (`index`) and its own `handle` for the file.
  // The file may have been opened by any path, and that path need not lead to it any more. Waits while the slot's opener still
  // waits for the host. False: the file is being closed, or was closed.
  GPUFS_DEVICE bool join_file(std::uint32_t index, std::uint32_t handle) const {
    file_slot* const found = blocks_.find_slot(index);
    if (found == nullptr) return false;
    file_slot& slot = *found;
    // The acquire meets the release of path_chains::link. The acquire in wait_open meets the opener's release.
    const std::uint32_t before = simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_acquire);
    if ((before & (slot_joinable | slot_detached)) != 0) {
      const int error = wait_open(slot);
      if ((error == 0 || error == open_apart) &&
          simt::atomic_ref<std::uint32_t>(slot.handle).load(std::memory_order_relaxed) == handle) {
        return true;
      }
    }
    drop(index, index);
    return false;
  }

  // Waits until the slot's opener has the host's answer, at most twice the I/O timeout. Returns 0, open_elsewhere, open_apart, or a
  // negative errno: the error of the open, or -ETIMEDOUT.
  GPUFS_DEVICE int wait_open(file_slot& slot) const {
    const simt::deadline until(2 * mount_.io_timeout_ns);
    simt::backoff pause;
    for (;;) {
      // Meets the releases of ask_host and fail (file_table) and of retire: the slot's fields are set.
      const std::uint32_t word = simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_acquire);
      if (state_of(word) == slot_state::open) return (word & slot_apart) != 0 ? open_apart : 0;
      if (state_of(word) == slot_state::dead) return slot.error;
      if (until.expired()) return -ETIMEDOUT;
      pause();
    }
  }

  // Adds a reference that nobody gives back, so that the slot is never used again. Callers could not get the lock of the slot's
  // chain in time, so the slot is still in the chain. Holders of that lock wait for nobody, so this happens only after a kernel
  // was stopped while it held the lock.
  GPUFS_DEVICE void keep_for_ever(file_slot& slot) const {
    simt::atomic_ref<std::uint32_t>(slot.refs).fetch_add(1, std::memory_order_relaxed);
    count_timeout();
  }

  // Who gives a reference back: a lane that took it, or a close by a program, which may close more often than it has opened.
  enum class giver { lane, program };

  // Gives a reference back. The caller that gives back the last reference to an open slot closes the file; the last reference to a
  // dead slot frees the slot. Returns 0 or the error of the host's close. If the caller had no reference, it returns -EBADF and
  // sets `held` to false.
  //
  // Where there are several, it subtracts: thousands of groups close one file at a time, and of so many compare-exchanges on one
  // word one succeeds in 6 us. The acquires meet the releases of the earlier drops: the last one sees what those lanes wrote to
  // pages, entered into lists and stored into the mapping.
  GPUFS_DEVICE int drop(std::uint32_t index, std::uint32_t start, giver by, bool& held) const {
    file_slot& slot = this->slot(index);
    // Read the generation before the reference goes: after that the slot may be freed and used for another path at once.
    const std::uint32_t generation = generation_of(simt::atomic_ref<std::uint32_t>(slot.word).load(std::memory_order_relaxed));
    constexpr std::uint32_t flags = slot_joinable | slot_detached;
    const auto has_one = [&](std::uint32_t seen) {
      const bool is_closers = by == giver::program && (seen & flags) == 0;  // retire's, or that of a lane that looks the slot up
      return (seen & slot_refs) != 0 && (seen & slot_refs_below_0) == 0 && !is_closers;
    };
    simt::atomic_ref<std::uint32_t> refs(slot.refs);
    for (std::uint32_t before = refs.load(std::memory_order_relaxed);;) {
      held = has_one(before);
      if (!held) return -EBADF;
      if ((before & slot_refs) > 1) break;
      const bool is_last = is_last_of_open(before);
      // The last reference to an open slot stays, and no open joins the slot from here on.
      if (!refs.compare_exchange(before, is_last ? 1 : 0, std::memory_order_acq_rel)) continue;
      if (is_last) return retire(index, before, start);
      recycle(slot, index, generation);
      return 0;
    }
    std::uint32_t now = refs.fetch_sub(1, std::memory_order_acq_rel) - 1;
    held = has_one(now + 1);
    if (!held) now = refs.fetch_add(1, std::memory_order_acq_rel) + 1;
    if (held && now == 0) recycle(slot, index, generation);
    // Others have given theirs back meanwhile. Until the compare-exchange an open may still join: then that one is the last.
    while ((now & slot_refs) == 0 && (now & flags) != 0) {
      if (!refs.compare_exchange(now, 1, std::memory_order_acq_rel)) continue;
      const int error = retire(index, now, start);
      return held ? error : -EBADF;
    }
    return held ? 0 : -EBADF;
  }
  GPUFS_DEVICE void drop(std::uint32_t index, std::uint32_t start) const {
    bool held = true;
    drop(index, start, giver::lane, held);
  }

  // Closes an open slot. `before` has the flags that `refs` had before the caller took the last reference. The caller owns the
  // slot, and no other path gets it, until the caller gives that reference back at the end. This happens after the host has closed
  // the file, so the host never has more files open than there are slots.
  GPUFS_DEVICE_COLD int retire(std::uint32_t index, std::uint32_t before, std::uint32_t start) const {
    file_slot& slot = this->slot(index);
    path_bucket& chain = paths().chain_of(slot);
    if (!paths().lock(chain, simt::deadline(mount_.io_timeout_ns))) {
      keep_for_ever(slot);
      return -ETIMEDOUT;
    }
    if ((before & slot_joinable) != 0) paths().unlink(chain, index);
    simt::atomic_ref<std::uint32_t> word(slot.word);
    const std::uint32_t handle = slot.handle;
    const std::uint32_t generation = generation_of(word.load(std::memory_order_relaxed));
    for (std::uint32_t shard = 0; shard < file_shards; ++shard)
      put(entry(index, shard)->word, word_of(generation, slot_state::dead));
    word.store(word_of(generation, slot_state::dead), std::memory_order_release);  // meets the acquires of is_open and wait_open
    paths().unlock(chain);
    const bool written = mode_of(slot) != slot_mode::read;
    const bool left = written && has_left_pages(index);
    if (left) forget_unwritten(index);
    // Stores from before the last sync are safely in the file: if the file is truncated later, no write of this open is lost. So
    // the host need only check the mapping if something was stored since.
    const bool unsynced = written && simt::atomic_ref<std::uint32_t>(slot.unsynced).load(std::memory_order_relaxed) != 0;
    const std::uint64_t in_place_nbytes =
        unsynced ? simt::atomic_ref<std::uint64_t>(slot.in_place_nbytes).load(std::memory_order_relaxed) : 0;
    const names::closed closed = mount_names(mount_, start).close(handle, in_place_nbytes);
    const int error = in_place_nbytes != 0 ? closed.error : 0;
    if (!closed.asked) return error;  // the host still has the file open, so the slot stays taken
    if (left && has_lost_list(index)) mount_requests(mount_).end_late();
    if (left && has_lost_list(index)) return error;  // the host may still write the file, so the slot stays taken
    // acq_rel as in drop: a look-up that strayed here may give the last reference back instead.
    if (simt::atomic_ref<std::uint32_t>(slot.refs).fetch_sub(1, std::memory_order_acq_rel) == 1) recycle(slot, index, generation);
    return error;
  }

 private:
  // Whether the slot still has dirty pages in its lists, or a list is lost. Then close could not bring all pages to the host, and
  // has returned that error. One lane issues all loads together. The acquire of drop or close_if_last comes before them.
  GPUFS_DEVICE bool has_left_pages(std::uint32_t index) const {
    bool unused = true;
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) unused &= cache::dirty_pages::is_unused(list(index, i));
    return !unused;
  }

  // Whether the host has not answered a write-back of some list.
  GPUFS_DEVICE bool has_lost_list(std::uint32_t index) const {
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      if (cache::dirty_pages::is_lost(list(index, i))) return true;
    }
    return false;
  }

  // Forgets the dirty pages that close could not send to the host; close has returned that error. If they stayed in the lists, they
  // would be written to the next file that uses the slot.
  GPUFS_DEVICE void forget_unwritten(std::uint32_t index) const {
    const cache::dirty_pages pages(mount_.cache);
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      const auto next = [&] { return pages.leave(list(index, i), [](cache::frame_index) { return false; }); };
      for (auto left = next(); left.found; left = next()) {
        pages.begin_write_back(left.frame);
        pages.unmark(simt::this_thread(), left.frame, 0);
        cache::frames::unpin_after_writes(cache::frames(mount_.cache).state_word(left.frame), 1);  // of its mask
        simt::atomic_ref<std::uint64_t>(mount_.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
        simt::atomic_ref<std::uint64_t>(mount_.words->write_errors).add_relaxed(1);
      }
    }
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
