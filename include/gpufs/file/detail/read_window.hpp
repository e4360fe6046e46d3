// SPDX-License-Identifier: Apache-2.0
// Several pages of one file on their way to a group at once: what a pread of many pages does from its first miss on, where host
// threads bring pages in. docs/design/operations.md
#pragma once
#include "gpufs/file/detail/miss.hpp"
#include "gpufs/file/detail/page_run.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Reads the pages of a run, each as soon as it is there. A lane keeps `depth` of them: the pages that it waits for, or could not
// ask for yet. All lanes of a group within a warp call.
template <class Group>
class read_window {
 public:
  static constexpr std::uint32_t depth = Group::size() >= simt::warp_lanes ? 2 : Group::size() == 1 ? 8 : 4;

  // by: who brings the first page in.
  GPUFS_DEVICE read_window(Group group, const file_pages& of, const file_view& view, bringer by, const page_run& run,
                           const byte_range& range)
      : group_(group),
        of_(of),
        mount_(*of.mount()),
        pages_(*of.cache()),
        view_(view),
        by_(by),
        run_(run),
        range_(range),
        end_(run.size()) {
    for (kept_page& each : kept_) each = {0, {}, state::none, false};
    // One window takes a sixteenth of the frames, so that a few groups leave room in a small cache.
    const std::uint32_t share = pages_.pages().count() / 16 + 1;
    most_ = share < depth * Group::size() ? share : depth * Group::size();
  }

  // The first page is pinned by the group; `got`: what its look-up gave, fill or under_way.
  GPUFS_DEVICE page_failure read(const file_pages::cache_type::acquired& got) {
    begin_first(got);
    simt::deadline until(mount_.io_timeout_ns), copied(mount_.copy_timeout_ns);
    simt::backoff pause = pause_for(by_);
    // How many pages may be begun now: first a whole window; then one more than have just ended, so that groups that share few
    // request slots do not all try for each free slot.
    for (std::uint32_t room = most_;;) {
      room = begin_next(room);
      room += collect();
      if (room != 0) {
        until = simt::deadline(mount_.io_timeout_ns);
        copied = simt::deadline(mount_.copy_timeout_ns);
        pause.reset();
        ++room;
      } else if (group_.any(keeps(state::asked) || keeps(state::found))) {
        if (group_.any(until.expired())) {
          give_up();
          room = 1;
        } else if (mount_.copy_timeout_ns != 0 && group_.any(copied.expired())) {
          room = give_up_copies();
          copied = simt::deadline(mount_.copy_timeout_ns);
        } else {
          pause();
        }
      } else if (group_.any(keeps(state::later))) {
        read_one_later();
        room = 1;
      } else if (next_ >= end_) {
        return {run_.page(end_), error_};
      } else {
        room = 1;
      }
    }
  }

 private:
  enum class state : std::uint32_t {
    none,
    asked,  // the group has asked for it: pinned; the operation's error is the call's error
    found,  // pinned; if it is not there, others bring it in
    later,  // not pinned: no slot, frame or room was at hand to ask for it
    pulls,  // no host thread reads it: the group pulls it at once
  };
  struct kept_page {
    std::uint64_t place;
    cache::frame_index frame;
    state what;
    bool waited;
  };

  GPUFS_DEVICE bool keeps(state what) const {
    bool any = false;
    for (const kept_page& each : kept_) any |= each.what == what;
    return any;
  }

  GPUFS_DEVICE void begin_first(const file_pages::cache_type::acquired& got) {
    using role = file_pages::cache_type::role;
    bool sent = false;
    if (got.what == role::fill) {
      sent = by_leader(group_, [&] { return hand_over_fill(mount_, view_, run_.page(0), got.frame, by_, ring_hint()); });
    }
    if (sent || got.what == role::under_way) {
      if (group_.leader()) kept_[0] = {0, got.frame, sent ? state::asked : state::found, true};
      return;
    }
    const int error = fill_frame(group_, mount_, pages_, view_, run_.page(0), got.frame);
    if (error != 0) return fail(0, error);
    give(0, got.frame);
    if (group_.leader()) pages_.unpin(got.frame);
  }

  // Begins up to `room` pages: first pages that could not be begun before, and then new ones. Waits for nobody. Returns how many
  // pages the group has pulled.
  GPUFS_DEVICE std::uint32_t begin_next(std::uint32_t room) {
    std::uint32_t nread = 0;
    if (room == 0) return nread;
    for (kept_page& mine : kept_) {
      if (first_lanes(group_, mine.what == state::later && mine.place < end_, room) >> group_.rank() & 1) begin(mine);
      nread += pull(mine);
    }
    for (std::uint32_t i = 0; i < depth; ++i) {
      kept_page& mine = kept_[i];
      const std::uint64_t rest = next_ < end_ ? end_ - next_ : 0;
      const std::uint32_t left = rest < room ? static_cast<std::uint32_t>(rest) : room;
      std::uint32_t few = left;
      const std::uint32_t lanes = first_lanes(group_, mine.what == state::none && i * Group::size() + group_.rank() < most_, few);
      if ((lanes >> group_.rank() & 1) != 0) {
        mine.place = next_ + simt::count_lanes(lanes & ((1u << group_.rank()) - 1));
        begin(mine);
      }
      next_ += left - few;
      room -= left - few;
      nread += pull(mine);
    }
    group_.sync();
    return nread;
  }

  GPUFS_DEVICE void begin(kept_page& mine) const {
    const std::uint64_t page = run_.page(mine.place);
    mine.what = state::pulls;
    mine.waited = false;
    const bringer by = who_brings(mount_, view_, page << pages_.pages().page_shift());
    if (by == bringer::group) return;
    mine.what = state::later;
    const begun got = begin_operation(mount_, view_, page, by, true, mine.frame);
    if (got != begun::no_room) mine.what = got == begun::under_way ? state::asked : state::found;
  }

  // Pulls the pages that the lanes keep in the state `pulls`. Returns how many were read.
  GPUFS_DEVICE std::uint32_t pull(kept_page& mine) {
    std::uint32_t n = 0;
    for (std::uint32_t left = group_.ballot(mine.what == state::pulls); left != 0; left &= left - 1) {
      const auto lane = simt::lowest_lane(left);
      const bool read = pull_page(group_.shfl(mine.place, lane));
      if (group_.rank() == lane) mine.what = read ? state::none : state::later;
      n += read;
    }
    return n;
  }
  // False: the page cannot be read now, because somebody else fills it, or no frame is at hand.
  GPUFS_DEVICE bool pull_page(std::uint64_t place) {
    using role = file_pages::cache_type::role;
    if (place >= end_) return true;
    const cache::page_key key = cache::make_key(view_.cache_id, run_.page(place));
    const auto got = by_leader(group_, [&] { return pages_.acquire(key, ring_hint(), {0, file_pages::cache_type::at_hand}); });
    if (got.what == role::error) return false;
    if (got.what == role::under_way || got.what == role::part) {
      if (group_.leader()) pages_.unpin(got.frame);
      return false;
    }
    const int error = got.what == role::fill ? fill_frame(group_, mount_, pages_, view_, run_.page(place), got.frame) : 0;
    if (error != 0) {
      fail(place, error);
      return true;
    }
    give(place, got.frame);
    if (!group_.leader()) return true;
    if (got.what != role::fill) note_found(of_, view_.slot, false);
    pages_.unpin(got.frame);
    return true;
  }

  // Ends operations that the host has answered, gives pages that are there to the caller, and lets go of pages that are not wanted
  // any more. Returns how many pages were there, or failed.
  GPUFS_DEVICE std::uint32_t collect() {
    std::uint32_t n = 0;
    const bool all_begun = next_ >= end_ && !group_.any(keeps(state::later));  // else slots go back before pages go to the caller
    for (kept_page& mine : kept_) {
      operation_step step{};
      const bool pinned = mine.what == state::asked || mine.what == state::found;
      const bool wanted = pinned && mine.place < end_;
      if (wanted) step = look_at_operation(mount_, mine.frame);
      mine.waited |= step.what == operation_step::state::ours;
      end_operations(group_, mount_, mine.frame, step, all_begun, range_.whole(run_.page(mine.place), page_nbytes()));
      const bool ready = wanted && step.what == operation_step::state::ready;
      const bool failed = wanted && step.what == operation_step::state::failed;
      for (std::uint32_t left = group_.ballot(ready && !step.given); left != 0; left &= left - 1) {
        const auto lane = simt::lowest_lane(left);
        give(group_.shfl(mine.place, lane), group_.shfl(mine.frame, lane));
      }
      group_.sync();  // all lanes have read
      if (ready && mine.what == state::found) note_found(of_, view_.slot, mine.waited);
      // A failed page is asked for again if another group asked for it, or ended its operation.
      const bool ours = failed && mine.what == state::asked && step.error != cache::frames::nobodys_error;
      if (ready || failed || (pinned && !wanted)) {
        pages_.unpin(mine.frame);
        mine.what = failed && !ours ? state::later : state::none;
      }
      if (mine.what == state::later && mine.place >= end_) mine.what = state::none;
      mine.waited = true;
      fail_first(ours, mine.place, step.error);
      n += simt::count_lanes(group_.ballot(ready || failed));
    }
    return n;
  }

  // The first page that cannot be read decides the call's error. The pages behind it are not wanted.
  GPUFS_DEVICE void fail_first(bool failed, std::uint64_t place, int error) {
    if (!group_.any(failed)) return;
    const std::uint64_t first = group_.reduce_min(failed ? place : ~std::uint64_t{0});
    const int its_error = group_.reduce_min(failed && place == first ? error : 0);
    fail(first, its_error);
  }
  GPUFS_DEVICE void fail(std::uint64_t place, int error) {
    if (place >= end_) return;
    end_ = place;
    error_ = error;
  }

  // Fails the pages that are waited for: none has come for as long as the host may take.
  GPUFS_DEVICE void give_up() {
    for (kept_page& mine : kept_) {
      const bool pinned = mine.what == state::asked || mine.what == state::found;
      if (pinned) {
        give_up_operation(mount_, mine.frame);
        pages_.unpin(mine.frame);
        mine.what = state::none;
      }
      fail_first(pinned, mine.place, -ETIMEDOUT);
    }
  }

  // Gives up copies that take too long because CUDA keeps them waiting: the group reads those pages itself. Returns how many.
  GPUFS_DEVICE std::uint32_t give_up_copies() {
    std::uint32_t n = 0;
    for (kept_page& mine : kept_) {
      operation::asked of{};
      const bool pinned = mine.what == state::asked || mine.what == state::found;
      const bool held = pinned && operation(mount_, mine.frame).look(of) && of.to_frame && give_up_operation(mount_, mine.frame);
      if (held) {
        pages_.unpin(mine.frame);
        mine.what = state::later;
      }
      n += simt::count_lanes(group_.ballot(held));
    }
    return n;
  }

  // Reads the first of the pages in the state `later`, as if it were the only page. This waits for others, so the group has nothing
  // else pinned.
  GPUFS_DEVICE void read_one_later() {
    std::uint64_t mine = ~std::uint64_t{0};
    for (const kept_page& each : kept_) {
      if (each.what == state::later && each.place < mine) mine = each.place;
    }
    const std::uint64_t place = group_.reduce_min(mine);
    for (kept_page& each : kept_) {
      if (each.what == state::later && each.place == place) each.what = state::none;
    }
    const cache::page_key key = cache::make_key(view_.cache_id, run_.page(place));
    auto got = by_leader(group_, [&] { return acquire_elsewhere<false>(of_, key, 0); });
    if (got.what >= file_pages::cache_type::role::fill) got = complete_missed(group_, of_, got);
    if (got.error != 0) return fail(place, got.error);
    give(place, got.frame);
    if (group_.leader()) pages_.unpin(got.frame);
  }

  GPUFS_DEVICE void give(std::uint64_t place, cache::frame_index frame) const {
    copy_part(group_, range_, run_.page(place), page_nbytes(), pages_.pages().data(frame));
    group_.sync();
  }
  GPUFS_DEVICE std::uint32_t page_nbytes() const { return pages_.pages().page_nbytes(); }

  Group group_;
  const file_pages& of_;
  const file_mount& mount_;
  const file_pages::cache_type pages_;
  const file_view& view_;
  bringer by_;
  page_run run_;
  byte_range range_;
  std::uint32_t most_;
  std::uint64_t next_ = 1;  // places before this were begun; the first is the caller's
  std::uint64_t end_;       // places from here on are not wanted: the run's end, or the first that failed
  int error_ = 0;
  kept_page kept_[depth];
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
