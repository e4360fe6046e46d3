// SPDX-License-Identifier: Apache-2.0
// How long an access through a pointer waits for a frame. Idle lanes' pointers hold pages in registers and cannot be asked for
// them, so that all frames may be pinned for as long as the kernel runs: a lane that has waited in vain says so to the mount, and
// for a while others of its kind look, and do not wait.
#pragma once
#include "gpufs/cache/detail/page_cache.hpp"
#include "gpufs/pointer/detail/mount_layout.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// How long one lane waits for a frame. The lane makes it just before it asks for the frame. A read without a frame is served past
// the cache (past_cache.hpp), so it waits for a sixteenth of frame_timeout only. Any other access fails without a frame, so it
// waits for all of frame_timeout.
class patience {
 public:
  GPUFS_DEVICE patience(const mount_layout& mount, bool only_reads)
      : starved_(mount.pointers.words->starved_ns[only_reads ? 0 : 1]),
        frame_ns_(only_reads ? mount.frame_timeout_ns / 16 : mount.frame_timeout_ns) {
    const std::uint64_t last = starved_.load(std::memory_order_relaxed), now = simt::clock_ns();
    if (last == 0) return;
    const std::uint64_t since = now > last ? now - last : 0;
    if (since < mount.frame_timeout_ns + 16 * look_again_ns) frame_ns_ = since < look_again_ns ? cache::page_cache<>::at_hand : 0;
  }
  // What page_cache::acquire is to be asked for.
  GPUFS_DEVICE std::uint64_t frame_ns() const { return frame_ns_; }
  // The same in time, for callers that look at all frames once in any case.
  GPUFS_DEVICE std::uint64_t wait_ns() const { return frame_ns_ == cache::page_cache<>::at_hand ? 0 : frame_ns_; }
  // After there was none.
  GPUFS_DEVICE void note_none() const {
    if (frame_ns_ != cache::page_cache<>::at_hand) starved_.store(simt::clock_ns(), std::memory_order_relaxed);
  }

 private:
  // Somebody looks at all frames again so often: with a large cache that takes long.
  static constexpr std::uint64_t look_again_ns = 1'000'000;

  simt::atomic_ref<std::uint64_t> starved_;
  std::uint64_t frame_ns_;
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
