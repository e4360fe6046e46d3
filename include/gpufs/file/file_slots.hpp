// SPDX-License-Identifier: Apache-2.0
// The slots of open files: what a file number stands for, which of its versions, the counts and the lists of a slot, and the free
// ones. Knows nothing of paths (path_chains.hpp), nor of how files are opened and closed (file_table.hpp).
#pragma once
#include <type_traits>

#include "gpufs/cache/dirty.hpp"
#include "gpufs/file/late_answers.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What a call needs to know of an open file; error != 0: it is not open.
struct file_view {
  std::int64_t nbytes;
  std::uint64_t pull_base;
  std::uint32_t cache_id;
  service::source_kind kind;
  std::uint32_t handle;
  std::uint32_t slot;
  std::int32_t error;
};

class file_slots {
 public:
  GPUFS_DEVICE explicit file_slots(const file_mount& mount) : mount_(mount) {}

  // What the slot behind a number says; error == -EBADF when the number is forged, the file was closed, or is open only for
  // writing.
  GPUFS_DEVICE file_view view(file_number number) const {
    const std::uint32_t index = index_of(number);
    if (static_cast<std::int32_t>(number) >= 0 && index < mount_.files.nslots) [[likely]]
      return view_of(&mount_, line_of(line(index)), number);
    file_view v{};
    v.slot = index;
    v.error = -EBADF;
    simt::call_cold(&count_bad_number, &mount_);
    return v;
  }
  // The same by the slot's line, this processor's copy; the number is not negative.
  GPUFS_DEVICE static file_view view_of(const file_mount* mount, const file_line& line, file_number number) {
    const auto raw = static_cast<std::uint32_t>(number);
    file_view v{};
    v.slot = index_of(number);
    v.error = -EBADF;
    // Relaxed loads suffice: whoever has the number got it after the opener had published the slot.
    const simt::vec16 low = simt::load_relaxed_16(&line);
    const simt::vec16 high = simt::load_relaxed_16(&line.file_nbytes);
    v.kind = kind_of(low.word[0]);
    const bool forged = (raw & number_may_write) != 0 && v.kind < service::source_kind::live;
    if ((low.word[0] & 0xffffu) != open_word_of(raw) || forged) [[unlikely]] {
      simt::call_cold(&count_bad_number, mount);
      return v;
    }
    v.cache_id = low.word[1];
    v.handle = low.word[2];
    v.nbytes = static_cast<std::int64_t>(high.word[0] | static_cast<std::uint64_t>(high.word[1]) << 32);
    if (v.kind >= service::source_kind::live) [[unlikely]]
      v.nbytes = simt::atomic_ref<std::int64_t>(line.slot->file_nbytes).load(std::memory_order_acquire);  // as nbytes_now
    v.pull_base = high.word[2] | static_cast<std::uint64_t>(high.word[3]) << 32;
    v.error = 0;
    return v;
  }

  // The same of a file that may be written, read or not.
  GPUFS_DEVICE file_view view_to_write(file_number number) const {
    const auto raw = static_cast<std::int32_t>(number);
    file_view v = view(may_write(number) ? file_number{raw & ~number_write_only} : number);
    if (!may_write(number)) v.error = -EBADF;
    return v;
  }
  GPUFS_DEVICE file_view view_of_any(file_number number) const { return may_write(number) ? view_to_write(number) : view(number); }
  GPUFS_DEVICE static bool may_write(file_number number) {
    const auto raw = static_cast<std::int32_t>(number);
    return raw >= 0 && (raw & number_may_write) != 0;
  }

  // The size of a file that is open for writing; whoever sees a size sees the bytes up to it.
  GPUFS_DEVICE std::int64_t nbytes_now(std::uint32_t index) const {
    return simt::atomic_ref<std::int64_t>(mount_.files.slots[index].file_nbytes).load(std::memory_order_acquire);
  }
  GPUFS_DEVICE cache::dirty_list& list(std::uint32_t slot, std::uint32_t i) const {
    return mount_.files.dirty_lists[slot * lists_per_slot + i];
  }

  GPUFS_DEVICE static std::uint32_t index_of(file_number number) {
    return static_cast<std::uint32_t>(number) & ((1u << slot_bits) - 1);
  }

  // The same as view().error == 0, and counts nothing. Where it is not: all uses that came before its close happened before (the
  // acquire meets the releases of retire, recycle and link).
  GPUFS_DEVICE bool is_open(file_number number) const {
    const auto raw = static_cast<std::uint32_t>(number);
    const std::uint32_t index = index_of(number);
    if (static_cast<std::int32_t>(raw) < 0 || index >= mount_.files.nslots) return false;
    const std::uint32_t word = simt::atomic_ref<std::uint32_t>(mount_.files.slots[index].word).load(std::memory_order_acquire);
    return (word & 0xffffu) == open_word_of(raw);
  }

  // Whether the host has seen the file change since it was opened.
  GPUFS_DEVICE bool is_stale(const file_view& opened) const {
    simt::fence(std::memory_order_acquire, simt::scope::device);  // after the bytes that the caller has read
    return simt::atomic_ref<std::uint32_t>(mount_.files.slots[opened.slot].stale).load(std::memory_order_relaxed) == opened.handle;
  }

  // Of a file of kind windows: whether the page at this offset may be pulled.
  GPUFS_DEVICE bool is_registered(const file_view& opened, std::uint64_t offset) const {
    file_windows& all = mount_.files.windows[opened.slot];
    simt::atomic_ref<std::uint64_t> base(all.pull_base);
    // The host writes these one after another, each of which ends before the next begins; we read them the other way round, and so
    // what is between is of the mapping that both reads of pull_base name.
    if (base.load(std::memory_order_acquire) != opened.pull_base) return false;
    const std::uint64_t registered = simt::atomic_ref<std::uint64_t>(all.registered).load(std::memory_order_acquire);
    const std::uint32_t shift = simt::atomic_ref<std::uint32_t>(all.shift).load(std::memory_order_acquire);
    return base.load(std::memory_order_relaxed) == opened.pull_base && (registered >> (offset >> shift) & 1) != 0;
  }

  GPUFS_DEVICE static service::source_kind kind_of(std::uint32_t word) { return service::source_kind{word >> 16}; }
  GPUFS_DEVICE file_slot& slot(std::uint32_t index) const { return mount_.files.slots[index]; }
  // Of a slot's copies, this processor's. At most 2^20 slots, so the product fits.
  GPUFS_DEVICE call_counters& counters(std::uint32_t index) const {
    return mount_.files.counters[simt::processor_id() % file_shards * mount_.files.nslots + index];
  }
  GPUFS_DEVICE hit_counters& hits(std::uint32_t index) const { return hits_of(mount_.files.hits + hits_at(index)); }
  GPUFS_DEVICE static hit_counters& hits_of(hit_counters* first) { return first[simt::processor_id() % hit_shards * hits_a_line]; }
  GPUFS_DEVICE static const file_line& line_of(const file_line* first) { return first[simt::processor_id() % file_shards]; }
  // The first of a slot's lines.
  GPUFS_DEVICE file_line* line(std::uint32_t index) const { return mount_.files.lines + std::size_t{index} * file_shards; }

  // Whether the slot was open at some time, so that its lines tell of the mount.
  GPUFS_DEVICE bool is_made(std::uint32_t index) const {
    // The last of them, as the first open makes them in order.
    return index < mount_.files.nslots &&
           simt::atomic_ref<std::uint32_t>(line(index)[file_shards - 1].made).load(std::memory_order_acquire) != 0;
  }

  // What follows is for those that open and close slots.
  GPUFS_DEVICE static std::uint32_t word_of(std::uint32_t generation, slot_state state) {
    return ((generation & generation_mask) << 3) | static_cast<std::uint32_t>(state);
  }
  // What a number's slot has in its word's lower half. A number that may not read is no slot's.
  GPUFS_DEVICE static std::uint32_t open_word_of(std::uint32_t raw) {
    return ((raw >> slot_bits) & (2 * generation_mask + 1)) << 3 | static_cast<std::uint32_t>(slot_state::open);
  }
  GPUFS_DEVICE static std::uint32_t generation_of(std::uint32_t word) { return (word >> 3) & generation_mask; }
  GPUFS_DEVICE static slot_state state_of(std::uint32_t word) { return slot_state{word & 7u}; }
  GPUFS_DEVICE static std::int32_t number_of(std::uint32_t index, std::uint32_t word) {
    return static_cast<std::int32_t>((generation_of(word) << slot_bits) | index);
  }
  GPUFS_DEVICE_COLD static void count_bad_number(const file_mount* mount) {
    if (mount != nullptr) simt::atomic_ref<std::uint64_t>(mount->words->bad_numbers).add_relaxed(1);
  }

  // The host may look at any slot at any time (host_mount::open_files), so that no field is written plainly.
  template <class T>
  GPUFS_DEVICE static void put(T& field, std::type_identity_t<T> value) {
    simt::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
  }

  GPUFS_DEVICE static slot_mode mode_of(file_slot& slot) {
    return simt::atomic_ref<slot_mode>(slot.shared_by).load(std::memory_order_relaxed);
  }
  // Whether who holds the slot is the last who does, and its file is open, or was until its path got another slot.
  GPUFS_DEVICE static bool is_last_of_open(std::uint32_t refs) {
    return (refs & slot_refs) == 1 && (refs & (slot_live | slot_detached)) != 0;
  }

  static constexpr std::uint32_t none = ~0u;

  // A free slot, from any list, starting at `start`. None when there was a moment at which all were empty: a tag grows with each
  // change, so two walks that found nothing and the same tags had one in between. (Or after many walks, as others wait for us.)
  GPUFS_DEVICE std::uint32_t take_slot(std::uint32_t start) const {
    constexpr int most_walks = 64;
    std::uint64_t last_tags = 0;
    for (int walk = 0; walk < most_walks; ++walk) {
      std::uint64_t tags = 0;
      for (std::uint32_t i = 0; i < free_lists; ++i) {
        const std::uint32_t index = pop_slot(mount_.files.free_slots[(start + i) % free_lists], tags);
        if (index != none) return index;
      }
      if (walk > 0 && tags == last_tags) return none;
      last_tags = tags;
    }
    return none;
  }

  // dead -> free, once; a new generation makes old numbers invalid. `generation` is the one that the caller held.
  GPUFS_DEVICE void recycle(file_slot& slot, std::uint32_t index, std::uint32_t generation) const {
    simt::atomic_ref<std::uint32_t> word(slot.word);
    std::uint32_t seen = word_of(generation, slot_state::dead);
    if (word.compare_exchange(seen, word_of(generation + 1, slot_state::free), std::memory_order_acq_rel)) push_slot(index);
  }

  // Whether pages are listed or a list is lost, as a close has told that could not bring all to the host. One lane's loads, all
  // under way together; drop's acquire, or close_if_last's, comes before them.
  GPUFS_DEVICE bool has_left_pages(std::uint32_t index) const {
    bool unused = true;
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) unused &= cache::dirty_pages::is_unused(list(index, i));
    return !unused;
  }

  GPUFS_DEVICE bool has_lost_list(std::uint32_t index) const {
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      if (cache::dirty_pages::is_lost(list(index, i))) return true;
    }
    return false;
  }

  // What close could not even send to the host, as it has told: else it would go to the next file that uses the slot.
  GPUFS_DEVICE void forget_unwritten(std::uint32_t index) const {
    const cache::dirty_pages pages(mount_.cache);
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      const auto next = [&] { return pages.leave(list(index, i), [](cache::frame_index) { return false; }); };
      for (auto left = next(); left.found; left = next()) {
        pages.begin_write_back(left.frame);
        pages.unmark(simt::this_thread(), left.frame, 0);
        cache::frames(mount_.cache).unpin(left.frame);
        simt::atomic_ref<std::uint64_t>(mount_.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
        simt::atomic_ref<std::uint64_t>(mount_.words->write_errors).add_relaxed(1);
      }
    }
  }

 protected:
  const file_mount& mount_;

 private:
  // The tag in the top half tells a top that came back from one that never left. That of an empty list is added to `tags`.
  GPUFS_DEVICE std::uint32_t pop_slot(free_list& list, std::uint64_t& tags) const {
    simt::atomic_ref<std::uint64_t> top(list.top);
    std::uint64_t seen = top.load(std::memory_order_acquire);
    for (;;) {
      const auto first = static_cast<std::uint32_t>(seen);
      if (first == 0) {
        tags += seen >> 32;
        return none;
      }
      const std::uint32_t next =
          simt::atomic_ref<std::uint32_t>(mount_.files.slots[first - 1].next).load(std::memory_order_relaxed);
      const std::uint64_t wanted = (((seen >> 32) + 1) << 32) | next;
      if (top.compare_exchange(seen, wanted, std::memory_order_acq_rel)) {
        simt::atomic_ref<std::uint64_t> used(mount_.words->slots_used);
        std::uint64_t now = used.load(std::memory_order_relaxed);
        while (now < first && !used.compare_exchange(now, first, std::memory_order_relaxed)) {
        }
        return first - 1;
      }
    }
  }

  GPUFS_DEVICE void push_slot(std::uint32_t index) const {
    simt::atomic_ref<std::uint64_t> top(mount_.files.free_slots[index % free_lists].top);
    std::uint64_t seen = top.load(std::memory_order_relaxed);
    for (;;) {
      simt::atomic_ref<std::uint32_t>(mount_.files.slots[index].next)
          .store(static_cast<std::uint32_t>(seen), std::memory_order_relaxed);
      const std::uint64_t wanted = (((seen >> 32) + 1) << 32) | (index + 1);
      if (top.compare_exchange(seen, wanted, std::memory_order_acq_rel)) return;
    }
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
