// SPDX-License-Identifier: Apache-2.0
// Operations as groups begin and end them: pages that host threads bring in, and that no group waits for more than any other.
// docs/design/operations.md says why no waits form a cycle.
#pragma once
#include "gpufs/file/detail/fill.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Who brings a page in.
enum class bringer : std::uint32_t {
  group,   // the group that wants it, at once
  host,    // a thread of the host, through a request slot
  engine,  // the copy engine, at the host's request: straight to the frame
};

// Whether the caller is to look for answers that nobody has come for: one caller every 100 us. Looking takes the bus from copies,
// and a lane alone copies a page far more slowly than the warp that would come for it.
GPUFS_DEVICE_COLD inline bool is_turn_to_look(const file_mount& mount) {
  const simt::atomic_ref<std::uint64_t> next(mount.words->look_ns);
  std::uint64_t then = next.load(std::memory_order_relaxed);
  const std::uint64_t now = simt::clock_ns();
  return now >= then && next.compare_exchange(then, now + 100'000, std::memory_order_relaxed);
}

// Ends operations whose answers nobody has come for, and sees whether held copies have ended, so that the engine is used again. One
// lane calls.
GPUFS_DEVICE_COLD inline void end_some_ahead(const file_mount& mount, std::uint32_t start) {
  if (is_turn_to_look(mount)) mount_requests(mount).end_ahead(start, 64);
}

// Whether pages of this file are, or may be, asked for ahead.
GPUFS_DEVICE bool may_ask_ahead(const file_mount& mount, source_kind kind) {
  return gpufs::may_ask_ahead(kind) || (may_be_copied(kind) && operation::may_copy(mount));
}

// Who brings in the page at this offset of the file. The host and the engine may be asked ahead; a group may not. One lane calls.
GPUFS_DEVICE bringer who_brings(const file_mount& mount, const file_view& view, std::uint64_t offset) {
  if (!may_ask_ahead(mount, view.kind)) return bringer::group;
  const source::place where = find_piece(mount, view, offset, 1).where;
  if (where == source::place::host) return bringer::host;
  return where == source::place::host_memory && operation::may_copy(mount) ? bringer::engine : bringer::group;
}

// Asks the host for a page, by a slot that the caller has taken. The caller holds the fill of the page's frame, and has taken room
// for an operation; from now on the fill belongs to the operation. One lane calls.
GPUFS_DEVICE void send_operation(const file_mount& mount, const file_view& view, std::uint64_t page_number,
                                 cache::frame_index frame, const transport::ticket& ticket, bringer by) {
  const cache::frames frames(mount.cache);
  const operation under_way(mount, frame);
  under_way.begin({ticket, by == bringer::engine});
  transport::request ask{};
  ask.op = transport::opcode::read;
  ask.handle = view.handle;
  ask.offset = static_cast<std::int64_t>(page_number << frames.page_shift());
  ask.nbytes = nbytes_of_page(view, page_number, frames);
  ask.token = under_way.token(view.slot);
  ask.flags = transport::read_ahead;
  if (by == bringer::engine) {
    ask.flags |= transport::read_to_frame;
    ask.skip = static_cast<std::uint32_t>(frame);
  }
  const mount_requests rings(mount);
  rings.send(ticket, ask);
  rings.abandon(ticket);  // after begin: a lane that comes by the answer finds whose it is
}

enum class begun : std::uint32_t {
  under_way,  // by us, just now
  found,      // it is in the cache, or somebody brings it in
  no_room,    // no request slot or frame is at hand, there are operations enough, or it is there in part, and is wanted whole
};

// Takes a request slot for an operation. The engine may use a quarter of the slots, as pages that nobody waits for may. It is busy
// with fewer, and other requests find a slot even while CUDA keeps copies waiting.
GPUFS_DEVICE transport::ticket take_slot(const mount_requests& rings, std::uint32_t start, bool keep, bringer by) {
  if (by == bringer::host && keep) return rings.take_at_hand(start);
  return rings.take_ahead(start);
}

// Turns the fill that the caller holds into an operation. The caller waits for the page, and keeps its pin. False: no slot or room
// is at hand, and the fill is still the caller's. One lane calls.
GPUFS_DEVICE bool hand_over_fill(const file_mount& mount, const file_view& view, std::uint64_t page_number,
                                 cache::frame_index frame, bringer by, std::uint32_t start) {
  if (!operation::take_room(mount)) return false;
  const transport::ticket ticket = take_slot(mount_requests(mount), start, true, by);
  if (ticket.index == transport::no_slot) {
    operation::give_room_back(mount);
    return false;
  }
  cache::frames(mount.cache).pin_more(frame, 1);
  send_operation(mount, view, page_number, frame, ticket, by);
  return true;
}

// Begins to bring in a page that the host is asked for, if it is not in the cache. Waits for nobody. One lane calls. `keep`: the
// caller waits for the page; then it holds one pin of `frame`, unless the result is no_room.
GPUFS_DEVICE begun begin_operation(const file_mount& mount, const file_view& view, std::uint64_t page_number, bringer by, bool keep,
                                   cache::frame_index& frame) {
  using pages_type = cache::page_cache<>;
  const pages_type pages(mount.cache);
  const cache::page_key key = cache::make_key(view.cache_id, page_number);
  if (!keep && pages.has(key)) return begun::found;
  if (keep && pages.pin_cached(key, frame)) {
    if (!pages.pages().is_partial(frame)) return begun::found;
    pages.unpin(frame);
    return begun::no_room;
  }
  const mount_requests rings(mount);
  const std::uint32_t start = ring_hint() + static_cast<std::uint32_t>(page_number);
  if (!operation::take_room(mount)) {
    // Operations whose answers nobody comes for must not keep others out for good.
    if (by == bringer::engine) {
      end_some_ahead(mount, start);
    } else {
      rings.end_ahead(start, 2);
    }
    if (!operation::take_room(mount)) return begun::no_room;
  }
  transport::ticket ticket = take_slot(rings, start, keep, by);
  const bool is_full = ticket.index == transport::no_slot;
  if (is_full && !keep && is_turn_to_look(mount)) ticket = rings.take_ahead(start, true);
  if (ticket.index == transport::no_slot) {
    operation::give_room_back(mount);
    return begun::no_room;
  }
  const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(page_number);
  const auto got = pages.acquire(key, ring, {0, pages_type::at_hand});
  frame = got.frame;
  if (got.what == pages_type::role::fill) {
    if (keep) pages.pages().pin_more(frame, 1);
    send_operation(mount, view, page_number, frame, ticket, by);
    return begun::under_way;
  }
  operation::give_room_back(mount);
  // A slot that was taken must be used. Nobody waits for this.
  transport::request nothing{};
  nothing.op = transport::opcode::read;
  nothing.handle = view.handle;
  nothing.flags = transport::read_ahead;
  rings.send(ticket, nothing);
  rings.abandon(ticket);
  if (got.what == pages_type::role::error) return begun::no_room;
  if (!keep) pages.unpin(frame);
  return begun::found;
}

// What one lane finds of a page that it has pinned.
struct operation_step {
  enum class state : std::uint32_t {
    waits,   // for the host, or for the group that ends it
    ready,   // the page is there
    failed,  // the page is not there, or only in part: the pin is of no use
    ours,    // the host has answered, and the caller must end it: the rest says how
  };
  state what;
  std::int32_t error;  // of a page that has failed
  std::int64_t answered;
  operation::asked of;  // also while it waits for the host
  std::uint32_t asked;
  std::uint32_t slot;  // the file's
  bool in_payload;     // the page's bytes
  bool given;          // the caller has the page's bytes, too
};

GPUFS_DEVICE operation_step look_at_operation(const file_mount& mount, cache::frame_index frame) {
  using state = operation_step::state;
  operation_step step{};
  const cache::frames frames(mount.cache);
  const std::uint64_t now = frames.state(frame).load(std::memory_order_acquire);  // meets end_fill's release
  if ((now & cache::frame_state::filling) == 0) {
    step.error = -static_cast<std::int32_t>((now >> cache::frame_state::error_shift) & cache::frame_state::error_mask);
    constexpr std::uint64_t is_none = cache::frame_state::failed | cache::frame_state::partial;
    step.what = (now & is_none) != 0 ? state::failed : state::ready;
    return step;
  }
  const operation under_way(mount, frame);
  const mount_requests rings(mount);
  transport::request asked;
  transport::reply answer;
  if (!under_way.look(step.of) || !rings.take_answered(step.of.ticket, asked, answer)) return step;
  if (!under_way.take(step.of)) {  // somebody gave it up just now
    rings.give_back(step.of.ticket);
    under_way.end_given_up(step.of);
    return step;
  }
  step.what = state::ours;
  step.answered = answer.result;
  step.asked = asked.nbytes;
  step.slot = operation::slot_of(asked.token);
  step.in_payload = is_in_payload(asked, answer);
  return step;
}

// Ends the fill of an operation that the host does not answer in time: groups that wait, or come later, ask again. The late answer
// touches nothing; only the copy engine may still write to the frame, which nobody gets before the answer. One lane calls, with the
// page pinned. False: another lane ends the operation, or has ended it.
GPUFS_DEVICE bool give_up_operation(const file_mount& mount, cache::frame_index frame) {
  const operation under_way(mount, frame);
  operation::asked of;
  if (!under_way.look(of) || !under_way.take_without_answer(of)) return false;
  if (!of.to_frame) count(mount.words->io_timeouts, 1);  // else the group reads the page, and nothing is lost
  under_way.fail();
  return true;
}

// enter_answer's `payload`.
GPUFS_DEVICE const std::byte* payload_of(const mount_requests& rings, const operation_step& step) {
  return step.in_payload ? rings.payload(step.of.ticket) : nullptr;
}

// Ends the operations that lanes have taken (step.what is `ours`). All lanes of a group within a warp call, each with its own step
// and frame; afterwards these steps are ready or failed. waits: as enter_answer's; then `wanted` says where each lane wants its
// page, aligned to 16, if it wants all of it, and it may have been brought there (step.given).
template <class Group>
GPUFS_DEVICE void end_operations(Group group, const file_mount& mount, cache::frame_index frame, operation_step& step,
                                 bool waits = true, std::byte* wanted = nullptr) {
  using state = operation_step::state;
  const cache::frames frames(mount.cache);
  const mount_requests rings(mount);
  for (std::uint32_t left = group.ballot(step.what == state::ours); left != 0; left &= left - 1) {
    const auto lane = simt::lowest_lane(left);
    const cache::frame_index theirs = group.shfl(frame, lane);
    const operation_step how = group.shfl(step, lane);
    const std::byte* payload = payload_of(rings, how);
    std::byte* also = group.shfl(wanted, lane);
    const int error = enter_answer(group, frames.data(theirs), frames.page_nbytes(), how.answered, how.asked, payload, waits, also);
    if (group.rank() != lane) continue;
    step.error = error;
    step.given = waits && also != nullptr && error == 0 && is_whole_answer(frames.page_nbytes(), how.answered, how.asked, payload);
  }
  group.sync();  // the bytes of all lanes happen before the releases
  if (step.what != state::ours) return;
  rings.give_back(step.of.ticket);
  operation(mount, frame).end(step.slot, step.error);
  step.what = step.error == 0 ? state::ready : state::failed;
}

// How to wait for an answer. Each look takes the bus; a look for the copy engine's answer takes it from the copies. No copy takes
// less than 8 us, so each pause before such a look is as long as all waiting before it.
GPUFS_DEVICE simt::backoff pause_for(bringer by) { return by == bringer::engine ? simt::backoff(1u << 16, 8192) : simt::backoff(); }

// Begins to bring a page in that nobody waits for, if the host is asked for it. One lane calls.
GPUFS_DEVICE bringer begin_ahead(const file_mount& mount, const file_view& view, std::uint64_t page) {
  const bringer by = who_brings(mount, view, page << mount.cache.frames.page_shift);
  cache::frame_index unused;
  if (by != bringer::group) begin_operation(mount, view, page, by, false, unused);
  return by;
}

// Begins to bring in the pages behind `last`, which a reader will want next, if the file's readers have said that they read on from
// page to page. All lanes call; `its_view` and `last` are the leader's.
inline constexpr std::uint32_t pages_ahead = 32;
template <class Group>
GPUFS_DEVICE void read_ahead(Group group, const file_mount& mount, const file_view& its_view, std::uint64_t last) {
  const bool wanted = by_leader(group, [&] {
    if (operation::are_copies_held(mount)) end_some_ahead(mount, ring_hint());
    return its_view.error == 0 && may_ask_ahead(mount, its_view.kind) &&
           file_slots::habit_of(mount, its_view.slot).load_relaxed() == read_habit::on;
  });
  if (!wanted) return;
  const file_view view = group.broadcast(its_view);
  const cache::frames frames(mount.cache);
  const std::uint64_t npages = (static_cast<std::uint64_t>(view.nbytes) + frames.page_nbytes() - 1) >> frames.page_shift();
  const std::uint32_t share = frames.count() / 16 + 1, most = share < pages_ahead ? share : pages_ahead;
  last = group.broadcast(last);
  for (std::uint64_t page = last + 1 + group.rank(); page <= last + most && page < npages; page += group.size()) {
    begin_ahead(mount, view, page);
  }
  group.sync();
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
