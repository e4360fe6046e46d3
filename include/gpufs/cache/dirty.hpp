// Pages that were written: which of their bytes, and lists of them. Knows nothing of files. docs/writing.md has the protocol, and
// why no byte is lost.
#pragma once
#include "gpufs/cache/frames.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

class dirty_pages {
 public:
  GPUFS_DEVICE explicit dirty_pages(const cache_layout& cache) : frames_(cache), storage_(cache.dirty) {}

  // Marks bytes [begin, end) of a page that the group has pinned as written. All lanes call, after the copy's last sync; the leader
  // then calls set_dirty after another.
  template <class Group>
  GPUFS_DEVICE void mark(Group group, frame_index f, std::uint32_t begin, std::uint32_t end) const {
    // Meets the acquire in take: who takes a bit sees the byte.
    simt::fence(std::memory_order_release, simt::scope::device);
    const std::uint32_t first = begin / 32, last = (end - 1) / 32;
    for (std::uint32_t w = first + group.rank(); w <= last; w += group.size()) {
      word(f, w).fetch_or(bits_of(w, begin, end), std::memory_order_relaxed);
    }
  }

  // Marks the bytes before `end` in which the page differs from `twin`, memory of a page's size, and makes the twin equal to it.
  // All lanes call; then as after mark. True when there were some.
  template <class Group>
  GPUFS_DEVICE bool mark_changes(Group group, frame_index f, std::byte* twin, std::uint32_t end) const {
    simt::fence(std::memory_order_release, simt::scope::device);  // as in mark
    const std::byte* data = frames_.data(f);
    std::uint32_t any = 0;
    for (std::uint32_t w = group.rank(); w * 32 < end; w += group.size()) {
      const std::uint32_t bits = simt::differing_bytes(data + w * 32, twin + w * 32) & bits_of(w, 0, end);
      if (bits == 0) continue;
      any |= bits;
      word(f, w).fetch_or(bits, std::memory_order_relaxed);
      simt::copy_changing(simt::this_thread(), twin + w * 32, data + w * 32, 32);
    }
    return group.any(any != 0);
  }

  // After mark, by one lane, while the page is pinned. True when the page was clean: the caller counts it, and then calls
  // enter. False once it is listed, so that whoever writes back the lists from now on finds it.
  GPUFS_DEVICE bool set_dirty(frame_index f) const {
    // The release meets the acquire in begin_write_back: our bits are seen by who clears this.
    std::uint64_t now = frames_.state(f).fetch_or(frame_state::dirty, std::memory_order_acq_rel);
    if ((now & frame_state::dirty) == 0) return true;
    // Waits for a lane that is between set_dirty and the end of enter.
    const simt::deadline until(entering_ns);
    simt::backoff pause;
    while ((now & frame_state::dirty) != 0 && (now & frame_state::listed) == 0 && !until.expired()) {
      pause();
      now = frames_.state(f).load(std::memory_order_acquire);
    }
    return false;
  }

  // Puts a page that set_dirty has found clean into a list.
  GPUFS_DEVICE void enter(dirty_list& list, frame_index f) const {
    put_back(list, f);
    frames_.state(f).fetch_or(frame_state::listed, std::memory_order_release);
  }
  // Puts one back that `leave` gave.
  GPUFS_DEVICE void put_back(dirty_list& list, frame_index f) const {
    simt::atomic_ref<std::uint32_t> head(list.head);
    simt::atomic_ref<std::uint32_t> next(storage_.next[static_cast<std::uint32_t>(f)]);
    std::uint32_t seen = head.load(std::memory_order_relaxed);
    do {
      next.store(seen, std::memory_order_relaxed);
    } while (!head.compare_exchange(seen, static_cast<std::uint32_t>(f) + 1, std::memory_order_release));  // meets leave
  }

  struct left {
    frame_index frame;
    bool found;
  };
  // Takes a page out of a list whose lock the caller holds, so that nobody else takes one; unless refuse(frame) says no of the
  // first. It stays dirty, and so where it is.
  template <class Refuse>
  GPUFS_DEVICE left leave(dirty_list& list, Refuse refuse) const {
    simt::atomic_ref<std::uint32_t> head(list.head);
    std::uint32_t seen = head.load(std::memory_order_acquire);  // meets enter: the link
    while (seen != 0 && !refuse(frame_index{seen - 1})) {
      const std::uint32_t rest = simt::atomic_ref<std::uint32_t>(storage_.next[seen - 1]).load(std::memory_order_relaxed);
      // The release meets is_empty's acquire: who sees that the page is gone sees that the list is locked.
      if (head.compare_exchange(seen, rest, std::memory_order_acq_rel)) return {frame_index{seen - 1}, true};
    }
    return {frame_index{}, false};
  }

  // Before its mask is taken: pins the page, which `leave` gave, and clears `dirty`, so that a write that comes later lists it
  // again.
  GPUFS_DEVICE void begin_write_back(frame_index f) const {
    auto state = frames_.state(f);
    const simt::deadline until(entering_ns);
    simt::backoff pause;
    // For a lane at the end of enter.
    while ((state.load(std::memory_order_acquire) & frame_state::listed) == 0 && !until.expired()) pause();
    state.fetch_add(frame_state::one_pin, std::memory_order_relaxed);
    // Meets set_dirty's release.
    state.fetch_and(~(frame_state::dirty | frame_state::listed), std::memory_order_acq_rel);
  }

  // Which bytes of a page are to be written.
  struct extent {
    std::uint32_t begin, nbytes;  // from the first to the last
    bool masked;                  // not all of them: `mask` says which
  };
  // Takes the mask of a page after begin_write_back; nbytes 0: there was none. `mask` is memory for all of it, in the page's
  // layout, of which the words of the extent are written if need be. All lanes call; when it returns, each may read the bytes.
  template <class Group>
  GPUFS_DEVICE extent take(Group group, frame_index f, std::uint32_t* mask) const {
    const std::uint32_t nwords = frames_.page_nbytes() / 32;
    std::uint32_t first = ~0u, last = 0, count = 0;
    for (std::uint32_t w = group.rank(); w < nwords; w += group.size()) {
      const std::uint32_t bits = word(f, w).load(std::memory_order_relaxed);
      if (bits == 0) continue;
      if (first == ~0u) first = w * 32 + simt::lowest_lane(bits);
      last = w * 32 + simt::highest_lane(bits);
      count += simt::count_lanes(bits);
    }
    count = group.reduce_add(count);
    if (count == 0) return {0, 0, false};
    first = group.reduce_min(first);
    last = group.reduce_max(last);
    const bool masked = count != last - first + 1;
    for (std::uint32_t w = first / 32 + group.rank(); w <= last / 32; w += group.size()) {
      // Bits beyond the extent that were set since we looked stay: their writers' set_dirty comes after our clearing.
      const std::uint32_t bits = bits_of(w, first, last + 1);
      const std::uint32_t taken = word(f, w).fetch_and(~bits, std::memory_order_relaxed) & bits;
      if (masked) mask[w] = taken;
    }
    simt::fence(std::memory_order_acq_rel, simt::scope::device);  // meets mark's release
    group.sync();
    return {first, last - first + 1, masked};
  }

  // Forgets that bytes from `begin` on were written. All lanes call.
  template <class Group>
  GPUFS_DEVICE void unmark(Group group, frame_index f, std::uint32_t begin) const {
    const std::uint32_t nbytes = frames_.page_nbytes();
    for (std::uint32_t w = begin / 32 + group.rank(); w < nbytes / 32; w += group.size()) {
      word(f, w).fetch_and(~bits_of(w, begin, nbytes), std::memory_order_relaxed);
    }
  }

  // One lane calls. The acquire meets unlock's release; the holder waits for the host only. A list that was lost is never free.
  GPUFS_DEVICE static bool try_lock(dirty_list& list) {
    std::uint32_t unlocked = 0;
    return simt::atomic_ref<std::uint32_t>(list.lock).compare_exchange(unlocked, 1, std::memory_order_acquire);
  }
  GPUFS_DEVICE static bool lock(dirty_list& list, const simt::deadline& until) {
    simt::backoff pause;
    while (!try_lock(list)) {
      if (is_lost(list) || until.expired()) return false;
      pause();
    }
    return true;
  }
  // By the lock's holder: the host has not answered.
  GPUFS_DEVICE static void lose(dirty_list& list) {
    simt::atomic_ref<std::uint32_t>(list.lock).store(lost, std::memory_order_release);
  }
  GPUFS_DEVICE static bool is_lost(dirty_list& list) {
    return simt::atomic_ref<std::uint32_t>(list.lock).load(std::memory_order_relaxed) == lost;
  }
  GPUFS_DEVICE static void unlock(dirty_list& list) {
    simt::atomic_ref<std::uint32_t>(list.lock).store(0, std::memory_order_release);
  }
  GPUFS_DEVICE static bool is_empty(dirty_list& list) {
    return simt::atomic_ref<std::uint32_t>(list.head).load(std::memory_order_acquire) == 0;  // meets leave
  }

  // Neither pages in it, nor any that somebody has taken and writes back: in this order, as leave comes under the lock.
  GPUFS_DEVICE static bool is_idle(dirty_list& list) {
    return is_empty(list) && simt::atomic_ref<std::uint32_t>(list.lock).load(std::memory_order_acquire) == 0;  // meets unlock
  }

 private:
  // A lane takes a few hundred ns for it; one that does not come has died, and its kernel with it.
  static constexpr std::uint64_t entering_ns = 60'000'000'000;
  static constexpr std::uint32_t lost = 2;  // in place of 1

  // The bits of word w for bytes [begin, end), which it has some of.
  GPUFS_DEVICE static std::uint32_t bits_of(std::uint32_t w, std::uint32_t begin, std::uint32_t end) {
    std::uint32_t bits = ~0u;
    if (w == begin / 32) bits &= ~0u << begin % 32;
    if (w == (end - 1) / 32) bits &= ~0u >> (31 - (end - 1) % 32);
    return bits;
  }
  GPUFS_DEVICE simt::atomic_ref<std::uint32_t> word(frame_index f, std::uint32_t w) const {
    const std::size_t of_frame = std::size_t{static_cast<std::uint32_t>(f)} << (frames_.page_shift() - 5);
    return simt::atomic_ref<std::uint32_t>(storage_.masks[of_frame + w]);
  }

  frames frames_;
  dirty_storage storage_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
