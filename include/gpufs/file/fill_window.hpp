// SPDX-License-Identifier: Apache-2.0
// Several pages of one file on their way to a group at once: what a pread of many pages does from its first miss on, where host
// threads bring pages in. docs/design/fill-window.md says why nobody waits in a circle.
#pragma once
#include "gpufs/file/fill.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The pages first, first + step, ..., last of a file: a group's part of a call, in the order in which it wants them. They are
// counted from 0: places.
struct page_run {
  std::uint64_t first, last;
  std::uint32_t step;

  GPUFS_DEVICE std::uint64_t size() const { return (last - first) / step + 1; }
  GPUFS_DEVICE std::uint64_t page(std::uint64_t place) const { return first + place * step; }
};

// The bytes that a call reads, and where to.
struct byte_range {
  std::byte* dst;
  std::uint64_t begin, end;
};

// Copies what of the range lies in the page whose bytes are at `data`. All lanes call.
template <class Group>
GPUFS_DEVICE void copy_part(Group group, const byte_range& range, std::uint64_t page, std::uint32_t page_nbytes,
                            const std::byte* data) {
  const std::uint64_t page_begin = page * page_nbytes, page_end = page_begin + page_nbytes;
  const std::uint64_t begin = range.begin > page_begin ? range.begin : page_begin;
  const std::uint64_t end = range.end < page_end ? range.end : page_end;
  simt::copy_bytes(group, range.dst + (begin - range.begin), data + (begin - page_begin), end - begin);
}

// The requests of a group within a warp: that of place i is kept by lane i % size.
template <class Group, class Cache>
class fill_window {
 public:
  // How many requests a lane may have under way.
  static constexpr std::uint32_t depth = Group::size() >= simt::warp_lanes ? 2 : Group::size() == 1 ? 8 : 4;

  // `view` has a handle.
  GPUFS_DEVICE fill_window(Group group, const file_mount& mount, const Cache& pages, const file_view& view, const page_run& run,
                           const byte_range& range)
      : group_(group), mount_(mount), pages_(pages), view_(view), run_(run), range_(range) {
    for (under_way& each : mine_) each = none();
    // So that a few groups leave room in a small cache.
    const std::uint32_t share = pages.pages().count() / 16 + 1;
    most_ = share < depth * Group::size() ? share : depth * Group::size();
  }

  // Asks for the page of place 0, whose frame the group's leader holds for filling. Waits for a slot of a request ring, having no
  // other. All lanes call. 0 or -ETIMEDOUT, and then the fill is the caller's still.
  GPUFS_DEVICE int begin_first(cache::frame_index frame) {
    return by_leader(group_, [&] {
      const mount_requests rings(mount_);
      const transport::ticket ticket = rings.take(ring_hint(), simt::deadline(mount_.io_timeout_ns));
      if (ticket.index == transport::no_slot) return -ETIMEDOUT;
      send(ticket, run_.page(0));
      mine_[0] = {ticket, frame, 0};
      return 0;
    });
  }

  // Asks for pages that are not in the cache, as far behind `place` as the window goes. Takes what frames and slots are at hand,
  // and waits for none. All lanes call.
  GPUFS_DEVICE void look_ahead(std::uint64_t place) {
    const std::uint64_t end = place + most_ < run_.size() ? place + most_ : run_.size();
    if (begun_ >= end) return;
    const std::uint32_t after =
        (group_.rank() + Group::size() - static_cast<std::uint32_t>(begun_ % Group::size())) % Group::size();
    for (std::uint64_t mine = begun_ + after; mine < end; mine += Group::size()) kept(mine) = begin(run_.page(mine));
    begun_ = end;
    group_.sync();
  }

  struct taken {
    int error;
    bool ours;  // false: nothing was asked for it
  };
  // Waits for the page of this place, if it was asked for, enters it, and copies it to the caller. All lanes call. What drain has
  // taken is only told.
  GPUFS_DEVICE taken take(std::uint64_t place) { return take(place, simt::deadline(mount_.io_timeout_ns)); }

  // Takes all pages from this place on that were asked for, so that nothing is under way. All lanes call; before they wait for what
  // others may hold, and at the end. One deadline for all, as all were sent before.
  GPUFS_DEVICE void drain(std::uint64_t place) {
    const simt::deadline until(mount_.io_timeout_ns);
    for (; place < begun_; ++place) {
      const taken got = take(place, until);
      if (got.ours && group_.rank() == place % Group::size()) kept(place).was = got.error == 0 ? taken_before : got.error;
    }
  }

 private:
  struct under_way {
    transport::ticket ticket;
    cache::frame_index frame;
    std::int32_t was;  // where there is no ticket: 0, or what drain's take gave: taken_before, or its error
  };
  static constexpr std::int32_t taken_before = 1;
  GPUFS_DEVICE static under_way none() { return {{transport::no_slot, 0}, {}, 0}; }
  GPUFS_DEVICE under_way& kept(std::uint64_t place) { return mine_[place / Group::size() % depth]; }

  GPUFS_DEVICE taken take(std::uint64_t place, const simt::deadline& until) {
    if (place >= begun_) return {0, false};
    const auto lane = static_cast<unsigned>(place % Group::size());
    const under_way got = group_.shfl(kept(place), lane);
    if (group_.rank() == lane) kept(place) = none();
    if (got.ticket.index == transport::no_slot) return {got.was < 0 ? got.was : 0, got.was != 0};
    const mount_requests rings(mount_);
    struct answer {
      std::int64_t nbytes;  // or a negative errno
      bool held;            // the ticket is still ours
    };
    const answer from_host = by_leader(group_, [&]() -> answer {
      transport::reply reply;
      if (rings.wait(got.ticket, reply, until) == 0) return {reply.result, true};
      count(mount_.words->io_timeouts, 1);
      return {-ETIMEDOUT, false};
    });
    const std::uint64_t page = run_.page(place);
    const std::uint32_t wanted = nbytes_of(page);
    const std::uint32_t there = from_host.nbytes < 0        ? 0
                                : from_host.nbytes < wanted ? static_cast<std::uint32_t>(from_host.nbytes)
                                                            : wanted;
    std::byte* frame = pages_.pages().data(got.frame);
    int error = from_host.nbytes < 0 ? static_cast<int>(from_host.nbytes) : 0;
    if (error == 0) error = simt::copy_from_host(group_, frame, rings.payload(got.ticket), there);
    if (error == 0 && there < wanted) error = -ESTALE;  // it was truncated
    zero_rest(group_, frame, there, pages_.pages().page_nbytes());
    group_.sync();  // the bytes of all lanes happen before the leader's releases
    if (group_.leader()) {
      if (from_host.held) rings.give_back(got.ticket);
      end_fill(mount_, pages_, cache::make_key(view_.cache_id, page), got.frame, view_.slot, error);
    }
    group_.sync();
    if (error == 0) {
      copy_part(group_, range_, page, pages_.pages().page_nbytes(), frame);
      group_.sync();
      if (group_.leader()) pages_.unpin(got.frame);
    }
    return {error, true};
  }

  GPUFS_DEVICE std::uint32_t nbytes_of(std::uint64_t page) const {
    const std::uint64_t begin = page << pages_.pages().page_shift();
    const std::uint64_t left = static_cast<std::uint64_t>(view_.nbytes) - begin;
    return left < pages_.pages().page_nbytes() ? static_cast<std::uint32_t>(left) : pages_.pages().page_nbytes();
  }

  GPUFS_DEVICE void send(transport::ticket ticket, std::uint64_t page) const {
    transport::request ask{};
    ask.op = transport::opcode::read;
    ask.handle = view_.handle;
    ask.offset = static_cast<std::int64_t>(page << pages_.pages().page_shift());
    ask.nbytes = nbytes_of(page);
    mount_requests(mount_).send(ticket, ask);
  }

  // Each lane for itself.
  GPUFS_DEVICE under_way begin(std::uint64_t page) const {
    const cache::page_key key = cache::make_key(view_.cache_id, page);
    if (pages_.has(key)) return none();
    if (view_.kind == service::source_kind::windows &&
        file_table(mount_).is_registered(view_, page << pages_.pages().page_shift())) {
      return none();
    }
    const mount_requests rings(mount_);
    const transport::ticket ticket = rings.take_at_hand(ring_hint());
    if (ticket.index == transport::no_slot) return none();
    const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(page);
    const auto got = pages_.acquire(key, ring, {0, Cache::at_hand});
    if (got.what == Cache::role::fill) {
      send(ticket, page);
      return {ticket, got.frame, 0};
    }
    if (got.what != Cache::role::error) pages_.unpin(got.frame);
    // A slot that was taken must be used. Nobody waits for this.
    transport::request nothing{};
    nothing.op = transport::opcode::read;
    nothing.handle = view_.handle;
    rings.send(ticket, nothing);
    rings.abandon(ticket);
    return none();
  }

  Group group_;
  const file_mount& mount_;
  const Cache& pages_;
  const file_view& view_;
  page_run run_;
  byte_range range_;
  std::uint32_t most_;
  std::uint64_t begun_ = 1;  // places before this were looked at; the first is the caller's
  under_way mine_[depth];
};

// Reads a page of the run that was not asked for: it is in the cache, or others bring it in, or it was not at hand before. All
// lanes call. 0 or a negative errno.
template <class Group, class Pages>
GPUFS_DEVICE int read_in_run(Group group, const Pages& of, const typename Pages::cache_type& pages, const file_view& view,
                             std::uint64_t page, std::uint64_t next_place, const byte_range& range,
                             fill_window<Group, typename Pages::cache_type>& window) {
  using Cache = typename Pages::cache_type;
  const file_mount& mount = *of.mount();
  const cache::page_key key = cache::make_key(view.cache_id, page);
  const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(page);
  const auto look = [&](std::uint64_t fill_ns, std::uint64_t frame_ns) {
    return by_leader(group, [&] { return pages.acquire(key, ring, {fill_ns, frame_ns}); });
  };
  auto got = look(0, Cache::at_hand);
  if (got.what == Cache::role::error && (got.error == -ENOMEM || got.error == -ETIMEDOUT)) {
    window.drain(next_place);  // before waiting for others, as they may wait for what we have
    const auto limits = of.timeouts();
    got = look(limits.fill_ns, limits.frame_ns);
  }
  if (group.leader()) {
    if (got.what == Cache::role::hit) count(of.hits().hits, 1);
    if (got.what == Cache::role::waited) count(file_table(mount).counters(view.slot).waits, 1);
  }
  int error = got.error;
  if (got.what == Cache::role::fill) {
    window.drain(next_place);  // as well, for a request slot
    error = fill_frame(group, mount, pages, view, page, got.frame);
  }
  if (error != 0) return error;
  copy_part(group, range, page, pages.pages().page_nbytes(), pages.pages().data(got.frame));
  group.sync();
  if (group.leader()) pages.unpin(got.frame);
  return 0;
}

// Reads the pages of the run, of a file that host threads read (or windows of it), of which the first has missed: the leader holds
// its frame, to fill it. All lanes of a group within a
// warp call. Which page failed, and why; or error == 0.
struct page_failure {
  std::uint64_t page;
  int error;
};
template <class Group, class Pages>
GPUFS_DEVICE_COLD page_failure read_run(Group group, Pages of, byte_range range, page_run run, cache::frame_index frame) {
  using Cache = typename Pages::cache_type;
  const file_mount& mount = *of.mount();
  const Cache pages(*of.cache());
  const file_view view = by_leader(group, [&] {
    file_view v = of.view();
    v.cache_id = cache::cache_id_of(pages.pages().load_key(frame));  // as in fill_missed
    return v;
  });
  frame = group.broadcast(frame);
  fill_window<Group, Cache> window(group, mount, pages, view, run, range);
  const bool first_pulled = view.error == 0 && view.kind == service::source_kind::windows && by_leader(group, [&] {
                              return file_table(mount).is_registered(view, run.page(0) << pages.pages().page_shift());
                            });
  int error = 0;
  if (view.error != 0 || first_pulled) {
    error = fill_frame(group, mount, pages, view, run.page(0), frame);
    if (error == 0) {
      copy_part(group, range, run.page(0), pages.pages().page_nbytes(), pages.pages().data(frame));
      group.sync();
      if (group.leader()) pages.unpin(frame);
    }
  } else if (window.begin_first(frame) != 0) {
    if (group.leader()) {
      count(mount.words->io_timeouts, 1);
      end_fill(mount, pages, cache::make_key(view.cache_id, run.page(0)), frame, view.slot, -ETIMEDOUT);
    }
    group.sync();
    return {run.page(0), -ETIMEDOUT};
  } else {
    window.look_ahead(0);
    error = window.take(0).error;
  }
  for (std::uint64_t place = 0;;) {
    if (error != 0) {
      window.drain(place + 1);
      return {run.page(place), error};
    }
    if (++place == run.size()) return {0, 0};
    window.look_ahead(place);
    const auto got = window.take(place);
    error = got.ours ? got.error : read_in_run(group, of, pages, view, run.page(place), place + 1, range, window);
  }
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
