// SPDX-License-Identifier: Apache-2.0
// The slots of open files: what a file number stands for, which of its versions, the counts and the lists of a slot, and the free
// ones. Knows nothing of paths (path_chains.hpp), nor of how files are opened and closed (file_table.hpp, held_slots.hpp).
#pragma once
#include <type_traits>

#include "gpufs/cache/detail/dirty.hpp"
#include "gpufs/file/detail/blocks.hpp"
#include "gpufs/file/detail/late_answers.hpp"
#include "gpufs/source/detail/list.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What a call needs to know about an open file. error != 0: the file is not open.
struct file_view {
  std::int64_t nbytes;
  std::uint64_t pull_base;
  std::uint32_t cache_id;
  source_kind kind;
  std::uint32_t handle;
  std::uint32_t slot;
  std::int32_t error;
  file_slot* opened;  // the slot itself
};

// The contents of a file_entry.
struct open_entry {
  file_view view;  // without handle, pull_base and opened
  cache::packed_frames frames;
};

class file_slots {
 public:
  GPUFS_DEVICE explicit file_slots(const file_mount& mount) : mount_(mount), blocks_(mount) {}

  // What the slot behind a number says; error == -EBADF when the number is forged, the file was closed, or is open only for
  // writing.
  GPUFS_DEVICE file_view view(file_number number) const {
    const std::uint32_t index = index_of(number);
    file_view v{};
    v.slot = index;
    v.error = -EBADF;
    file_block* const block = blocks_.find(index);
    if (static_cast<std::int32_t>(number) < 0 || block == nullptr) {
      count_bad_number(&mount_);
      return v;
    }
    return view_by(number, &block->entries[0][index % block_slots]);
  }
  // The same for a caller that has the address of the entry's first copy. The number is not negative.
  GPUFS_DEVICE static file_view view_by(file_number number, const file_entry* first_copy) {
    return counted(number, first_copy, look_with_source(number, first_copy)).view;
  }
  // Where the frames are, by the first copy of an entry.
  GPUFS_DEVICE static cache::frame_storage frames_of(const file_entry* first_copy) {
    return cache::unpack(packed(simt::load_relaxed_16(&copy_of(first_copy).frames)));
  }
  GPUFS_DEVICE static cache::packed_frames packed(const simt::vec16& words) {
    return {words.word[0] | static_cast<std::uint64_t>(words.word[1]) << 32, words.word[2], words.word[3]};
  }
  // All that a hit needs of an open file, which is all but its source, by the entry's first copy. The number is not negative.
  GPUFS_DEVICE static open_entry look(file_number number, const file_entry* first_copy) {
    return counted(number, first_copy, read_entry(number, first_copy));
  }
  // The entry and the source, without a call, so that a miss keeps nothing on the stack: an error is not counted, and the size is
  // that of a version.
  GPUFS_DEVICE static open_entry look_with_source(file_number number, const file_entry* first_copy) {
    const std::uint32_t index = index_of(number);
    const simt::vec16 words = simt::load_relaxed_16(&source_of(first_copy, index));
    // The fence orders the entry's load after these words. The words change only after the entry no longer says `open`. So if it
    // says `open` now, the words belong to the open file.
    simt::fence_loads();
    open_entry got = read_entry(number, first_copy);
    got.view.pull_base = words.word[0] | static_cast<std::uint64_t>(words.word[1]) << 32;
    got.view.handle = words.word[2];
    got.view.opened = &slot_of(first_copy, index);
    return got;
  }

  // The same of a file that may be written, read or not.
  GPUFS_DEVICE file_view view_to_write(file_number number) const {
    const auto raw = static_cast<std::int32_t>(number);
    file_view v = view(may_write(number) ? file_number{raw & ~number_write_only} : number);
    if (!may_write(number)) v.error = -EBADF;
    return v;
  }
  GPUFS_DEVICE file_view view_of_any(file_number number) const { return may_write(number) ? view_to_write(number) : view(number); }
  GPUFS_HOST_DEVICE static bool may_write(file_number number) {
    const auto raw = static_cast<std::int32_t>(number);
    return raw >= 0 && (raw & number_may_write) != 0;
  }

  // The size of a file that is open for writing; a reader that sees a size sees the bytes up to it.
  GPUFS_DEVICE std::int64_t nbytes_now(std::uint32_t index) const {
    return simt::atomic_ref<std::int64_t>(slot(index).bytes.nbytes).load(std::memory_order_acquire);
  }
  GPUFS_DEVICE bool has_fixed_size(std::uint32_t index) const { return (slot(index).mode & slot_fixed_size) != 0; }
  GPUFS_DEVICE cache::dirty_list& list(std::uint32_t slot, std::uint32_t i) const { return blocks_.list(slot, i); }

  GPUFS_DEVICE static std::uint32_t index_of(file_number number) {
    return static_cast<std::uint32_t>(number) & ((1u << slot_bits) - 1);
  }

  // Whether view() would succeed; counts nothing. If false, all uses of the file before its close happened before this call: the
  // acquire meets the releases of retire, recycle and link.
  GPUFS_DEVICE bool is_open(file_number number) const {
    const auto raw = static_cast<std::int32_t>(number);
    file_slot* const slot = blocks_.find_slot(index_of(number));
    if (raw < 0 || slot == nullptr) return false;
    const std::uint32_t word = simt::atomic_ref<std::uint32_t>(slot->word).load(std::memory_order_acquire);
    return (word & 0xffffu) == open_word_of(static_cast<std::uint32_t>(raw));
  }

  // Whether the host has seen the file change since it was opened.
  GPUFS_DEVICE static bool is_stale(const file_view& opened) {
    simt::fence(std::memory_order_acquire, simt::scope::device);  // after the bytes that the caller has read
    return is_stale_after_fence(*opened.opened, opened.handle);
  }
  // The same by the handle of the open, for a caller that has called a fence, an acquire.
  GPUFS_DEVICE static bool is_stale_after_fence(file_slot& slot, std::uint32_t handle) {
    return simt::atomic_ref<std::uint32_t>(slot.stale).load(std::memory_order_relaxed) == handle;
  }

  // An open file as its source sees it; `block` is its slot's.
  GPUFS_DEVICE static source::opened_file as_opened(const file_view& opened, file_block& block) {
    const std::uint32_t i = opened.slot % block_slots;
    return {opened.nbytes, opened.pull_base, &block.windows[i], &block.slots[i].bytes, opened.handle};
  }
  GPUFS_DEVICE source::opened_file as_opened(const file_view& opened) const { return as_opened(opened, blocks_.of(opened.slot)); }

  GPUFS_DEVICE static source_kind kind_of(std::uint32_t word) { return source_kind{word >> 16}; }
  GPUFS_DEVICE file_slot& slot(std::uint32_t index) const { return blocks_.slot(index); }
  GPUFS_DEVICE call_counters& counters(std::uint32_t index) const { return blocks_.counters(index); }
  GPUFS_DEVICE hit_counters& hits(std::uint32_t index) const { return hits_of(first_hits(index)); }
  GPUFS_DEVICE hit_counters* first_hits(std::uint32_t index) const { return &block(index).hits[0][index % block_slots]; }
  // This processor's copy of the counters; `first` is the first copy.
  GPUFS_DEVICE static hit_counters& hits_of(hit_counters* first) { return first[simt::processor_id() % hit_shards * block_slots]; }

  GPUFS_DEVICE static std::uint32_t processor_shard() { return simt::processor_id() % file_shards; }
  GPUFS_DEVICE file_block& block(std::uint32_t index) const { return blocks_.of(index); }
  GPUFS_DEVICE file_entry* entry(std::uint32_t index, std::uint32_t shard) const {
    return &block(index).entries[shard][index % block_slots];
  }
  // This processor's copy of the entry; `first` is the first copy.
  GPUFS_DEVICE static const file_entry& copy_of(const file_entry* first) { return first[processor_shard() * block_slots]; }
  // The block in which the first copy of the slot's entry lies.
  GPUFS_DEVICE static file_block& block_of(const file_entry* first, std::uint32_t index) {
    const std::uint64_t before = offsetof(file_block, entries) + index % block_slots * sizeof(file_entry);
    return *reinterpret_cast<file_block*>(reinterpret_cast<std::uint64_t>(first) - before);
  }
  GPUFS_DEVICE static const file_home& home_of(const file_entry* first, std::uint32_t index) {
    return block_of(first, index).homes[simt::processor_id() % home_shards];
  }
  GPUFS_DEVICE static call_counters& counters_of(const file_entry* first, std::uint32_t index) {
    return block_of(first, index).calls[processor_shard()][index % block_slots];
  }
  GPUFS_DEVICE static const file_source& source_of(const file_entry* first, std::uint32_t index) {
    return block_of(first, index).sources[index % block_slots];
  }
  GPUFS_DEVICE static file_slot& slot_of(const file_entry* first, std::uint32_t index) {
    return block_of(first, index).slots[index % block_slots];
  }
  GPUFS_DEVICE file_source& source(std::uint32_t index) const { return block(index).sources[index % block_slots]; }
  // How the open file's readers have said that they read (advise).
  GPUFS_DEVICE static simt::atomic_ref<read_habit> habit_of(const file_mount& mount, std::uint32_t index) {
    return habit_of(file_blocks(mount).of(index), index);
  }
  GPUFS_DEVICE static simt::atomic_ref<read_habit> habit_of(file_block& block, std::uint32_t index) {
    return simt::atomic_ref<read_habit>(block.sources[index % block_slots].habit);
  }
  // Whether the slot was open at some time.
  GPUFS_DEVICE bool is_made(std::uint32_t index) const {
    file_block* const block = blocks_.find(index);
    return block != nullptr && simt::atomic_ref<std::uint32_t>(block->entries[0][index % block_slots].word).load_relaxed() != 0;
  }
  GPUFS_DEVICE static const file_mount* mount_of(const file_home& home) { return reinterpret_cast<const file_mount*>(home.mount); }

  // What follows is for those that open and close slots.
  GPUFS_DEVICE static std::uint32_t word_of(std::uint32_t generation, slot_state state) {
    return ((generation & generation_mask) << 3) | static_cast<std::uint32_t>(state);
  }
  // The lower half that a slot's word has if this number is valid and the file open. A number that may not read matches no slot.
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

  GPUFS_DEVICE int count_timeout() const {
    simt::atomic_ref<std::uint64_t>(mount_.words->io_timeouts).add_relaxed(1);
    return -ETIMEDOUT;
  }

  // The host may look at any slot at any time (host_mount::open_files), so that no field is written plainly.
  template <class T>
  GPUFS_DEVICE static void put(T& field, std::type_identity_t<T> value) {
    simt::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
  }

  GPUFS_DEVICE static slot_mode mode_of(file_slot& slot) {
    return simt::atomic_ref<slot_mode>(slot.shared_by).load(std::memory_order_relaxed);
  }
  // Whether only one reference to the slot is left, and its file is open, or was until its path got another slot.
  GPUFS_DEVICE static bool is_last_of_open(std::uint32_t refs) {
    return (refs & slot_refs) == 1 && (refs & (slot_joinable | slot_detached)) != 0;
  }

  static constexpr std::uint32_t none = ~0u;

  // A free slot, from any list, starting at `start`. Each change of a list raises its tag. So two walks that find all
  // lists empty, with equal tags, prove that all were empty at one instant: then none. (None, too, after many walks, as others wait
  // for the caller.) A caller that can have more slots made takes one walk: where others open and close all the time, slots are
  // free for moments, and would never be as many as the groups that want one.
  GPUFS_DEVICE std::uint32_t take_slot(std::uint32_t start, bool can_extend) const {
    const int most_walks = can_extend ? 1 : 64;
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
    if (word.compare_exchange(seen, word_of(generation + 1, slot_state::free), std::memory_order_acq_rel))
      blocks_.push_slots(index, index);
  }

 protected:
  const file_mount& mount_;
  const file_blocks blocks_;

 private:
  // Relaxed loads suffice: a caller that has the number got it after the opener had published the slot.
  GPUFS_DEVICE static open_entry read_entry(file_number number, const file_entry* first_copy) {
    const file_entry& entry = copy_of(first_copy);
    const auto raw = static_cast<std::uint32_t>(number);
    const simt::vec16 first = simt::load_relaxed_16(&entry), second = simt::load_relaxed_16(&entry.frames);
    open_entry got{};
    file_view& v = got.view;
    got.frames = packed(second);
    v.slot = index_of(number);
    v.kind = kind_of(first.word[0]);
    v.cache_id = first.word[1];
    v.nbytes = static_cast<std::int64_t>(first.word[2] | static_cast<std::uint64_t>(first.word[3]) << 32);
    const bool forged = (raw & number_may_write) != 0 && has_version(v.kind);
    v.error = (first.word[0] & 0xffffu) != open_word_of(raw) || forged ? -EBADF : 0;
    return got;
  }
  // The entry `got`, which was read before. Counts its error; sets the present size if the file has no version.
  GPUFS_DEVICE static open_entry counted(file_number number, const file_entry* first_copy, open_entry got) {
    file_view& v = got.view;
    if (v.error != 0) [[unlikely]] {
      simt::call_cold(&count_bad_number, mount_of(home_of(first_copy, index_of(number))));
    } else if (!has_version(v.kind)) [[unlikely]] {
      v.nbytes = simt::atomic_ref<std::int64_t>(slot_of(first_copy, v.slot).bytes.nbytes).load(std::memory_order_acquire);
    }
    return got;
  }

  // The tag in the top half shows whether the top slot has left the list and come back. An empty list's tag is added to `tags`.
  GPUFS_DEVICE std::uint32_t pop_slot(free_list& list, std::uint64_t& tags) const {
    simt::atomic_ref<std::uint64_t> top(list.top);
    std::uint64_t seen = top.load(std::memory_order_acquire);
    for (;;) {
      const auto first = static_cast<std::uint32_t>(seen);
      if (first == 0) {
        tags += seen >> 32;
        return none;
      }
      const std::uint32_t next = simt::atomic_ref<std::uint32_t>(slot(first - 1).next).load(std::memory_order_relaxed);
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
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
