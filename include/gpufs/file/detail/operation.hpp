// SPDX-License-Identifier: Apache-2.0
// An operation: a page on its way into its frame, which belongs to nobody. A lane that comes by once the host has answered ends it.
// docs/design/operations.md
#pragma once
#include "gpufs/cache/detail/page_cache.hpp"
#include "gpufs/file/detail/blocks.hpp"
#include "gpufs/transport/detail/requests.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// The words of a frame's operation, for one lane. An operation owns its frame's fill, one pin of the frame, and a request slot,
// which nobody waits at: it is abandoned from the beginning. What ends the operation is a compare-exchange on its word: whoever
// makes it 0 owns the fill and that pin.
// Of a page that the copy engine brings in, bytes come to the frame until the host has answered. So when a caller that has waited
// gives such an operation up, one pin of the frame stays with the request slot, and the caller that takes the slot back gives the
// pin back.
class operation {
 public:
  // The request that it waits for, and whether the answer may be in the frame.
  struct asked {
    transport::ticket ticket;
    bool to_frame;
  };

  GPUFS_DEVICE operation(const file_mount& mount, cache::frame_index frame) : mount_(mount), frame_(frame) {}

  // In the request: the frame + 1, and the file's slot, whose counters count the page.
  GPUFS_DEVICE std::uint64_t token(std::uint32_t slot) const {
    return std::uint64_t{slot} << 32 | (static_cast<std::uint32_t>(frame_) + 1);
  }
  GPUFS_DEVICE static bool is_token(std::uint64_t token) { return static_cast<std::uint32_t>(token) != 0; }
  GPUFS_DEVICE static cache::frame_index frame_of(std::uint64_t token) {
    return cache::frame_index{static_cast<std::uint32_t>(token) - 1};
  }
  GPUFS_DEVICE static std::uint32_t slot_of(std::uint64_t token) { return static_cast<std::uint32_t>(token >> 32); }

  // Room for one more operation. False: there are as many as there may be, a quarter of the frames, so that the other frames can be
  // had although nobody ends an operation for long. A caller that begins none after all gives the room back.
  GPUFS_DEVICE static bool take_room(const file_mount& mount) {
    const std::uint64_t most = mount.cache.frames.nframes < 4 ? 1 : mount.cache.frames.nframes / 4;
    if (count_of(mount).fetch_add(1, std::memory_order_relaxed) < most) return true;
    give_room_back(mount);
    return false;
  }
  // Also one that was given up, whose frame waits for a copy.
  GPUFS_DEVICE static bool are_there(const file_mount& mount) {
    return count_of(mount).load(std::memory_order_relaxed) != 0 || are_copies_held(mount);
  }
  GPUFS_DEVICE static void give_room_back(const file_mount& mount) { count_of(mount).fetch_sub(1, std::memory_order_relaxed); }

  // Makes the frame's fill, which the caller holds, an operation. The caller has taken room, and has not sent the request yet.
  GPUFS_DEVICE void begin(const asked& of) const {
    if (of.to_frame) note_copy_moved(mount_);
    word().store(word_of(of), std::memory_order_release);
  }

  // False: there is none, or it is being ended.
  GPUFS_DEVICE bool look(asked& of) const {
    const std::uint64_t now = word().load(std::memory_order_acquire);  // meets begin's release
    const auto low = static_cast<std::uint32_t>(now);
    of = {{(low & ~to_frame_bit) - 1, static_cast<std::uint32_t>(now >> 32)}, (low & to_frame_bit) != 0};
    return now != 0;
  }

  // Takes the fill over: from now on it is the caller's, which fills the frame and calls end. False: another caller was first.
  GPUFS_DEVICE bool take(const asked& of) const {
    std::uint64_t seen = word_of(of);
    if (!word().compare_exchange(seen, 0, std::memory_order_acq_rel)) return false;
    give_room_back(mount_);
    if (of.to_frame) note_copy_moved(mount_);
    return true;
  }
  // The same for a caller that has the page pinned and does not wait for the answer any more: then the caller must call fail. A
  // frame that bytes may come to stays pinned until end_given_up.
  GPUFS_DEVICE bool take_without_answer(const asked& of) const {
    if (!of.to_frame) return take(of);
    // The pin comes before take, so that the lane that takes the slot back meanwhile finds it.
    cache::frames(mount_.cache).pin_more(frame_, 1);
    held_copies_of(mount_).fetch_add(1, std::memory_order_relaxed);
    if (take(of)) return true;
    end_given_up(of);
    return false;
  }
  // Called by the lane that has taken the request slot back, if take has returned false: the operation was given up.
  GPUFS_DEVICE void end_given_up(const asked& of) const {
    if (!of.to_frame) return;
    cache::page_cache<>(mount_.cache).unpin(frame_);
    held_copies_of(mount_).fetch_sub(1, std::memory_order_relaxed);
  }

  // Whether the copy engine brings pages in, and no copy is known to be held back.
  GPUFS_DEVICE static bool may_copy(const file_mount& mount) { return mount.copy_timeout_ns != 0 && !are_copies_held(mount); }
  GPUFS_DEVICE static bool are_copies_held(const file_mount& mount) {
    return held_copies_of(mount).load(std::memory_order_relaxed) != 0;
  }
  // Whether a page that the engine was asked for may never come while the caller runs.
  GPUFS_DEVICE static bool is_copy_in_doubt(const file_mount& mount) {
    const std::uint64_t moved = simt::atomic_ref<std::uint64_t>(mount.words->copy_moved_ns).load(std::memory_order_relaxed);
    return are_copies_held(mount) || simt::clock_ns() > moved + mount.copy_timeout_ns;
  }
  GPUFS_DEVICE static void note_copy_moved(const file_mount& mount) {
    simt::atomic_ref<std::uint64_t>(mount.words->copy_moved_ns).store(simt::clock_ns(), std::memory_order_relaxed);
  }

  // Ends the fill, and gives the operation's pin back. After the group's sync. `slot`: the file's, whose counters count the page.
  GPUFS_DEVICE void fail() const { end_fill(cache::frames::nobodys_error); }
  GPUFS_DEVICE void end(std::uint32_t slot, int error) const {
    if (error != 0) return fail();
    const cache::page_cache<> pages(mount_.cache);
    end_fill(0);
    call_counters& counters = file_blocks(mount_).counters(slot);
    simt::atomic_ref<std::uint64_t>(counters.faults).add_relaxed(1);
    simt::atomic_ref<std::uint64_t>(counters.bytes_filled).add_relaxed(pages.pages().page_nbytes());
    pages.unpin(frame_);
  }

 private:
  GPUFS_DEVICE void end_fill(int error) const {
    const cache::page_cache<> pages(mount_.cache);
    pages.end_fill(pages.pages().load_key(frame_), frame_, error);
  }
  GPUFS_DEVICE static simt::atomic_ref<std::uint64_t> count_of(const file_mount& mount) {
    return simt::atomic_ref<std::uint64_t>(mount.words->under_way);
  }
  GPUFS_DEVICE static simt::atomic_ref<std::uint32_t> held_copies_of(const file_mount& mount) {
    return simt::atomic_ref<std::uint32_t>(mount.words->held_copies);
  }
  static constexpr std::uint32_t to_frame_bit = 1u << 31;  // slots are fewer
  GPUFS_DEVICE static std::uint64_t word_of(const asked& of) {
    return std::uint64_t{of.ticket.number} << 32 | (of.ticket.index + 1) | (of.to_frame ? to_frame_bit : 0);
  }
  GPUFS_DEVICE cache::word_ref<std::uint64_t> word() const { return cache::frames(mount_.cache).operation(frame_); }

  const file_mount& mount_;
  cache::frame_index frame_;
};

namespace detail {

// A page's bytes beyond the end of the file. All lanes call.
template <class Group>
GPUFS_DEVICE void zero_rest(Group group, std::byte* frame, std::uint32_t nbytes, std::uint32_t page_nbytes) {
  if (nbytes < page_nbytes) simt::zero_bytes(group, frame + nbytes, page_nbytes - nbytes);
}

// Whether the payload has the whole page that was asked for.
GPUFS_DEVICE bool is_whole_answer(std::uint32_t page_nbytes, std::int64_t answered, std::uint32_t asked, const std::byte* payload) {
  return payload != nullptr && asked == page_nbytes && answered == page_nbytes;
}
// Brings what the host has answered to the read of a page into its frame; `payload` is null where it is there. waits: the group
// waits for this page, so that a whole one (is_whole_answer) is copied fast, and also to `also`, aligned to 16, unless that is
// null. All lanes call, and sync before they read the page. 0 or a negative errno.
template <class Group>
GPUFS_DEVICE int enter_answer(Group group, std::byte* frame, std::uint32_t page_nbytes, std::int64_t answered, std::uint32_t asked,
                              const std::byte* payload, bool waits = true, std::byte* also = nullptr) {
  if (answered < 0) return static_cast<int>(answered);
  if (waits && is_whole_answer(page_nbytes, answered, asked, payload))
    return simt::copy_page_from_host(group, frame, also, payload, page_nbytes);
  const std::uint32_t there = answered < asked ? static_cast<std::uint32_t>(answered) : asked;
  const int error = payload != nullptr ? simt::copy_from_host(group, frame, payload, there) : 0;
  zero_rest(group, frame, there, page_nbytes);
  return error == 0 && there < asked ? -ESTALE : error;  // it was truncated
}

// Whether the bytes of a page lie in the payload.
GPUFS_DEVICE bool is_in_payload(const transport::request& asked, const transport::reply& answer) {
  return (asked.flags & transport::read_to_frame) == 0 || answer.number == 0;
}

// Ends an operation whose answer has come, by one lane alone: slowly. `payload`: as enter_answer's.
inline GPUFS_DEVICE_COLD void end_operation_alone(const file_mount* mount, operation::asked of, std::uint64_t token,
                                                  std::uint32_t asked, std::int64_t answered, const std::byte* payload) {
  const operation under_way(*mount, operation::frame_of(token));
  if (!under_way.take(of)) return under_way.end_given_up(of);
  const cache::frames frames(mount->cache);
  constexpr bool waits = false;  // for another page: this one, by 16 bytes a request, must not fill the bus
  const int error = enter_answer(simt::this_thread(), frames.data(operation::frame_of(token)), frames.page_nbytes(), answered,
                                 asked, payload, waits);
  under_way.end(operation::slot_of(token), error);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
