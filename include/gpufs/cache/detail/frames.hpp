// SPDX-License-Identifier: Apache-2.0
// Frames: pins and the state word. Knows nothing of the page table or of where bytes come from.
#pragma once
#include <cerrno>

#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::cache {
inline namespace GPUFS_MACHINE {

// The form above form_shift, and below it the cache id, of whose bits some are changed if the form is not file_form: of a number of
// frames that is a power of two, the frame of a page's own choice depends on the low bits alone.
GPUFS_HOST_DEVICE constexpr std::uint32_t id_in_form(std::uint32_t cache_id, std::uint32_t form) {
  return form << form_shift | (cache_id ^ (form * 0x9e3779b1u & max_cache_id));
}

GPUFS_HOST_DEVICE constexpr page_key make_key(std::uint32_t cache_id, std::uint64_t page_number) {
  return page_key{(std::uint64_t{cache_id} << page_number_bits) | page_number};
}

GPUFS_HOST_DEVICE constexpr std::uint64_t page_number_of(page_key key) {
  return static_cast<std::uint64_t>(key) & ((std::uint64_t{1} << page_number_bits) - 1);
}
// The cache id of a page key, together with the key's form.
GPUFS_HOST_DEVICE constexpr std::uint32_t cache_id_of(page_key key) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> page_number_bits);
}

// A frame's key as it lies in memory: the page's key mixed with the stamp of the fill, which seals it. So a reader that has loaded
// key and state apart, in any order, sees whether both belong to one fill. (A key and a state of two fills pass for one only if the
// keys of the two pages differ by exactly what the two stamps' seals differ by.) Mixing a sealed key again gives the page's key.
GPUFS_HOST_DEVICE constexpr std::uint64_t sealed(std::uint64_t key, std::uint64_t state) {
  return key ^ (state & frame_state::stamp_mask) / frame_state::one_stamp * 0x9e3779b97f4a7c15u;
}

// A mount's frames in 16 bytes, and back.
GPUFS_DEVICE packed_frames pack(const frame_storage& pages) {
  return {reinterpret_cast<std::uint64_t>(pages.data) | pages.page_shift, pages.nframes, pages.reciprocal};
}
GPUFS_DEVICE frame_storage unpack(const packed_frames& pages) {
  auto* const data = reinterpret_cast<std::byte*>(pages.data_and_shift & ~(packed_alignment - 1));
  auto* const keys = reinterpret_cast<std::uint64_t*>(data) - pages.nframes;
  const auto shift = static_cast<std::uint32_t>(pages.data_and_shift & (packed_alignment - 1));
  return {keys - pages.nframes, keys, data, pages.nframes, shift, pages.reciprocal};
}

// How a cache's words are accessed.
template <class Word>
using word_ref = simt::atomic_ref<Word, cache_layout::scope>;
using kept_ref = simt::kept_ref<cache_layout::scope>;

class frames {
 public:
  GPUFS_HOST_DEVICE explicit frames(const cache_layout& cache) : storage_(cache.frames) {}
  GPUFS_HOST_DEVICE explicit frames(const frame_storage& storage) : storage_(storage) {}

  GPUFS_DEVICE std::byte* data(frame_index f) const { return storage_.data + (static_cast<std::size_t>(f) << storage_.page_shift); }
  GPUFS_DEVICE std::uint32_t count() const { return storage_.nframes; }
  GPUFS_DEVICE std::uint32_t page_shift() const { return storage_.page_shift; }
  GPUFS_DEVICE std::uint32_t page_nbytes() const { return 1u << storage_.page_shift; }

  GPUFS_DEVICE std::uint64_t& state_word(frame_index f) const { return storage_.states[static_cast<std::uint32_t>(f)]; }
  // Whose state word that is.
  GPUFS_DEVICE frame_index frame_of(const std::uint64_t& state) const {
    return frame_index{static_cast<std::uint32_t>(&state - storage_.states)};
  }
  GPUFS_DEVICE word_ref<std::uint64_t> state(frame_index f) const { return word_ref<std::uint64_t>(state_word(f)); }

  // The word of the operation that fills the frame. An operation belongs to no group, so any lane may end it. 0: there is no
  // operation; a group fills the frame, or it is not being filled.
  GPUFS_DEVICE word_ref<std::uint64_t> operation(frame_index f) const {
    return word_ref<std::uint64_t>((storage_.states - storage_.nframes)[static_cast<std::uint32_t>(f)]);
  }

  // Which sectors of a page that is there in part are there (the lower half), and are being brought in (the upper half):
  // sectors.hpp.
  GPUFS_DEVICE word_ref<std::uint64_t> sectors_word(frame_index f) const {
    return word_ref<std::uint64_t>((storage_.states - 2 * std::uint64_t{storage_.nframes})[static_cast<std::uint32_t>(f)]);
  }

  // The frame of a page's own choice: pages side by side choose frames side by side. A look-up begins there.
  // (The product is too low by one at most.)
  GPUFS_DEVICE frame_index preferred(page_key key) const {
    const auto at = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key)) + cache_id_of(key) * 0x9e3779b1u;
    const auto quotient = static_cast<std::uint32_t>(std::uint64_t{at} * storage_.reciprocal >> 32);
    const std::uint32_t rest = at - quotient * storage_.nframes;
    return frame_index{rest < rest - storage_.nframes ? rest : rest - storage_.nframes};
  }

  // What a pin found: the state before it, and whether the caller now holds it.
  struct pin_result {
    bool held;
    std::uint64_t before;

    GPUFS_DEVICE bool filling() const { return (before & frame_state::filling) != 0; }
    // The frame has half of the pins that can be counted. A caller that wants to keep its pin gives it back, and refuses (-EMFILE).
    GPUFS_DEVICE bool crowded() const { return (before & frame_state::many_pins) != 0; }
    GPUFS_DEVICE bool partial() const { return (before & frame_state::partial) != 0; }
    GPUFS_DEVICE bool busy() const {
      return (before & (frame_state::filling | frame_state::partial | frame_state::many_pins)) != 0;
    }
  };

  // Pins the frame `npins` times if it holds `key`. The key and the state are asked for at once, and neither waits for the other:
  // the seal says whether the key is the one of the fill that the pin holds. (The stamp comes round after 2^20 fills of one frame,
  // which would have to happen between these two accesses.) The acquire meets the release in `end_fill`, so that the page's bytes
  // are seen. Ref: kept_ref where what is read streams through the second-level cache, and the pin is given back long after.
  template <class Ref = word_ref<std::uint64_t>>
  GPUFS_DEVICE pin_result pin(frame_index f, page_key key, std::uint32_t npins = 1) const {
    constexpr std::uint64_t refused = frame_state::claimed | frame_state::failed;
    const Ref word(state_word(f));
    const std::uint64_t seal = Ref(storage_.keys[static_cast<std::uint32_t>(f)]).load_relaxed();
    const std::uint64_t before = word.fetch_add(npins * frame_state::one_pin, std::memory_order_acquire);
    if ((before & refused) == 0 && seal == sealed(static_cast<std::uint64_t>(key), before)) [[likely]] {
      if ((before & frame_state::referenced) == 0) [[unlikely]] {
        note_use(f);
      }
      return {true, before};
    }
    word.fetch_add(0 - npins * frame_state::one_pin, std::memory_order_relaxed);
    return {false, 0};
  }

  // Whether the frame held `key` when its state was `state`.
  GPUFS_DEVICE bool holds(frame_index f, page_key key, std::uint64_t state) const {
    return (state & (frame_state::claimed | frame_state::failed)) == 0 &&
           key_word(f).load(std::memory_order_relaxed) == sealed(static_cast<std::uint64_t>(key), state);
  }

  // Gives back a pin. Our loads come before the writes of the group that claims the frame next (the acquire in `claim`). The holder
  // of such a pin has written no bytes of the page.
  GPUFS_DEVICE void unpin(frame_index f) const { unpin(state_word(f), 1); }
  template <class Ref = word_ref<std::uint64_t>>
  GPUFS_DEVICE static void unpin(std::uint64_t& state, std::uint32_t npins) {
    Ref(state).fetch_add_after_loads(0 - npins * frame_state::one_pin);
  }
  // The same by a group that may have written the page's bytes: the release meets `claim`.
  GPUFS_DEVICE static void unpin_after_writes(std::uint64_t& state, std::uint32_t npins) {
    word_ref<std::uint64_t>(state).fetch_sub(npins * frame_state::one_pin, std::memory_order_release);
  }
  // More pins on a frame of which the caller holds one already.
  GPUFS_DEVICE void pin_more(frame_index f, std::uint32_t npins) const { state(f).add_relaxed(npins * frame_state::one_pin); }

  // The same for a pin that the user's code claims to hold. False: the frame has no pin, or holds no page, so the page was unmapped
  // twice. If the frame has other pins, the mistake is not noticed, and one of those pins is lost.
  GPUFS_DEVICE static bool unpin_checked(std::uint64_t& state) {
    word_ref<std::uint64_t> word(state);
    constexpr std::uint64_t no_page = frame_state::claimed | frame_state::filling | frame_state::failed;
    const std::uint64_t before = word.fetch_add_after_loads(0 - frame_state::one_pin);
    if ((before & frame_state::pin_mask) != 0 && (before & no_page) == 0) [[likely]]
      return true;
    word.fetch_add(frame_state::one_pin, std::memory_order_relaxed);
    return false;
  }

  // For a reader that takes no pin: the frame's state, and whether the frame has the bytes of `key` at that moment. The reader
  // calls fence_loads, reads the bytes, calls fence_loads again, and then asks whether the page has stayed. If so, the bytes are
  // the page's. The first fence meets end_fill's release. The second meets fence_claim, after which the frame's next page is
  // written.
  struct unpinned {
    std::uint64_t state, seal;
  };
  GPUFS_DEVICE unpinned look(frame_index f) const {
    return {state(f).load(std::memory_order_relaxed), key_word(f).load(std::memory_order_relaxed)};
  }
  GPUFS_DEVICE static bool has(const unpinned& seen, page_key key) {
    constexpr std::uint64_t refused = frame_state::claimed | frame_state::failed | frame_state::filling | frame_state::partial;
    return ((seen.state & refused) | (seen.seal ^ sealed(static_cast<std::uint64_t>(key), seen.state))) == 0;
  }
  // The same of a page that is there in part.
  GPUFS_DEVICE static bool has_in_part(const unpinned& seen, page_key key) {
    constexpr std::uint64_t refused = frame_state::claimed | frame_state::failed | frame_state::filling,
                            partial = frame_state::partial;
    return (((seen.state & (refused | partial)) ^ partial) | (seen.seal ^ sealed(static_cast<std::uint64_t>(key), seen.state))) ==
           0;
  }
  GPUFS_DEVICE static bool has_stayed(const unpinned& seen, std::uint64_t state_now) {
    return ((state_now ^ seen.state) & (frame_state::stamp_mask | frame_state::claimed)) == 0;
  }
  // Whether a page that the caller has pinned is there as a whole: no fill of it is under way, or has failed.
  GPUFS_DEVICE bool is_filled(frame_index f) const {
    constexpr std::uint64_t is_none = frame_state::filling | frame_state::failed | frame_state::partial;
    return (state(f).load(std::memory_order_acquire) & is_none) == 0;  // meets end_fill's release
  }
  // Whether a page that the caller has pinned is there in part.
  GPUFS_DEVICE bool is_partial(frame_index f) const {
    return (state(f).load(std::memory_order_acquire) & frame_state::partial) != 0;  // meets sectors::end_fill's release
  }
  // Marks the frame as referenced for the clock, as a pin does.
  GPUFS_DEVICE void note_use(frame_index f) const { state(f).fetch_or(frame_state::referenced, std::memory_order_relaxed); }

  // Waits, holding a pin, until the group that fills the frame is done. Returns 0, the fill's error, or -ETIMEDOUT; or under_way if
  // an operation fills the frame, and no group. Keeps the pin.
  static constexpr int under_way = 1;
  // The error of an operation's fill that failed. A caller that has waited for it sends a request of its own.
  static constexpr int nobodys_error = -EAGAIN;
  GPUFS_DEVICE int wait_filled(frame_index f, const simt::deadline& until) const {
    simt::backoff pause;
    for (;;) {
      const std::uint64_t now = state(f).load(std::memory_order_acquire);  // meets end_fill's release
      if ((now & frame_state::filling) == 0) return -static_cast<int>((now >> frame_state::error_shift) & frame_state::error_mask);
      if (operation(f).load(std::memory_order_relaxed) != 0) return under_way;
      if (until.expired()) return -ETIMEDOUT;
      pause();
    }
  }

  // free -> claimed. True for exactly one caller, which gets the state that it was in.
  GPUFS_DEVICE bool take_free(frame_index f, std::uint64_t& before) const {
    before = state(f).fetch_and(~frame_state::free, std::memory_order_acquire);
    return (before & frame_state::free) != 0;
  }

  // claimed -> free.
  GPUFS_DEVICE void release(frame_index f) const { state(f).fetch_or(frame_state::free, std::memory_order_release); }

  // resident or failed, unpinned, seen as `seen` -> claimed. The acquire meets the last unpin's release.
  GPUFS_DEVICE bool claim(frame_index f, std::uint64_t seen) const {
    return state(f).compare_exchange(seen, (seen & frame_state::stamp_mask) | frame_state::claimed, std::memory_order_acquire);
  }

  // claimed -> filling, with one pin for the filler. Nobody may write the page's bytes before the caller has called fence_claim. A
  // lane that pins meanwhile, and finds the frame's last key, sees by the seal that it belongs to another fill.
  // `before`: a state of the frame since its last fill, whose stamp it has.
  GPUFS_DEVICE void begin_fill(frame_index f, page_key key, std::uint64_t before) const {
    // Only the frame's owner changes the stamp. The stamp must not overflow into the pins.
    const bool last = (~before & frame_state::stamp_mask) == 0;
    const std::uint64_t next_stamp = last ? 0 - frame_state::stamp_mask : frame_state::one_stamp;
    key_word(f).store(sealed(static_cast<std::uint64_t>(key), before + next_stamp), std::memory_order_relaxed);
    state(f).fetch_add(next_stamp + frame_state::one_pin + frame_state::filling - frame_state::claimed, std::memory_order_relaxed);
  }
  // Orders the claim before the bytes of the new page: a reader without a pin that sees new bytes sees the claim, too, by the fence
  // between its loads and has_stayed.
  GPUFS_DEVICE static void fence_claim() { simt::fence(std::memory_order_release, cache_layout::scope); }

  // filling -> resident, or failed when error is negative (the page table no longer names the frame then). The release
  // publishes the bytes that the whole group wrote before its sync; it meets pin's and wait_filled's acquires.
  GPUFS_DEVICE void end_fill(frame_index f, int error) const {
    if (error == 0) {
      state(f).fetch_and(~frame_state::filling, std::memory_order_release);
    } else {
      const std::uint64_t low = static_cast<std::uint64_t>(-error) & frame_state::error_mask;
      const std::uint64_t code = low != 0 ? low : EIO;  // no errno of ours, but waiters must see an error
      state(f).fetch_add((code << frame_state::error_shift) + frame_state::failed - frame_state::filling,
                         std::memory_order_release);
    }
  }
  // filling -> resident, by a caller that has called a fence, a release, after the group's sync.
  GPUFS_DEVICE void end_fill_after_fence(frame_index f) const { state(f).fetch_and(~frame_state::filling, simt::after_fence); }

  // The key of a frame that the caller owns or has pinned; by a state of it since its last fill began, or as it is.
  GPUFS_DEVICE page_key load_key(frame_index f, std::uint64_t seen) const {
    return page_key{sealed(key_word(f).load(std::memory_order_relaxed), seen)};
  }
  GPUFS_DEVICE page_key load_key(frame_index f) const { return load_key(f, state(f).load(std::memory_order_relaxed)); }

 private:
  GPUFS_DEVICE word_ref<std::uint64_t> key_word(frame_index f) const {
    return word_ref<std::uint64_t>(storage_.keys[static_cast<std::uint32_t>(f)]);
  }

  frame_storage storage_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::cache
