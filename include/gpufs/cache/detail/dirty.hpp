// SPDX-License-Identifier: Apache-2.0
// Pages that were written: which of their bytes, and lists of them. Knows nothing of files. docs/design/writing.md has the
// protocol, and why no byte is lost.
#pragma once
#include "gpufs/cache/detail/frames.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

class dirty_pages {
 public:
  GPUFS_DEVICE explicit dirty_pages(const cache_layout& cache) : frames_(cache), storage_(cache.dirty) {}

  // Marks bytes [begin, end) of a page that the group has pinned as written. All lanes call, after the last sync of the copy. Then
  // the group syncs again, and its leader calls set_dirty.
  template <class Group>
  GPUFS_DEVICE void mark(Group group, frame_index f, std::uint32_t begin, std::uint32_t end) const {
    // Meets the acquire in take: a lane that takes a bit sees the byte.
    simt::fence(std::memory_order_release, cache_layout::scope);
    const std::uint32_t first = begin / 32, last = (end - 1) / 32;
    for (std::uint32_t w = first + group.rank(); w <= last; w += group.size()) {
      word(f, w).fetch_or(bits_of(w, begin, end), std::memory_order_relaxed);
    }
  }

  // Marks the bytes before `end` in which the page differs from its twin (memory of a page's size), and makes the twin equal to the
  // page in these bytes. Bytes from `end` on are neither marked nor copied, and must go on to differ. All lanes call, with the
  // twin's lock held; the caller goes on as after mark. True: some bytes differed.
  template <class Group>
  GPUFS_DEVICE bool mark_changes(Group group, frame_index f, std::byte* twin, std::uint32_t end) const {
    const std::byte* data = frames_.data(f);
    std::uint32_t any = 0;
    for (std::uint32_t w = group.rank(); w * 32 < end; w += group.size()) {
      const std::uint32_t bits = end - w * 32 >= 32 ? simt::take_differences(data + w * 32, twin + w * 32)
                                                    : take_differences_before(data + w * 32, twin + w * 32, end - w * 32);
      if (bits == 0) continue;
      any |= bits;
      // The fence is as in mark. It comes after the load, since stores of other groups that the load sees are marked, too.
      simt::fence(std::memory_order_release, cache_layout::scope);
      word(f, w).fetch_or(bits, std::memory_order_relaxed);
    }
    return group.any(any != 0);
  }

  // Copies the bytes of word w that `bits` names from the page to the twin: the write-back takes them from the twin. The lane that
  // has taken the bits calls, with the twin's lock held.
  GPUFS_DEVICE void keep_twin(frame_index f, std::byte* twin, std::uint32_t w, std::uint32_t bits) const {
    simt::fence(std::memory_order_acquire, cache_layout::scope);  // meets mark's release
    each_run(bits, [&](unsigned first, unsigned n) {
      simt::copy_changing(simt::this_thread(), twin + w * 32 + first, frames_.data(f) + w * 32 + first, n);
    });
  }

  // Calls run(first, n) for each run of n set bits from bit `first` on.
  template <class Run>
  GPUFS_DEVICE static void each_run(std::uint32_t bits, Run run) {
    while (bits != 0) {
      const unsigned first = simt::lowest_lane(bits);
      const std::uint32_t rest = ~(bits >> first);
      const unsigned n = rest == 0 ? 32 : simt::lowest_lane(rest);
      run(first, n);
      bits = first + n == 32 ? 0 : bits & ~0u << (first + n);
    }
  }

  // One lane calls, after mark, while the page is pinned. True: the page was clean; the caller counts it, and then calls enter.
  // False: the page is in a list by now, so a write-back of the lists that begins from now on finds it.
  GPUFS_DEVICE bool set_dirty(frame_index f) const {
    // The release meets the acquire in begin_write_back: the lane that clears `dirty` sees our bits.
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
  // Puts a page that `leave` has taken out back into the list.
  GPUFS_DEVICE void put_back(dirty_list& list, frame_index f) const {
    word_ref<std::uint32_t> head(list.head);
    word_ref<std::uint32_t> next(storage_.next[static_cast<std::uint32_t>(f)]);
    std::uint32_t seen = head.load(std::memory_order_relaxed);
    do {
      next.store(seen, std::memory_order_relaxed);
    } while (!head.compare_exchange(seen, static_cast<std::uint32_t>(f) + 1, std::memory_order_release));  // meets leave
  }

  struct left {
    frame_index frame;
    bool found;
  };
  // Takes a page out of a list. The caller holds the list's lock, so nobody else takes one. Not found: the list is empty, or
  // refuse(frame) refuses its first page. The page stays dirty, so it is not evicted.
  template <class Refuse>
  GPUFS_DEVICE left leave(dirty_list& list, Refuse refuse) const {
    word_ref<std::uint32_t> head(list.head);
    std::uint32_t seen = head.load(std::memory_order_acquire);  // meets enter: the link
    while (seen != 0 && !refuse(frame_index{seen - 1})) {
      const std::uint32_t rest = word_ref<std::uint32_t>(storage_.next[seen - 1]).load(std::memory_order_relaxed);
      // The release meets is_empty's acquire: a lane that sees that the page is gone sees that the list is locked.
      if (head.compare_exchange(seen, rest, std::memory_order_acq_rel)) return {frame_index{seen - 1}, true};
    }
    return {frame_index{}, false};
  }

  // Called before the page's mask is taken. Pins the page, which `leave` gave, and clears `dirty`, so that a later write puts the
  // page into a list again.
  GPUFS_DEVICE void begin_write_back(frame_index f) const {
    auto state = frames_.state(f);
    const simt::deadline until(entering_ns);
    simt::backoff pause;
    // Waits for a lane that is at the end of enter.
    while ((state.load(std::memory_order_acquire) & frame_state::listed) == 0 && !until.expired()) pause();
    state.fetch_add(frame_state::one_pin, std::memory_order_relaxed);
    // Meets set_dirty's release.
    state.fetch_and(~(frame_state::dirty | frame_state::listed), std::memory_order_acq_rel);
  }

  // Which bytes of a page are to be written.
  struct extent {
    std::uint32_t begin, nbytes;  // from the first to the last
    std::uint32_t nset;           // how many of these are to be written
    GPUFS_DEVICE bool masked() const { return nset != nbytes; }
  };
  // What the mask of a page says after begin_write_back; nbytes 0: nothing. All lanes call.
  template <class Group>
  GPUFS_DEVICE extent look(Group group, frame_index f) const {
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
    if (count == 0) return {0, 0, 0};
    first = group.reduce_min(first);
    last = group.reduce_max(last);
    return {first, last - first + 1, count};
  }
  // Clears the mask's bits in an extent, and no others. Bits that were set after our look stay: their writers call set_dirty after
  // we cleared `dirty`. All lanes call; one calls each(w, bits) for word w. When take returns, every lane may read the bytes.
  template <class Group, class Each>
  GPUFS_DEVICE void take(Group group, frame_index f, const extent& part, Each each) const {
    if (part.nbytes == 0) return;
    const std::uint32_t end = part.begin + part.nbytes;
    for (std::uint32_t w = part.begin / 32 + group.rank(); w <= (end - 1) / 32; w += group.size()) {
      const std::uint32_t bits = bits_of(w, part.begin, end);
      each(w, word(f, w).fetch_and(~bits, std::memory_order_relaxed) & bits);
    }
    simt::fence(std::memory_order_acq_rel, cache_layout::scope);  // meets mark's release
    group.sync();
  }

  // Forgets that bytes from `begin` on were written. All lanes call.
  template <class Group>
  GPUFS_DEVICE void unmark(Group group, frame_index f, std::uint32_t begin) const {
    const std::uint32_t nbytes = frames_.page_nbytes();
    for (std::uint32_t w = begin / 32 + group.rank(); w < nbytes / 32; w += group.size()) {
      word(f, w).fetch_and(~bits_of(w, begin, nbytes), std::memory_order_relaxed);
    }
  }

  // The state of a frame's twin. One lane locks and unlocks it: the acquire meets unlock_twin's release. The holder waits for
  // nobody but a lane inside `enter`. False when the lock did not come in time.
  GPUFS_DEVICE twin_state& twin(frame_index f) const { return storage_.twins[static_cast<std::uint32_t>(f)]; }
  GPUFS_DEVICE static bool lock_twin(twin_state& state, const simt::deadline& until) {
    simt::backoff pause;
    while (word_ref<std::uint32_t>(state.lock).exchange(1, std::memory_order_acquire) != 0) {
      if (until.expired()) return false;
      pause();
    }
    return true;
  }
  GPUFS_DEVICE static void unlock_twin(twin_state& state) {
    word_ref<std::uint32_t>(state.lock).store(0, std::memory_order_release);
  }
  // Whether somebody has the page mapped; stays true while the caller is among them.
  GPUFS_DEVICE static bool is_mapped(twin_state& state) {
    return word_ref<std::uint32_t>(state.count).load(std::memory_order_relaxed) != 0;
  }

  // One lane calls. The acquire meets unlock's release; the holder waits for the host only. A list that is lost is not free.
  GPUFS_DEVICE static bool try_lock(dirty_list& list) {
    std::uint32_t unlocked = 0;
    return word_ref<std::uint32_t>(list.lock).compare_exchange(unlocked, held, std::memory_order_acquire);
  }
  GPUFS_DEVICE static bool lock(dirty_list& list, const simt::deadline& until) {
    simt::backoff pause;
    while (!try_lock(list)) {
      if (is_lost(list) || until.expired()) return false;
      pause();
    }
    return true;
  }
  // The lock's holder calls it when the host has not answered for one of the list's pages, before others can see the late answer.
  GPUFS_DEVICE static void begin_late(dirty_list& list) {
    word_ref<std::uint32_t>(list.lock).fetch_add(late, std::memory_order_relaxed);
  }
  // Any lane calls it when the late answer has come. The release meets try_lock's acquire: the host writes no older bytes any more.
  GPUFS_DEVICE static void end_late(dirty_list& list) {
    word_ref<std::uint32_t>(list.lock).fetch_sub(late, std::memory_order_release);
  }
  GPUFS_DEVICE static bool is_lost(dirty_list& list) {
    return word_ref<std::uint32_t>(list.lock).load(std::memory_order_relaxed) >= late;
  }
  GPUFS_DEVICE static void unlock(dirty_list& list) {
    word_ref<std::uint32_t>(list.lock).fetch_and(~held, std::memory_order_release);
  }
  GPUFS_DEVICE static bool is_locked(dirty_list& list) {
    return word_ref<std::uint32_t>(list.lock).load(std::memory_order_relaxed) != 0;
  }
  GPUFS_DEVICE static bool is_empty(dirty_list& list) {
    return word_ref<std::uint32_t>(list.head).load(std::memory_order_acquire) == 0;  // meets leave
  }

  // Whether the list is empty and nobody writes back a page of it. Looks at the head first, since leave is called under the lock.
  GPUFS_DEVICE static bool is_idle(dirty_list& list) {
    return is_empty(list) && word_ref<std::uint32_t>(list.lock).load(std::memory_order_acquire) == 0;  // meets unlock
  }
  // Whether the list is empty, unlocked and not late. The caller's own acquire meets all lanes that listed pages or had the lock.
  GPUFS_DEVICE static bool is_unused(dirty_list& list) {
    const std::uint32_t head = word_ref<std::uint32_t>(list.head).load(std::memory_order_relaxed);
    return (head | word_ref<std::uint32_t>(list.lock).load(std::memory_order_relaxed)) == 0;
  }

 private:
  // A lane takes a few hundred ns to enter a page. A lane that takes this long has died, and its kernel with it.
  static constexpr std::uint64_t entering_ns = 60'000'000'000;
  static constexpr std::uint32_t held = 1, late = 2;

  // As simt::take_differences, of the first nbytes only.
  GPUFS_DEVICE static std::uint32_t take_differences_before(const std::byte* changing, std::byte* twin, std::uint32_t nbytes) {
    std::byte now[32];
    simt::copy_changing(simt::this_thread(), now, changing, nbytes);
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < nbytes; ++i) {
      if (now[i] == twin[i]) continue;
      bits |= 1u << i;
      twin[i] = now[i];
    }
    return bits;
  }

  // The bits of word w that stand for bytes of [begin, end). There is at least one.
  GPUFS_DEVICE static std::uint32_t bits_of(std::uint32_t w, std::uint32_t begin, std::uint32_t end) {
    std::uint32_t bits = ~0u;
    if (w == begin / 32) bits &= ~0u << begin % 32;
    if (w == (end - 1) / 32) bits &= ~0u >> (31 - (end - 1) % 32);
    return bits;
  }
  GPUFS_DEVICE word_ref<std::uint32_t> word(frame_index f, std::uint32_t w) const {
    const std::size_t of_frame = std::size_t{static_cast<std::uint32_t>(f)} << (frames_.page_shift() - 5);
    return word_ref<std::uint32_t>(storage_.masks[of_frame + w]);
  }

  frames frames_;
  dirty_storage storage_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
