// SPDX-License-Identifier: Apache-2.0
// The sectors of a page that is in the cache in part: which are there, and which somebody brings in. docs/design/part-pages.md
#pragma once
#include "gpufs/cache/detail/frames.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

// The sectors of one frame that the caller has pinned (or, to look at, whose state it looks at before and after). A page has up to
// 32 sectors, of at least 128 bytes; bit i is sector i.
class sectors {
 public:
  static constexpr unsigned least_shift = 7, most = 32;

  GPUFS_DEVICE sectors(const frames& pages, frame_index f) : pages_(pages), frame_(f) {}

  GPUFS_DEVICE static std::uint32_t shift(std::uint32_t page_shift) {
    constexpr unsigned log_most = 5;
    return page_shift > least_shift + log_most ? page_shift - log_most : least_shift;
  }
  // All sectors of a page.
  GPUFS_DEVICE static std::uint32_t all(std::uint32_t page_shift) {
    return ~0u >> (most - (1u << (page_shift - shift(page_shift))));
  }
  // The sectors in which the bytes from `begin` to `end` of a page lie.
  GPUFS_DEVICE static std::uint32_t of_bytes(std::uint32_t page_shift, std::uint32_t begin, std::uint32_t end) {
    const std::uint32_t first = begin >> shift(page_shift), last = (end - 1) >> shift(page_shift);
    return (~0u >> (most - 1 - last)) & (~0u << first);
  }

  // Whether that is little of a page: a quarter of its sectors at most.
  GPUFS_DEVICE static bool is_little(std::uint32_t some, std::uint32_t page_shift) {
    return 4 * simt::count_lanes(some) <= simt::count_lanes(all(page_shift));
  }

  // Ends a fill that the caller holds with a page that is there in part: no sector of it is there yet. The caller keeps its pin.
  // The release meets the acquires of the lanes that pin the page and bring sectors in.
  GPUFS_DEVICE void begin() const {
    word().store(0, std::memory_order_relaxed);
    pages_.state(frame_).fetch_add(frame_state::partial - frame_state::filling, std::memory_order_release);
  }

  // Which sectors are there, of a page whose frame the caller has claimed. The acquire of `claim` has met the last unpin.
  GPUFS_DEVICE std::uint32_t left() const { return static_cast<std::uint32_t>(word().load(std::memory_order_relaxed)); }

  // Which sectors are there, and above them which somebody brings in. The acquire meets the fence before end_fill.
  GPUFS_DEVICE std::uint64_t look() const { return word().load(std::memory_order_acquire); }
  // Which somebody brings in, or writes whole.
  GPUFS_DEVICE std::uint32_t busy() const { return static_cast<std::uint32_t>(word().load(std::memory_order_relaxed) >> most); }
  // Which of the wanted sectors are missing.
  GPUFS_DEVICE std::uint32_t missing(std::uint32_t wanted) const { return wanted & ~static_cast<std::uint32_t>(look()); }

  // What a group that brings some of these sectors in had better bring in, too. `seen` is what look() gave. None, if others bring
  // in what the group wants.
  enum class want { whole, learnt, part };
  GPUFS_DEVICE static std::uint32_t along(std::uint64_t seen, std::uint32_t wanted, std::uint32_t page_shift, want what) {
    const auto there = static_cast<std::uint32_t>(seen), busy = static_cast<std::uint32_t>(seen >> most);
    const std::uint32_t mine = wanted & ~there & ~busy;
    if (mine == 0) return 0;
    const bool all_of_it = what == want::whole || (what == want::learnt && !is_little(there | wanted, page_shift));
    const std::uint32_t more = all_of_it ? ~0u : behind_run(there, simt::lowest_lane(mine));
    return more & all(page_shift) & ~there & ~busy & ~wanted;
  }

  // Claims those wanted sectors for the caller that are missing and that nobody brings in yet. The caller calls frames::fence_claim
  // before it writes them. After the writes it calls a fence (acq_rel), and then end_fill or give_up. Meanwhile it waits for nobody
  // but the host. The acquire meets give_up's release: the caller's bytes come after bytes that were given up. The caller's unpin
  // orders no writes by itself: the fence before it orders the bytes for `claim`, and end_fill and give_up make sure that the word
  // has changed before the unpin.
  GPUFS_DEVICE std::uint32_t begin_fill(std::uint32_t wanted) const {
    std::uint64_t seen = word().load(std::memory_order_relaxed);
    for (;;) {
      const std::uint32_t mine = wanted & ~static_cast<std::uint32_t>(seen) & ~static_cast<std::uint32_t>(seen >> most);
      if (mine == 0 || word().compare_exchange(seen, seen | std::uint64_t{mine} << most, std::memory_order_acquire)) return mine;
    }
  }
  // Claims all of these sectors that are missing, for a caller that writes them whole, and goes on as after begin_fill. False:
  // others bring some of them in, and nothing is claimed. The acquire meets the fence before end_fill, so that the caller's bytes
  // come after those of a fill.
  GPUFS_DEVICE bool begin_write(std::uint32_t some) const {
    for (;;) {
      std::uint64_t seen = look();
      if ((static_cast<std::uint32_t>(seen >> most) & some) != 0) return false;
      const std::uint32_t mine = some & ~static_cast<std::uint32_t>(seen);
      if (mine == 0 || word().compare_exchange(seen, seen | std::uint64_t{mine} << most, std::memory_order_acquire)) return true;
    }
  }
  // The caller has brought these sectors in, and its fence publishes them. True for one caller: now all are there. The acquire
  // meets the fences of the lanes that brought the others in, so that a lane that finds the page whole sees all of its bytes. The
  // caller waits for the atomic's result.
  GPUFS_DEVICE bool end_fill(std::uint32_t mine) const {
    constexpr std::memory_order order =
        GPUFS_ON_CUDA ? std::memory_order_acquire : std::memory_order_acq_rel;  // as simt::after_fence
    const std::uint64_t before = word().fetch_sub((std::uint64_t{mine} << most) - mine, order);
    const bool is_whole = (static_cast<std::uint32_t>(before) | mine) == all(pages_.page_shift());
    if (is_whole) pages_.state(frame_).fetch_and(~frame_state::partial, std::memory_order_release);
    return is_whole;
  }
  // The caller could not get these sectors. The fence keeps its unpin behind this change: the frame's next page resets the word.
  GPUFS_DEVICE void give_up(std::uint32_t mine) const {
    word().fetch_sub(std::uint64_t{mine} << most, std::memory_order_acq_rel);
    simt::fence(std::memory_order_acq_rel, cache_layout::scope);
  }

 private:
  // From `first` on as many sectors as are there just before it: a reader that goes on misses only as often as what is there
  // doubles.
  GPUFS_DEVICE static std::uint32_t behind_run(std::uint32_t there, unsigned first) {
    const std::uint32_t gaps = ~there & ((1u << first) - 1);
    const unsigned run = gaps == 0 ? first : first - 1 - simt::highest_lane(gaps);
    return run == 0 ? 0 : ~0u >> (most - run) << first;
  }

  GPUFS_DEVICE word_ref<std::uint64_t> word() const { return pages_.sectors_word(frame_); }

  const frames& pages_;
  frame_index frame_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
