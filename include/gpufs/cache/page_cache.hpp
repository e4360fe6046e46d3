// The page cache: finds, or makes room for, one page. Called by one lane (a group's leader); the group then fills the frame
// together. Table and Allocator are policies, so that bench/ can plug in the papers' original designs.
#pragma once
#include "gpufs/cache/clock_rings.hpp"
#include "gpufs/cache/hash_table.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

template <class Table = hash_table, class Allocator = clock_rings>
class page_cache {
 public:
  GPUFS_HOST_DEVICE page_cache(const frame_storage& pages, const Table& table, const Allocator& allocator)
      : frames_(pages), table_(table), allocator_(allocator) {}

  GPUFS_DEVICE const frames& pages() const { return frames_; }

  enum class role : std::int32_t {
    hit,     // pinned and filled
    waited,  // the same, after another group's fill
    fill,    // pinned by us; we must fill it and call end_fill
    error,   // nothing is pinned
  };
  struct acquired {
    frame_index frame;
    role what;
    std::int32_t error;  // negative errno when what == error
  };

  struct timeouts {
    std::uint64_t fill_ns;   // how long another group's fill, or a lock, may take: then -ETIMEDOUT
    std::uint64_t frame_ns;  // how long to wait for a frame while every frame is pinned: then -ENOMEM
  };

  // Pins the page `key`; `start` chooses the allocation ring. One lane calls. Waits at most as `limits` says, and only for
  // running groups (a bucket's lock, a fill) or for pins to be given back.
  GPUFS_DEVICE acquired acquire(page_key key, std::uint32_t start, const timeouts& limits) const {
    acquired found;
    if (find(key, limits, found)) return found;
    return acquire_slowly(key, start, limits);
  }

  // Ends the fill that `acquire` handed out. With an error, the page leaves the table, waiters wake with the error and our
  // pin is gone; else we go on holding our pin. One lane calls, after the group's sync.
  GPUFS_DEVICE void end_fill(page_key key, frame_index f, int error) const {
    if (error != 0) table_.erase(key, f);  // before `failed` is set: whoever sees it finds the table clean
    frames_.end_fill(f, error);
    if (error != 0) frames_.unpin(f);
  }

  GPUFS_DEVICE bool unpin(frame_index f) const { return frames_.unpin(f); }

 private:
  // True when the page was there; *out then says how it ended.
  GPUFS_DEVICE bool find(page_key key, const timeouts& limits, acquired& out) const {
    frames::pin_result pinned{false, false};
    frame_index at{};
    const frames& pages = frames_;
    const bool found = table_.find(key, [&](frame_index f) {
      pinned = pages.pin(f, key);
      at = f;
      return pinned.held;
    });
    if (!found) return false;
    out = pinned.filling ? wait(at, limits) : acquired{at, role::hit, 0};
    return true;
  }

  GPUFS_DEVICE acquired wait(frame_index f, const timeouts& limits) const {
    const int error = frames_.wait_filled(f, simt::deadline(limits.fill_ns));
    if (error == 0) return {f, role::waited, 0};
    frames_.unpin(f);
    return {f, role::error, error};
  }

  GPUFS_DEVICE acquired acquire_slowly(page_key key, std::uint32_t start, const timeouts& limits) const {
    const simt::deadline fill_deadline(limits.fill_ns);
    const simt::deadline frame_deadline(limits.frame_ns);
    const std::uint32_t all = allocator_.attempts_for_all(frames_);
    simt::backoff pause;
    std::uint32_t pinned_attempts = 0;
    for (std::uint32_t attempt = 0;; ++attempt) {
      acquired out{};
      if (!table_.lock(key, fill_deadline)) return {frame_index{}, role::error, -ETIMEDOUT};
      frames::pin_result pinned{false, false};
      frame_index at{};
      const bool found = find_locked(key, pinned, at);
      if (!found) {
        const auto room = allocator_.allocate(frames_, start, attempt, [&](frame_index victim) {
          table_.erase(frames_.load_key(victim), victim);
        });
        if (room.found) {
          frames_.begin_fill(room.frame, key);
          table_.insert(key, room.frame);
          table_.unlock(key);
          return {room.frame, role::fill, 0};
        }
        pinned_attempts = room.transient ? 0 : pinned_attempts + 1;
      }
      table_.unlock(key);
      if (found) return pinned.filling ? wait(at, limits) : acquired{at, role::hit, 0};
      // Nothing found in this ring. Once a whole round saw only pinned frames, wait for a pin to be given back, not for ever.
      if (pinned_attempts >= all && frame_deadline.expired()) return {frame_index{}, role::error, -ENOMEM};
      if (fill_deadline.expired()) return {frame_index{}, role::error, -ENOMEM};
      if (attempt >= all) pause();
      if (find(key, limits, out)) return out;
    }
  }

  GPUFS_DEVICE bool find_locked(page_key key, frames::pin_result& pinned, frame_index& at) const {
    const frames& pages = frames_;
    return table_.find(key, [&](frame_index f) {
      pinned = pages.pin(f, key);
      at = f;
      return pinned.held;
    });
  }

  frames frames_;
  Table table_;
  Allocator allocator_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
