// SPDX-License-Identifier: Apache-2.0
// The page cache: finds, or makes room for, one page. Called by one lane (a group's leader); the group then fills the frame
// together. Table and Allocator are policies, made from a cache_layout in device memory, so that research/baselines/ can plug in
// the papers' designs.
#pragma once
#include "gpufs/cache/detail/clock_rings.hpp"
#include "gpufs/cache/detail/hash_table.hpp"
#include "gpufs/cache/detail/page_uses.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

template <class Table = hash_table, class Allocator = clock_rings>
class page_cache {
 public:
  // `cache` is in device memory, and stays there.
  GPUFS_DEVICE explicit page_cache(const cache_layout& cache) : frames_(cache), cache_(&cache) {}

  GPUFS_DEVICE const frames& pages() const { return frames_; }

  enum class role : std::int32_t {
    hit,        // pinned and filled
    waited,     // the same, after another group's fill
    error,      // nothing is pinned
    fill,       // pinned by us; we must fill it and call end_fill
    under_way,  // pinned; an operation brings it in, which we may end, and somebody must
    part,       // pinned; only some of its sectors are there, perhaps none
  };
  struct acquired {
    frame_index frame;
    role what;
    std::int32_t error;  // negative errno when what == error
  };

  struct timeouts {
    std::uint64_t fill_ns;   // how long another group's fill, or (1 ms at least) a lock, may take: then -ETIMEDOUT
    std::uint64_t frame_ns;  // how long to wait for a frame while every frame is pinned: then -ENOMEM (after fill_ns while
                             // some frame is being filled all the time, as that one may come free)
  };
  // A frame_ns: to look at a few frames only, for callers that have reason to believe that all are pinned.
  static constexpr std::uint64_t at_hand = ~std::uint64_t{0};
  // Another: to look at all frames for fill_ns, but not to wait; -EBUSY in place of -ENOMEM if some are being filled.
  static constexpr std::uint64_t a_look = at_hand - 1;

  static constexpr bool has_choice = requires { Allocator::takes; };

  // Pins the page `key`; `start` chooses the allocation ring. One lane calls. Waits at most as `limits` says, and only for
  // running groups (a bucket's lock, a fill) or for pins to be given back. -EMFILE: the page has half of the pins that can be
  // counted (2^23); the other half is kept for groups that look the page up at this moment, so the count cannot wrap. Waits for no
  // operation.
  GPUFS_DEVICE acquired acquire(page_key key, std::uint32_t start, const timeouts& limits) const {
    frames::pin_result pinned{};
    frame_index at{};
    if (!find(key, pinned, at)) [[unlikely]]
      return simt::call_cold(&acquire_slowly, cache_, key, start, limits.fill_ns, limits.frame_ns);
    if (pinned.busy()) [[unlikely]]
      return simt::call_cold(&wait_or_look_anew, cache_, key, at, start, limits.fill_ns, limits.frame_ns);
    return {at, role::hit, 0};
  }

  // The same for a caller that has not found the page in the frame of its choice: it is looked up in the page table, which has
  // every page, without its lock (the caller may have done that) and then with it. Inlined, as most calls end here, and a call out
  // of line saves registers on the stack, which for one lane of a warp is a sector of the second-level cache for each.
  GPUFS_DEVICE acquired acquire_elsewhere(page_key key, std::uint32_t start, const timeouts& limits,
                                          bool looked_in_table = false) const {
    frames::pin_result pinned{};
    frame_index at{};
    const Table table = this->table();
    std::uint32_t home = Table::unlocked;
    bool locked = looked_in_table && table.try_lock(key, home);
    if (!locked) home = Table::unlocked;  // the lock's holder may be entering this page
    do {
      if (look_up(table, key, pinned, at, home)) {
        if (locked) table.unlock(key);
        if (!pinned.busy()) return {at, role::hit, 0};
        return simt::call_cold(&wait_or_look_anew, cache_, key, at, start, limits.fill_ns, limits.frame_ns);
      }
      if (locked) {
        const auto room = make_room(table, key, start, 0);
        if (room.found) return {room.frame, role::fill, 0};
        break;
      }
      locked = table.try_lock(key, home);
    } while (locked);
    return simt::call_cold(&acquire_slowly, cache_, key, start, limits.fill_ns, limits.frame_ns);
  }

  // The same, out of line, for pointers, which have looked in the table without the lock and found nothing, or a page that is not
  // filled. (Not with acquire_slowly's parameters: see simt/cold.hpp.)
  GPUFS_DEVICE_COLD static acquired acquire_missed(const cache_layout* cache, page_key key, std::uint32_t start, timeouts limits) {
    return page_cache(*cache).acquire_elsewhere(key, start, limits, true);
  }

  // Pins the page `key` if it is in the frame of its choice, as most pages are, and if the call need not wait. One lane calls.
  GPUFS_DEVICE static bool pin_in_choice(const frames& pages, page_key key, frame_index& at) {
    bool is_part = false;
    return pin_in_choice<false>(pages, key, at, is_part);
  }
  // The same. TakesPart: if the page is there in part, the call keeps the pin, returns false, and sets is_part.
  template <bool TakesPart>
  GPUFS_DEVICE static bool pin_in_choice(const frames& pages, page_key key, frame_index& at, bool& is_part) {
    if constexpr (has_choice) {
      at = pages.preferred(key);
      const frames::pin_result pinned = pages.pin(at, key);
      if (pinned.held && !pinned.busy()) [[likely]]
        return true;
      is_part = TakesPart && pinned.held && !pinned.filling() && !pinned.crowded();
      if (pinned.held && !is_part) pages.unpin(at);
    }
    return false;
  }

  // Whether the page `key` is in the cache, or somebody fills it; it may be gone, or come, at any moment. One lane calls.
  GPUFS_DEVICE bool has(page_key key) const {
    return table().find(key,
                        [&](frame_index f) { return frames_.holds(f, key, frames_.state(f).load(std::memory_order_acquire)); });
  }

  // Pins the page `key` if it is in the cache, or somebody fills it. Waits for nobody. One lane calls.
  GPUFS_DEVICE bool pin_cached(page_key key, frame_index& at) const {
    frames::pin_result pinned{};
    if (!find(key, pinned, at)) return false;
    if (!pinned.crowded()) return true;
    unpin(at);
    return false;
  }

  // Pins the page `key` if it is in the cache, also after another group's fill, for a moment: however many pins it has. One lane
  // calls. what: hit, waited or part; or error. Error 0: the page is not cached, and its eviction, with the write-back of all that
  // was written to it, happened before the return.
  GPUFS_DEVICE_COLD static acquired acquire_cached(const cache_layout* cache, page_key key, std::uint64_t fill_ns) {
    const page_cache self(*cache);
    if (!self.table().lock(key, simt::deadline(fill_ns))) return {frame_index{}, role::error, -ETIMEDOUT};
    frames::pin_result pinned{};
    frame_index at{};
    const bool found = self.find(key, pinned, at);
    self.table().unlock(key);
    simt::fence(std::memory_order_acquire, cache_layout::scope);  // meets erase's release
    if (!found) return {frame_index{}, role::error, 0};
    if (!pinned.filling()) return {at, pinned.partial() ? role::part : role::hit, 0};
    const acquired got = wait(cache, at, fill_ns);
    if (got.error == frames::nobodys_error) return {frame_index{}, role::error, 0};
    if (got.what != role::under_way) return got;
    self.unpin(at);  // nobody has written to a page that an operation brings in
    return {frame_index{}, role::error, 0};
  }

  // Takes a frame for something else than a page of a file. No look-up finds it, and it is the caller's until unpin. It looks like
  // a frame whose fill has failed, while a lane still waits for it. One lane calls. what == error when all are pinned for frame_ns.
  GPUFS_DEVICE_COLD static acquired take_frame(const cache_layout* cache, std::uint32_t start, std::uint64_t frame_ns) {
    const page_cache self(*cache);
    const simt::deadline until(frame_ns);
    const Allocator allocator(*cache);
    const std::uint32_t all = allocator.attempts_for_all(self.frames_);
    simt::backoff pause;
    for (std::uint32_t attempt = 0;; ++attempt) {
      const auto room = allocator.allocate(self.frames_, start, attempt, [&](frame_index victim, std::uint64_t state) {
        end_evicted(*cache, self.table(), victim, state);
      });
      if (room.found) {
        self.frames_.begin_fill(room.frame, page_key{0}, room.state);
        frames::fence_claim();
        self.frames_.end_fill(room.frame, -ECANCELED);
        return {room.frame, role::fill, 0};
      }
      if (attempt < all) continue;
      if (until.expired()) return {frame_index{}, role::error, -ENOMEM};
      pause();
    }
  }

  // Ends the fill that `acquire` handed out. With an error, the page leaves the table, waiters wake with the error and our
  // pin is gone; else we go on holding our pin. One lane calls, after the group's sync.
  GPUFS_DEVICE void end_fill(page_key key, frame_index f, int error) const {
    if (error != 0) {
      fail_fill(cache_, key, f, error);
    } else {
      frames_.end_fill(f, 0);
    }
  }

  GPUFS_DEVICE void unpin(frame_index f) const { frames_.unpin(f); }
  GPUFS_DEVICE bool unpin_checked(frame_index f) const { return frames::unpin_checked(frames_.state_word(f)); }

 private:
  static constexpr std::uint64_t stray_ns = 1'000'000;

  GPUFS_DEVICE Table table() const { return Table(*cache_); }

  // True when the page was there and is pinned now.
  GPUFS_DEVICE bool find(page_key key, frames::pin_result& pinned, frame_index& at) const {
    if constexpr (has_choice) {
      at = frames_.preferred(key);
      pinned = frames_.pin(at, key);
      if (pinned.held) [[likely]]
        return true;
    }
    return look_up(table(), key, pinned, at, Table::unlocked);
  }
  // The same by the page table alone, which has every page. `home`: Table::unlocked, or what try_lock gave.
  GPUFS_DEVICE bool look_up(const Table& table, page_key key, frames::pin_result& pinned, frame_index& at,
                            std::uint32_t home) const {
    return table.find(
        key,
        [&](frame_index f) {
          pinned = frames_.pin(f, key);
          at = f;
          return pinned.held;
        },
        home);
  }

  // Takes a frame for the page (in the first attempt the frame of its choice, then one of a ring), enters the page into the table,
  // and unlocks its key. The caller has the lock, and has not found the page.
  GPUFS_DEVICE auto make_room(const Table& table, page_key key, std::uint32_t start, std::uint32_t attempt) const {
    const Allocator allocator(*cache_);
    const auto erase = [&](frame_index victim, std::uint64_t state) { end_evicted(*cache_, table, victim, state); };
    using found_room = decltype(allocator.allocate(frames_, start, attempt, erase));
    found_room room{};
    if constexpr (has_choice) {
      if (attempt == 0) room = allocator.take(frames_, frames_.preferred(key), erase);
    }
    if (!room.found) room = allocator.allocate(frames_, start, attempt, erase);
    if (room.found) {
      frames_.begin_fill(room.frame, key, room.state);
      table.insert(key, room.frame);
    }
    frames::fence_claim();  // and, for whoever locks next: the entry, and the frame's state
    table.unlock_after_fence(key);
    return room;
  }

  GPUFS_DEVICE_COLD static acquired wait_or_look_anew(const cache_layout* cache, page_key key, frame_index f, std::uint32_t start,
                                                      std::uint64_t fill_ns, std::uint64_t frame_ns) {
    const acquired got = wait(cache, f, fill_ns);
    return got.error == frames::nobodys_error ? acquire_slowly(cache, key, start, fill_ns, frame_ns) : got;
  }

  // Completes the pin of a page that is being filled, or is there in part, or that has so many pins that ours might be one too
  // many. The error in the result may be frames::nobodys_error.
  GPUFS_DEVICE_COLD static acquired wait(const cache_layout* cache, frame_index f, std::uint64_t fill_ns) {
    const frames pages(*cache);
    const bool crowded = pages.state(f).load(std::memory_order_relaxed) >= frame_state::many_pins;
    const int error = crowded ? -EMFILE : pages.wait_filled(f, simt::deadline(fill_ns));
    if (error == 0) return {f, pages.is_partial(f) ? role::part : role::waited, 0};
    if (error == frames::under_way) return {f, role::under_way, 0};
    pages.unpin(f);
    return {f, role::error, error};
  }

  GPUFS_DEVICE_COLD static void fail_fill(const cache_layout* cache, page_key key, frame_index f, int error) {
    const frames pages(*cache);
    Table(*cache).erase(key, f);  // before `failed` is set: a lane that sees it finds the table clean
    pages.end_fill(f, error);
    pages.unpin(f);
  }

  GPUFS_DEVICE_COLD static acquired acquire_slowly(const cache_layout* cache, page_key key, std::uint32_t start,
                                                   std::uint64_t fill_ns, std::uint64_t frame_ns) {
    const page_cache self(*cache);
    const Table table = self.table();
    const simt::deadline fill_deadline(fill_ns);
    // The lock's holder waits for nobody, so even a caller that waits for no fill waits for the lock.
    const simt::deadline lock_deadline(fill_ns < stray_ns ? stray_ns : fill_ns);
    const simt::deadline frame_deadline(frame_ns == a_look ? 0 : frame_ns);
    const std::uint32_t all = Allocator(*cache).attempts_for_all(self.frames_);
    simt::backoff pause;
    const acquired none{frame_index{}, role::error, -ENOMEM};
    std::uint32_t pinned_attempts = 0, ring = 0;
    for (std::uint32_t attempt = 0;; ++attempt) {
      if (!table.lock(key, lock_deadline)) return {frame_index{}, role::error, -ETIMEDOUT};
      frames::pin_result pinned{};
      frame_index at{};
      if (self.look_up(table, key, pinned, at, Table::unlocked)) {
        table.unlock(key);
        if (!pinned.busy()) return {at, role::hit, 0};
        const acquired got = wait(cache, at, fill_ns);
        if (got.error != frames::nobodys_error) return got;
        if (fill_deadline.expired()) return {frame_index{}, role::error, -ETIMEDOUT};
        continue;
      }
      const auto room = self.make_room(table, key, start, ring);
      if (room.found) return {room.frame, role::fill, 0};
      // Nothing in this ring. Where frames only lost their second chance, its hand comes round to them; else try the next.
      // Once nothing but pinned frames was seen for two rounds (or 64 Ki frames), wait for a pin to be given back, not for ever.
      if (!room.passed) ++ring;
      if (frame_ns == at_hand && attempt + 1 >= (room.transient || room.passed ? 4u : 1u)) return none;
      pinned_attempts = room.transient || room.passed ? 0 : pinned_attempts + 1;
      if (pinned_attempts >= (all < 1024 ? all : 1024) && frame_deadline.expired()) return none;
      if (fill_deadline.expired()) return pinned_attempts != 0 || frame_ns != a_look ? none : acquired{at, role::error, -EBUSY};
      if (attempt >= all) pause();
    }
  }

  frames frames_;
  const cache_layout* cache_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
