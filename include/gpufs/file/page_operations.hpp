// SPDX-License-Identifier: Apache-2.0
// Operations as groups begin and end them: pages that host threads bring in, and that no group waits for more than any other.
// docs/design/operations.md says why nobody waits in a circle.
#pragma once
#include "gpufs/file/fill.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Whether the page at this offset of the file is one that the host is asked for, and may be asked for ahead. One lane calls.
GPUFS_DEVICE bool is_read_by_host(const file_mount& mount, const file_view& view, std::uint64_t offset) {
  return may_ask_ahead(view.kind) && find_piece(mount, view, offset, 1).where == source::place::host;
}

// Asks the host for the page whose frame the caller holds for filling, by a slot that it has taken. There is room for the
// operation, whose the fill is from now on. One lane calls.
GPUFS_DEVICE void send_operation(const file_mount& mount, const file_view& view, std::uint64_t page_number,
                                 cache::frame_index frame, const transport::ticket& ticket) {
  const cache::frames frames(mount.cache);
  const operation under_way(mount, frame);
  under_way.begin(ticket);
  transport::request ask{};
  ask.op = transport::opcode::read;
  ask.handle = view.handle;
  ask.offset = static_cast<std::int64_t>(page_number << frames.page_shift());
  ask.nbytes = nbytes_of_page(view, page_number, frames);
  ask.token = under_way.token(view.slot);
  ask.flags = transport::read_ahead;
  const mount_requests rings(mount);
  rings.send(ticket, ask);
  rings.abandon(ticket);  // after begin: who comes by the answer finds whose it is
}

enum class begun : std::uint32_t {
  under_way,  // by us, just now
  found,      // it is in the cache, or somebody brings it in
  no_room,    // no request slot or frame is at hand, or there are operations enough
};

// Begins to bring a page in that host threads read, if it is not there. Waits for nobody. One lane calls. `keep`: the caller waits
// for it; where it is not no_room, one pin of `frame` is its own.
GPUFS_DEVICE begun begin_operation(const file_mount& mount, const file_view& view, std::uint64_t page_number, bool keep,
                                   cache::frame_index& frame) {
  using pages_type = cache::page_cache<>;
  const pages_type pages(mount.cache);
  const cache::page_key key = cache::make_key(view.cache_id, page_number);
  if (keep ? pages.pin_cached(key, frame) : pages.has(key)) return begun::found;
  const mount_requests rings(mount);
  const std::uint32_t start = ring_hint() + static_cast<std::uint32_t>(page_number);
  if (!operation::take_room(mount)) {
    rings.end_ahead(start, 2);  // so that pages that nobody comes by do not keep others out for good
    if (!operation::take_room(mount)) return begun::no_room;
  }
  const transport::ticket ticket = keep ? rings.take_at_hand(start) : rings.take_ahead(start);
  if (ticket.index == transport::no_slot) {
    operation::give_room_back(mount);
    return begun::no_room;
  }
  const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(page_number);
  const auto got = pages.acquire(key, ring, {0, pages_type::at_hand});
  frame = got.frame;
  if (got.what == pages_type::role::fill) {
    if (keep) pages.pages().pin_more(frame, 1);
    send_operation(mount, view, page_number, frame, ticket);
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
    waits,   // for the host, or for who ends it
    ready,   // the page is there
    failed,  // it is not, and the pin is worth nothing
    ours,    // the host has answered, and the caller must end it: the rest says how
  };
  state what;
  std::int32_t error;  // of a page that has failed
  std::int64_t answered;
  transport::ticket ticket;
  std::uint32_t asked;
  std::uint32_t slot;  // the file's
};

GPUFS_DEVICE operation_step look_at_operation(const file_mount& mount, cache::frame_index frame) {
  using state = operation_step::state;
  operation_step step{};
  const cache::frames frames(mount.cache);
  const std::uint64_t now = frames.state(frame).load(std::memory_order_acquire);  // meets end_fill's release
  if ((now & cache::frame_state::filling) == 0) {
    step.error = -static_cast<std::int32_t>((now >> cache::frame_state::error_shift) & cache::frame_state::error_mask);
    step.what = (now & cache::frame_state::failed) != 0 ? state::failed : state::ready;
    return step;
  }
  const operation under_way(mount, frame);
  const mount_requests rings(mount);
  transport::request asked;
  transport::reply answer;
  if (!under_way.ticket(step.ticket) || !rings.take_answered(step.ticket, asked, answer)) return step;
  if (!under_way.take(step.ticket)) {  // somebody gave it up just now
    rings.give_back(step.ticket);
    return step;
  }
  step.what = state::ours;
  step.answered = answer.result;
  step.asked = asked.nbytes;
  step.slot = operation::slot_of(asked.token);
  return step;
}

// Ends the fill of an operation that the host does not answer in time: others who wait, or come later, ask anew. What the host
// answers at last touches nothing. One lane calls, which has the page pinned. False: somebody ends it, or has ended it.
GPUFS_DEVICE bool give_up_operation(const file_mount& mount, cache::frame_index frame) {
  const operation under_way(mount, frame);
  transport::ticket ticket;
  if (!under_way.ticket(ticket) || !under_way.take(ticket)) return false;
  count(mount.words->io_timeouts, 1);
  under_way.fail();
  return true;
}

// Ends the operations that one lane or several have taken. All lanes of a group within a warp call, with what each has found, and
// the frame of it; afterwards that is ready or failed.
template <class Group>
GPUFS_DEVICE void end_operations(Group group, const file_mount& mount, cache::frame_index frame, operation_step& step) {
  using state = operation_step::state;
  const cache::frames frames(mount.cache);
  const mount_requests rings(mount);
  for (std::uint32_t left = group.ballot(step.what == state::ours); left != 0; left &= left - 1) {
    const auto lane = simt::lowest_lane(left);
    const cache::frame_index theirs = group.shfl(frame, lane);
    const operation_step how = group.shfl(step, lane);
    const int error =
        enter_answer(group, frames.data(theirs), frames.page_nbytes(), how.answered, how.asked, rings.payload(how.ticket));
    if (group.rank() == lane) step.error = error;
  }
  group.sync();  // the bytes of all lanes happen before the releases
  if (step.what != state::ours) return;
  rings.give_back(step.ticket);
  operation(mount, frame).end(step.slot, step.error);
  step.what = step.error == 0 ? state::ready : state::failed;
}

// Begins to bring in what a reader of the pages up to this one will want next, where the file's readers have said that they read
// on. All lanes call; `view` and `last` are the leader's.
inline constexpr std::uint32_t pages_ahead = 32;
template <class Group>
GPUFS_DEVICE void read_ahead(Group group, const file_mount& mount, const file_view& its_view, std::uint64_t last) {
  const bool wanted = by_leader(group, [&] {
    return its_view.error == 0 && may_ask_ahead(its_view.kind) && file_slots::reads_on(mount, its_view.slot).load_relaxed() != 0;
  });
  if (!wanted) return;
  const file_view view = group.broadcast(its_view);
  const cache::frames frames(mount.cache);
  const std::uint64_t npages = (static_cast<std::uint64_t>(view.nbytes) + frames.page_nbytes() - 1) >> frames.page_shift();
  const std::uint32_t share = frames.count() / 16 + 1, most = share < pages_ahead ? share : pages_ahead;
  last = group.broadcast(last);
  for (std::uint64_t page = last + 1 + group.rank(); page <= last + most && page < npages; page += group.size()) {
    cache::frame_index unused;
    if (is_read_by_host(mount, view, page << frames.page_shift())) begin_operation(mount, view, page, false, unused);
  }
  group.sync();
}

// Waits for a page that the leader has pinned and that an operation brings in, and ends that. All lanes call; `frame` is the
// leader's. 0; or nothing is pinned any more, and: -EAGAIN, it is to be looked up anew, as what went wrong was
// not asked by us; or -ETIMEDOUT.
template <class Group>
GPUFS_DEVICE_COLD int finish_operation(Group group, const file_mount* mount, cache::frame_index frame) {
  using state = operation_step::state;
  const cache::frames frames(mount->cache);
  const mount_requests rings(*mount);
  const simt::deadline until(mount->io_timeout_ns), last(2 * mount->io_timeout_ns);
  frame = group.broadcast(frame);
  operation_step step = by_leader(group, [&] {
    simt::backoff pause;
    for (;;) {
      operation_step found = look_at_operation(*mount, frame);
      if (found.what != state::waits) return found;
      if (until.expired() && (give_up_operation(*mount, frame) || last.expired())) {
        found.what = state::failed;
        found.error = -ETIMEDOUT;
        return found;
      }
      pause();
    }
  });
  const bool timed_out = step.error == -ETIMEDOUT;
  if (step.what == state::ours) {
    step.error =
        enter_answer(group, frames.data(frame), frames.page_nbytes(), step.answered, step.asked, rings.payload(step.ticket));
    group.sync();  // the bytes of all lanes happen before the leader's releases
    if (group.leader()) {
      rings.give_back(step.ticket);
      operation(*mount, frame).end(step.slot, step.error);
    }
  }
  if (step.error != 0 && group.leader()) frames.unpin(frame);
  group.sync();
  return step.error == 0 ? 0 : timed_out ? -ETIMEDOUT : -EAGAIN;
}

// Ends, or waits for, the operation that the leader's look-up has found; where that fails, looks up anew: `look_up` is the
// leader's. All lanes call. What the look-up gave at last: the page is pinned and there (waited), or it is to be filled, or error.
template <class Group, class Acquired, class LookUp>
GPUFS_DEVICE Acquired finish_or_look_anew(Group group, const file_mount& mount, std::uint32_t slot, Acquired got, LookUp look_up) {
  const simt::deadline until(2 * mount.io_timeout_ns);
  while (got.what == decltype(got.what)::under_way) {
    const int error = simt::call_cold(&finish_operation<Group>, group, &mount, got.frame);
    if (error == 0) {
      if (group.leader()) count(file_table(mount).counters(slot).waits, 1);
      return {got.frame, decltype(got.what)::waited, 0};
    }
    got = by_leader(group, [&]() -> Acquired {
      if (error == -EAGAIN && !until.expired()) return look_up();
      return {{}, decltype(got.what)::error, -ETIMEDOUT};
    });
  }
  return got;
}

// The rest of acquire_among_operations, where no frame was at hand.
template <class Cache>
GPUFS_DEVICE_COLD typename Cache::acquired wait_among_operations(const file_mount* mount, const cache::cache_layout* cache,
                                                                 cache::page_key key, std::uint32_t ring, std::uint64_t fill_ns,
                                                                 std::uint64_t frame_ns) {
  constexpr int glances = 8;
  const Cache pages(*cache);
  const simt::deadline until(frame_ns);
  simt::backoff pause;
  for (int glance = 0; operation::are_there(*mount); ++glance) {
    if (glance >= glances) mount_requests(*mount).end_ahead(ring, 4);
    if (until.expired()) return pages.acquire(key, ring, {fill_ns, 0});
    pause();
    const auto got = pages.acquire(key, ring + static_cast<std::uint32_t>(glance) + 1, {fill_ns, Cache::at_hand});
    if (got.error != -ENOMEM) return got;
  }
  return pages.acquire(key, ring, {fill_ns, frame_ns});
}

// As pages.acquire. A frame whose page is on its way is nobody's who gives it back: who finds no other frame ends operations. One
// lane calls. Most find a frame at once, and need not know whether there are operations.
template <class Cache>
GPUFS_DEVICE typename Cache::acquired acquire_among_operations(const file_mount& mount, const Cache& pages, cache::page_key key,
                                                               std::uint32_t ring, const typename Cache::timeouts& limits) {
  const auto got = pages.acquire(key, ring, {limits.fill_ns, Cache::at_hand});
  if (got.error != -ENOMEM || limits.frame_ns == Cache::at_hand) [[likely]]
    return got;
  return simt::call_cold(&wait_among_operations<Cache>, &mount, &mount.cache, key, ring, limits.fill_ns, limits.frame_ns);
}

// Pins a page that is not in the frame of its choice, or makes room for it. One lane calls.
template <class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired acquire_elsewhere(Pages of, cache::page_key key) {
  using Cache = typename Pages::cache_type;
  const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(cache::page_number_of(key));
  const auto limits = of.timeouts();
  const Cache pages(*of.cache());
  const typename Cache::timeouts both{limits.fill_ns, limits.frame_ns};
  typename Cache::acquired got{};
  if constexpr (Pages::has_operations) {
    got = acquire_among_operations(*of.mount(), pages, key, ring, both);
  } else {
    got = pages.acquire(key, ring, both);
  }
  if (got.what == Cache::role::hit) count(of.hits().hits, 1);
  if (got.what == Cache::role::waited) count(file_table(*of.mount()).counters(file_slots::index_of(of.number())).waits, 1);
  return got;
}

// A miss of a page that is not, or not only, to be pulled: see complete_missed. (Not with the same parameters, as it would seem to
// call itself: see simt/cold.hpp.)
template <class Group, class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired complete_slowly(Group group, typename Pages::cache_type::acquired got,
                                                                       Pages of) {
  using Cache = typename Pages::cache_type;
  using role = typename Cache::role;
  struct missed {
    file_view view;
    cache::page_key key;
  };
  const file_mount* mount = of.mount();
  const Cache pages(*of.cache());
  got = group.broadcast(got);
  const missed page = by_leader(group, [&]() -> missed {
    const cache::page_key key = pages.pages().load_key(got.frame);
    missed what{of.view(), key};
    what.view.cache_id = cache::cache_id_of(key);  // also of a number that was closed just now
    return what;
  });
  const std::uint64_t page_number = cache::page_number_of(page.key);
  if constexpr (Pages::has_operations) {
    read_ahead(group, *mount, page.view, page_number);
    if (got.what == role::under_way) {
      got = finish_or_look_anew(group, *mount, page.view.slot, got, [&] { return acquire_elsewhere(of, page.key); });
    }
  }
  if (got.what != role::fill) return got;
  const int error = fill_frame(group, *mount, pages, page.view, page_number, got.frame);
  return {got.frame, error == 0 ? role::waited : role::error, error};
}

// A page that the device reads itself, and whose frame the group holds for filling.
struct pulled_page {
  const std::byte* from;  // null where the file's source has no bytes
  std::byte* to;
  std::uint32_t nbytes, page_nbytes;  // what the file has of it
  cache::frame_index frame;
  std::uint32_t handle;
  bool is_one;
};

// One lane calls, out of line, as what it needs is needed once.
template <class Pages>
GPUFS_DEVICE_COLD pulled_page find_pulled(Pages of, cache::frame_index frame) {
  const file_mount& mount = *of.mount();
  const cache::frames frames(mount.cache);
  const file_view view = of.view();
  const std::uint64_t page = cache::page_number_of(frames.load_key(frame)), offset = page << frames.page_shift();
  pulled_page found{nullptr, frames.data(frame), 0, frames.page_nbytes(), frame, view.handle, false};
  // What has no version, begins others behind it, or lies in device memory takes the long way.
  if (view.error != 0 || !has_version(view.kind)) return found;
  if (may_ask_ahead(view.kind) && file_slots::reads_on(mount, view.slot).load_relaxed() != 0) return found;
  const source::piece there = find_piece(mount, view, offset, frames.page_nbytes());
  found.is_one = there.where == source::place::mapping || there.where == source::place::nowhere;
  if (there.where != source::place::mapping) return found;
  found.from = reinterpret_cast<const std::byte*>(there.address);
  found.nbytes = there.nbytes;
  return found;
}

// Ends its fill once it is there. One lane calls, after the group's sync. 0 or a negative errno: then nothing is pinned.
template <class Pages>
GPUFS_DEVICE_COLD int end_pulled(Pages of, cache::frame_index frame, std::uint32_t handle, bool has_bytes) {
  const file_mount& mount = *of.mount();
  const std::uint32_t slot = file_slots::index_of(of.number());
  file_view opened{};
  opened.opened = &file_slots::slot_of(of.entry(), slot);
  opened.handle = handle;
  // Afterwards: who sees a byte that a writer of this mount has written sees that the version ended before.
  const int error = has_bytes && file_table(mount).is_stale(opened) ? -ESTALE : 0;
  const typename Pages::cache_type pages(mount.cache);
  end_fill(mount, pages, pages.pages().load_key(frame), frame, slot, error);
  return error;
}

// A miss, out of line, with few arguments: its registers would cost every hit occupancy. All lanes call; what the look-up gave,
// which is the leader's, says which page is wanted. what: hit or waited, and the page is pinned; or error.
// What is pulled takes the short way, since a call out of line keeps its caller's registers on the stack, and a full GPU's stacks
// lie in the second-level cache: by what ptxas says of sm_90, a miss moves some 18 KB there, and some 48 with all ways in one
// function.
template <class Group, class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired complete_missed(Group group, Pages of,
                                                                       typename Pages::cache_type::acquired got) {
  using role = typename Pages::cache_type::role;
  if constexpr (Pages::has_operations) {
    const pulled_page page = by_leader(
        group, [&] { return got.what == role::fill ? simt::call_cold(&find_pulled<Pages>, of, got.frame) : pulled_page{}; });
    bool there = page.is_one;
    if (page.from != nullptr) {
      there = simt::copy_from_host(group, page.to, page.from, page.nbytes) == 0;
      zero_rest(group, page.to, page.nbytes, page.page_nbytes);
      group.sync();  // the bytes of all lanes happen before the leader's release in end_fill
    }
    if (there) {
      const int error =
          by_leader(group, [&] { return simt::call_cold(&end_pulled<Pages>, of, page.frame, page.handle, page.from != nullptr); });
      return {page.frame, error == 0 ? role::waited : role::error, error};
    }
  }
  return simt::call_cold(&complete_slowly<Group, Pages>, group, got, of);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
