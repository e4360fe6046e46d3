// SPDX-License-Identifier: Apache-2.0
// A mount's file table and request rings in memory, as the host lays them out and the device uses them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/simt/config.hpp"
#include "gpufs/source/detail/layout.hpp"
#include "gpufs/transport/detail/layout.hpp"

namespace gpufs {

// An open file's number: slot (20 bits), generation (9 bits), and what the open may do: not read, write (a bit each). So a closed
// or forged number is told from an open one, until its slot has been used 512 times more. Negative values are errnos.
enum class file_number : std::int32_t {};

inline constexpr unsigned slot_bits = 20;
inline constexpr std::uint32_t generation_mask = (1u << 9) - 1;
inline constexpr std::int32_t number_write_only = 1 << 29, number_may_write = 1 << 30;

// `file_slot::word`: source kind << 16 | generation << 3 | state. The bit above the generation is 0: with a number that may not
// read, it is not equal. The topmost one says that the slot left its path's chain before it was open (file_table::was_removing).
enum class slot_state : std::uint32_t { free = 0, opening = 1, open = 2, dead = 3 };
inline constexpr std::uint32_t slot_apart = 1u << 31;

// `file_slot::refs`: bit 31 (the slot is "joinable") while further opens of its path may join the slot; bit 30 (it is "detached")
// once they may not, although it is open, because its path was opened for writing, removed or renamed; below, how many opens hold
// it. A count of 0 with one of these bits is for moments only: the lane that made it closes the file, unless an open joins. A
// program that closes more often than it has opened may make the count negative for moments (bit 29).
inline constexpr std::uint32_t slot_joinable = 1u << 31, slot_detached = 1u << 30, slot_refs_below_0 = 1u << 29;
inline constexpr std::uint32_t slot_refs = slot_detached - 1;

// Which opens share a slot.
enum class slot_mode : std::uint32_t {
  read = 0,        // only reading, with the same flags
  write = 1,       // reading and writing
  write_once = 2,  // O_GWRONCE: pages are not read in
};

// `file_slot::twinned`: whether pages of the file may be mapped for writing. twins_soon: they soon may be; a write-back that begins
// from now on keeps the page's twin. twins_kept: all write-backs that do not keep the twin have ended.
inline constexpr std::uint32_t twins_soon = 1, twins_kept = 2;

// In `file_slot::mode`, above st_mode: the file keeps its size.
inline constexpr std::uint32_t slot_fixed_size = 1u << 31;

struct alignas(128) file_slot {
  // Set by the opener before `word` says open; then constant until the slot is dead, but for `stale`, and for `bytes` where the
  // slot is for writing.
  std::uint32_t word;
  std::uint32_t stale;  // written by the host: equals `handle` once the file has changed underneath
  std::uint32_t cache_id;
  std::uint32_t handle;
  file_bytes bytes;
  std::uint32_t refs;
  std::uint32_t next;  // path chain or free list: slot + 1, 0 ends it
  std::int32_t error;  // why opening failed
  std::uint32_t mode;  // st_mode, perhaps with slot_fixed_size
  std::uint64_t hash[2];
  std::uint64_t inode;
  std::uint64_t mtime_ns;
  slot_mode shared_by;            // with `flags`, `hash`: which opens may join
  std::uint32_t flags;            // of the first open
  std::int32_t write_error;       // the first error of a write-back that no call has returned yet
  std::uint32_t twinned;          // of a slot for writing: bits of twins_*
  std::uint64_t in_place_nbytes;  // the end of what kernels wrote to the host's mapping so far; sync and close tell the host
  std::uint32_t unsynced;         // not 0: kernels wrote there since the last sync without an error began
};
static_assert(sizeof(file_slot) == 128 && offsetof(file_slot, word) == 0 && offsetof(file_slot, stale) == 4);
static_assert(offsetof(file_slot, cache_id) == 8 && offsetof(file_slot, handle) == 12 && offsetof(file_slot, bytes) == 16);
static_assert(offsetof(file_slot, refs) == 48 && offsetof(file_slot, next) == 52 && offsetof(file_slot, error) == 56);
static_assert(offsetof(file_slot, mode) == 60 && offsetof(file_slot, hash) == 64 && offsetof(file_slot, inode) == 80);
static_assert(offsetof(file_slot, mtime_ns) == 88 && offsetof(file_slot, shared_by) == 96 && offsetof(file_slot, flags) == 100);
static_assert(offsetof(file_slot, write_error) == 104 && offsetof(file_slot, twinned) == 108);
static_assert(offsetof(file_slot, in_place_nbytes) == 112 && offsetof(file_slot, unsynced) == 120);

struct file_mount;

// What a hit reads of an open file: 32 bytes, two loads, and nothing else of the mount. In file_shards copies, since one line of
// the second-level cache serves less than two thousand million loads a second, and all groups that use one file read this. Written
// by the slot's opener, and by the caller that retires it.
struct alignas(32) file_entry {
  std::uint32_t word;  // the slot's, once it is open or dead
  std::uint32_t cache_id;
  std::int64_t file_nbytes;
  cache::packed_frames frames;  // the mount's
};
static_assert(sizeof(file_entry) == 32 && offsetof(file_entry, word) == 0 && offsetof(file_entry, cache_id) == 4);
static_assert(offsetof(file_entry, file_nbytes) == 8 && offsetof(file_entry, frames) == 16);
inline constexpr std::uint32_t file_shards = 8;

// The part of what a miss needs that belongs to the mount. The entry's address leads to it directly, so a miss need not follow a
// chain of addresses. It is the same in each block, in home_shards copies. A miss loads a dozen words of it, which lie in one line.
struct alignas(128) file_home {
  cache::cache_layout cache;
  std::uint64_t mount;    // the address of the file_mount
  std::uint64_t fill_ns;  // how long to wait for another group's fill, and for a frame
  std::uint64_t frame_ns;
};
static_assert(sizeof(file_home) == 128 && offsetof(file_home, cache) == 0 && offsetof(file_home, mount) == 104);
static_assert(offsetof(file_home, fill_ns) == 112 && offsetof(file_home, frame_ns) == 120);
inline constexpr std::uint32_t home_shards = 32;
// How a file's readers read.
enum class read_habit : std::uint32_t {
  unknown,  // it is learnt from their pages (cache/detail/page_uses.hpp)
  whole,    // most of each page
  on,       // from page to page
  once,     // each byte once
  apart,    // here and there, a little of a page
};
// The part of what a miss needs that belongs to the open file; one for each slot.
struct alignas(32) file_source {
  std::uint64_t pull_base;
  std::uint32_t handle;
  std::uint32_t removals;  // mount_words::removals_ended before the host was asked to open the file
  read_habit habit;        // what its readers have said (advise)
};
static_assert(sizeof(file_source) == 32 && offsetof(file_source, pull_base) == 0 && offsetof(file_source, handle) == 8);
static_assert(offsetof(file_source, removals) == 12 && offsetof(file_source, habit) == 16);

// What is counted per file; a mount's counts are the sums. Never reset while the mount lives: a slot that is reused goes on
// counting. What hits raise is in hit_shards copies, of which those of one slot lie in lines of their own (file_block): processors
// that add to one line of the second-level cache hold each other up, and all that goes through it. With 8 lines, measured, copies
// through pointers take an eighth longer.
struct alignas(16) hit_counters {
  std::uint64_t hits;        // pages found in the cache
  std::uint64_t bytes_read;  // bytes given to callers of pread
};
static_assert(sizeof(hit_counters) == 16 && offsetof(hit_counters, hits) == 0 && offsetof(hit_counters, bytes_read) == 8);
inline constexpr std::uint32_t hit_shards = 32;
// The others, in file_shards copies.
struct call_counters {
  std::uint64_t faults;         // pages, or sectors of a page at once, filled by us
  std::uint64_t waits;          // pages that were on their way: another group filled them, or had asked for them
  std::uint64_t errors;         // calls that returned a negative errno, and pages that pointers could neither get nor read
  std::uint64_t bytes_filled;   // pages filled, in bytes: whole pages, also at the end of a file, or the sectors that came
  std::uint64_t opens;          // opens that got a slot: also those that cost no host call, and those that then failed
  std::uint64_t bytes_written;  // bytes taken from callers of pwrite and append
};
static_assert(sizeof(call_counters) == 48 && offsetof(call_counters, faults) == 0 && offsetof(call_counters, waits) == 8);
static_assert(offsetof(call_counters, errors) == 16 && offsetof(call_counters, bytes_filled) == 24);
static_assert(offsetof(call_counters, opens) == 32 && offsetof(call_counters, bytes_written) == 40);

// A slot's pages that are to be written back lie in so many lists, by their place in the file. So nobody starts to write a page
// back while an older write-back of it is under way; and neighbours go to the host together, which joins them into one call. As
// many warps as there are lists write back at once.
inline constexpr std::uint32_t lists_per_slot = 64;
inline constexpr std::uint32_t neighbours_shift = 17;  // 128 KiB of a file lie in one list
GPUFS_HOST_DEVICE constexpr std::uint32_t list_of_page(std::uint64_t page_number, std::uint32_t page_shift) {
  const std::uint64_t stretch = page_shift < neighbours_shift ? page_number >> (neighbours_shift - page_shift) : page_number;
  // Scattered (Fibonacci hashing), so that the pages of a column of a large table do not all meet in one list.
  return static_cast<std::uint32_t>(stretch * 0x9e3779b97f4a7c15 >> 58);
}
static_assert(lists_per_slot == 1 << (64 - 58));

// A block holds all words of so many slots, so that an entry's address leads to all of them; the copies of a slot's words are as
// many elements apart. A mount begins with one block, and gets others as its files become more (file_table::extend).
inline constexpr std::uint32_t block_slots = 1024;
struct alignas(128) file_block {
  file_home homes[home_shards];  // written by the host before kernels know of the block
  file_source sources[block_slots];
  file_entry entries[file_shards][block_slots];
  hit_counters hits[hit_shards][block_slots];
  file_slot slots[block_slots];
  call_counters calls[file_shards][block_slots];
  file_windows windows[block_slots];
};
static_assert(sizeof(file_block) == 1380352 && offsetof(file_block, homes) == 0 && offsetof(file_block, sources) == 4096);
static_assert(offsetof(file_block, entries) == 36864 && offsetof(file_block, hits) == 299008);
static_assert(offsetof(file_block, slots) == 823296 && offsetof(file_block, calls) == 954368);
static_assert(offsetof(file_block, windows) == 1347584);
// The gate that calls pass which write a file (write_gate.hpp) is in so many copies, each in a line of its own: where all warps of
// a device passed one word, adds through pointers came to half of what they come to without a gate (measured).
inline constexpr std::uint32_t gate_shards = 16;
// Where the mount may write.
struct alignas(128) writable_block : file_block {
  cache::dirty_list lists[block_slots][lists_per_slot];
  std::uint32_t gates[gate_shards][block_slots];  // calls that write the slot's file now; above them, the bits of write_gate.hpp
};
// Without a gap, so that the lists begin where the file_block ends and the gates where the lists do: what is derived has no
// offsetof.
static_assert(sizeof(writable_block) == 1970176 &&
              sizeof(writable_block) - sizeof(file_block) == sizeof(writable_block::lists) + sizeof(writable_block::gates));
static_assert(sizeof(writable_block::lists) == 524288 && sizeof(writable_block::gates) == 65536);

struct file_counters : hit_counters, call_counters {
  file_counters& operator+=(const hit_counters& other) {
    hits += other.hits;
    bytes_read += other.bytes_read;
    return *this;
  }
  file_counters& operator+=(const call_counters& other) {
    faults += other.faults;
    waits += other.waits;
    errors += other.errors;
    bytes_filled += other.bytes_filled;
    opens += other.opens;
    bytes_written += other.bytes_written;
    return *this;
  }
  file_counters& operator+=(const file_counters& other) {
    *this += static_cast<const hit_counters&>(other);
    return *this += static_cast<const call_counters&>(other);
  }
};

struct alignas(8) path_bucket {
  std::uint32_t lock;
  std::uint32_t head;  // slot + 1
};
static_assert(sizeof(path_bucket) == 8 && offsetof(path_bucket, lock) == 0 && offsetof(path_bucket, head) == 4);

// Free slots lie in many lists, slot i in list i % free_lists: one word serves a few hundred thousand opens and closes a second,
// when thousands of warps compare and exchange it.
struct alignas(64) free_list {
  std::uint64_t top;  // tag << 32 | slot + 1
};
static_assert(sizeof(free_list) == 64 && offsetof(free_list, top) == 0);
inline constexpr std::uint32_t free_lists = 64;

// Words the device shares with itself only.
struct alignas(64) mount_words {
  std::uint64_t open_errors;         // opens that failed
  std::uint64_t bad_numbers;         // calls with a closed or forged file number
  std::uint64_t io_timeouts;         // requests that found no slot, or no answer of the host, in time
  std::uint64_t unpin_errors;        // pages unmapped twice
  std::uint64_t slots_used;          // slots below this were open at some time: the host need not look at others
  std::uint64_t dirty_pages;         // now: written, and not yet back in their files
  std::uint64_t write_backs;         // pages written back, and rows that went past the cache
  std::uint64_t bytes_written_back;  // bytes of them that had been written
  std::uint64_t write_errors;        // pages whose write-back failed
  // Calls that take names away (unlink, rename, rmdir): how many have begun, and how many have ended. See removed_names::removing.
  std::uint32_t removals_begun, removals_ended;
  std::uint64_t under_way;        // now: operations (file/detail/operation.hpp)
  std::uint32_t more_blocks;      // how many blocks file_layout::blocks has beyond the first
  std::uint32_t extend_lock;      // held by the open that asks the host for one more block
  std::uint32_t extend_failures;  // under that lock: how often there was no memory
  std::uint32_t held_copies;      // now: copies to frames that callers have given up waiting for, and that have not ended
  std::uint64_t copy_moved_ns;    // when a copy to a frame was last asked for, or ended
  std::uint64_t look_ns;          // when a caller is to look for answers next (is_turn_to_look)
};
static_assert(sizeof(mount_words) == 128 && offsetof(mount_words, look_ns) == 112 && offsetof(mount_words, open_errors) == 0 &&
              offsetof(mount_words, bad_numbers) == 8);
static_assert(offsetof(mount_words, io_timeouts) == 16 && offsetof(mount_words, unpin_errors) == 24);
static_assert(offsetof(mount_words, slots_used) == 32 && offsetof(mount_words, dirty_pages) == 40);
static_assert(offsetof(mount_words, write_backs) == 48 && offsetof(mount_words, bytes_written_back) == 56);
static_assert(offsetof(mount_words, write_errors) == 64 && offsetof(mount_words, removals_begun) == 72);
static_assert(offsetof(mount_words, removals_ended) == 76 && offsetof(mount_words, under_way) == 80);
static_assert(offsetof(mount_words, more_blocks) == 88 && offsetof(mount_words, extend_lock) == 92);
static_assert(offsetof(mount_words, extend_failures) == 96 && offsetof(mount_words, held_copies) == 100);
static_assert(offsetof(mount_words, copy_moved_ns) == 104);

inline constexpr std::uint32_t least_page_nbytes = 512;
// The copy engine brings in no smaller pages: pages of 16 KiB would come at a tenth of the copy's rate.
inline constexpr std::uint32_t least_copied_nbytes = 64 << 10;

// The open files of a mount.
struct file_layout {
  std::uint64_t* blocks;  // [slot / block_slots]: addresses of a file_block each, 0 where there is none yet
  path_bucket* paths;
  free_list* free_slots;
  std::uint32_t nslots;  // as many as there may be
  std::uint32_t path_mask;
  std::uint64_t hash_points[2];  // secret points of the path hash
  std::uint64_t dirty_limit;     // pages: a group that writes more writes some back
};
static_assert(sizeof(file_layout) == 56 && offsetof(file_layout, blocks) == 0 && offsetof(file_layout, paths) == 8);
static_assert(offsetof(file_layout, free_slots) == 16 && offsetof(file_layout, nslots) == 24);
static_assert(offsetof(file_layout, path_mask) == 28 && offsetof(file_layout, hash_points) == 32);
static_assert(offsetof(file_layout, dirty_limit) == 48);
constexpr std::uint32_t blocks_for(std::uint32_t nslots) { return (nslots + block_slots - 1) / block_slots; }

// A mount as the calls of this part see it: the parts below, and what is its own. It lies in device memory, where kernels' handles
// name it; what parts above add follows it there (pointer/detail/mount_layout.hpp).
struct file_mount {
  cache::cache_layout cache;
  transport::transport_layout transport;
  file_layout files;
  mount_words* words;
  std::uint64_t io_timeout_ns;
  std::uint64_t frame_timeout_ns;
  std::uint64_t copy_timeout_ns;  // how long the copy engine may take to bring a page in; 0: it brings in none
  cache::touched_storage touched;
};
static_assert(sizeof(file_mount) == 264 && offsetof(file_mount, cache) == 0 && offsetof(file_mount, transport) == 104);
static_assert(offsetof(file_mount, files) == 160 && offsetof(file_mount, words) == 216);
static_assert(offsetof(file_mount, io_timeout_ns) == 224 && offsetof(file_mount, frame_timeout_ns) == 232);
static_assert(offsetof(file_mount, copy_timeout_ns) == 240 && offsetof(file_mount, touched) == 248);

}  // namespace gpufs
