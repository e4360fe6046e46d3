// SPDX-License-Identifier: Apache-2.0
// The page cache's data in memory, as the host lays it out and the device uses it. No machine, no files: words only.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/types.hpp"

namespace gpufs::cache {

enum class frame_index : std::uint32_t {};  // which frame of the mount's cache
enum class page_key : std::uint64_t {};     // form (4 bits), cache id (28) and page number (32): one page of one file version

inline constexpr unsigned page_number_bits = 32;
inline constexpr std::uint32_t max_cache_id = (1u << 28) - 1;

// A page may be cached in several forms: as the file has it (form 0), as a fault handler made it (1 to 14), or with changes that
// never reach the file (15). What is called a cache id where pages are found is id_in_form's (frames.hpp).
inline constexpr unsigned form_shift = 28;
inline constexpr std::uint32_t file_form = 0, private_form = 15;

// A frame's state word: flags, the error of a failed fill, a stamp that each fill changes, and on top the pins. Every transition is
// an atomic add, and, or or compare-exchange that keeps the pin count, because a look-up may add a pin to any frame at any moment
// (and take it back when it sees that it must not). A surplus unpin of a frame without
// pins wraps the count until it is undone: the frame looks pinned meanwhile, and a pin that is taken at that moment is not seen.
//
//   free --take--> claimed --publish--> filling --ok--> resident --evict--> claimed --release--> free
//                                          |--in part--> partial --all sectors--> resident; partial --evict--> claimed
//                                          \--error--> failed --evict--> claimed
namespace frame_state {
inline constexpr std::uint64_t referenced = 1u << 0;  // hit since the clock's hand last passed (second chance)
inline constexpr std::uint64_t dirty = 1u << 1;       // changed: its bytes are nowhere else, so it is not evicted
inline constexpr std::uint64_t failed = 1u << 2;      // the fill failed; not in the page table; waiters read the error
inline constexpr std::uint64_t filling = 1u << 3;     // exactly one group brings the page in; others wait
inline constexpr std::uint64_t claimed = 1u << 4;     // owned by one group: being evicted or prepared; must not be pinned
inline constexpr std::uint64_t free = 1u << 5;        // with `claimed`: nobody's
inline constexpr std::uint64_t listed = 1u << 6;      // with `dirty`: it is in a list of pages to write back (not private ones)
inline constexpr std::uint64_t partial = 1u << 7;     // only some of the page's sectors are there (cache/detail/sectors.hpp)
inline constexpr unsigned error_shift = 8;            // 12 bits: errno of a failed fill
inline constexpr std::uint64_t error_mask = 0xfffu;
inline constexpr std::uint64_t one_stamp = 1u << 20;
inline constexpr std::uint64_t one_pin = std::uint64_t{1} << 40;  // 24 bits
inline constexpr std::uint64_t stamp_mask = one_pin - one_stamp;
inline constexpr std::uint64_t pin_mask = ~(one_pin - 1);
inline constexpr std::uint64_t many_pins = std::uint64_t{1} << 63;
}  // namespace frame_state

// A bucket of the page table is what one thread loads at once: four slots, each 0 or (tag << frame_bits) | (frame + 1).
struct alignas(16) bucket {
  std::uint32_t slots[4];
};
static_assert(sizeof(bucket) == 16);

struct table_storage {
  bucket* buckets;
  // A header for each bucket, in an array of its own, because a hit does not need it. Bit 31 locks the bucket for inserts; the bits
  // below count the entries that probed past the bucket because it was full. Behind the headers lie the words of page_uses.hpp.
  std::uint32_t* headers;
  std::uint32_t bucket_mask;  // number of buckets - 1, a power of two - 1
  std::uint32_t frame_bits;   // low bits of a slot that hold frame + 1
};
static_assert(sizeof(table_storage) == 24 && offsetof(table_storage, buckets) == 0 && offsetof(table_storage, headers) == 8);
static_assert(offsetof(table_storage, bucket_mask) == 16 && offsetof(table_storage, frame_bits) == 20);

// Two to four slots a frame: few pages are not in the first bucket looked at (4 % at most), and a free slot always exists.
constexpr std::uint32_t buckets_for(std::uint32_t nframes) { return std::bit_ceil(nframes / 2 + 1); }

// Words in which is noted how the pages of files are used; a file's cache id selects its word (page_uses.hpp).
inline constexpr std::uint32_t nuses = 4096;

// Allocation ring i of n: the clock's hand over frames i, i + n, i + 2 n, ..., and what it counted.
struct alignas(64) clock_ring {
  std::uint32_t hand;
  std::uint32_t nframes;
  std::uint32_t ahead;  // eviction runs this many frames before allocation
  std::uint32_t used;   // frames that are not free
  std::uint64_t evictions;
  std::uint64_t allocations;
};
static_assert(sizeof(clock_ring) == 64 && offsetof(clock_ring, hand) == 0 && offsetof(clock_ring, nframes) == 4);
static_assert(offsetof(clock_ring, ahead) == 8 && offsetof(clock_ring, used) == 12 && offsetof(clock_ring, evictions) == 16);
static_assert(offsetof(clock_ring, allocations) == 24);

struct ring_storage {
  clock_ring* rings;
  std::uint32_t nrings;
};
static_assert(sizeof(ring_storage) == 16 && offsetof(ring_storage, rings) == 0 && offsetof(ring_storage, nrings) == 8);

// Keys and states lie apart, so that a look-up's load of the one and its atomic on the other do not wait for each other in one
// line. In a mount the words of sectors are followed by the operations' words, those by the states, those by the keys, and those by
// the data (packed_frames).
struct frame_storage {
  std::uint64_t* states;  // frame_state
  std::uint64_t* keys;    // sealed; changes only while claimed
  std::byte* data;        // frame i at data + (i << page_shift)
  std::uint32_t nframes;
  std::uint32_t page_shift;
  std::uint32_t reciprocal;  // of nframes: reciprocal_of
};
static_assert(sizeof(frame_storage) == 40 && offsetof(frame_storage, states) == 0 && offsetof(frame_storage, keys) == 8);
static_assert(offsetof(frame_storage, data) == 16 && offsetof(frame_storage, nframes) == 24);
static_assert(offsetof(frame_storage, page_shift) == 28 && offsetof(frame_storage, reciprocal) == 32);
// A word for each frame: the operation that fills the frame, or 0 (file/detail/operation.hpp). Device code calls frames::operation.
constexpr std::uint64_t* operations_of(const frame_storage& frames) { return frames.states - frames.nframes; }
inline constexpr std::uint64_t words_of_frame = 4;  // sectors, operation, state, key
constexpr std::uint32_t reciprocal_of(std::uint32_t nframes) {
  const std::uint64_t whole = (std::uint64_t{1} << 32) / nframes;
  return static_cast<std::uint32_t>(whole >> 32 != 0 ? whole - 1 : whole);
}

// A mount's frame_storage, packed so that one load brings it: the address of the data leads to all other addresses. cache::pack and
// cache::unpack (frames.hpp).
struct alignas(16) packed_frames {
  std::uint64_t data_and_shift;  // the data lies at a multiple of packed_alignment
  std::uint32_t nframes;
  std::uint32_t reciprocal;
};
static_assert(sizeof(packed_frames) == 16 && offsetof(packed_frames, data_and_shift) == 0);
static_assert(offsetof(packed_frames, nframes) == 8 && offsetof(packed_frames, reciprocal) == 12);
inline constexpr std::uint64_t packed_alignment = 4096;

// The twin of a page that is mapped for writing. All groups that have the page mapped share it (file/map_to_write.hpp).
struct alignas(16) twin_state {
  std::uint32_t lock;   // guards the members below, and the twin's bytes
  std::uint32_t count;  // how many mappings to write the page has; 0: there is no twin
  std::uint32_t twin;   // the frame that holds the twin
  std::int32_t number;  // the file's number that allows to write it
};
static_assert(sizeof(twin_state) == 16 && offsetof(twin_state, lock) == 0 && offsetof(twin_state, count) == 4);
static_assert(offsetof(twin_state, twin) == 8 && offsetof(twin_state, number) == 12);

// What was written of the pages in frames (cache/detail/dirty.hpp). Null where nothing may be written.
struct dirty_storage {
  std::uint32_t* masks;  // page_nbytes / 32 words a frame: bit i % 32 of word i / 32, byte i was written since its last write-back
  std::uint32_t* next;   // of a listed frame: the next one in its list, + 1; 0 ends it
  twin_state* twins;     // a frame's
};
static_assert(sizeof(dirty_storage) == 24 && offsetof(dirty_storage, masks) == 0 && offsetof(dirty_storage, next) == 8);
static_assert(offsetof(dirty_storage, twins) == 16);

// Frames whose pages are to be written back. Only the holder of the lock may write them back, and it keeps the lock until the host
// has answered. If no answer comes in time, the list is lost until it comes: the host may still write the bytes that it was given.
struct dirty_list {
  std::uint32_t head;  // frame + 1
  std::uint32_t lock;  // bit 0: held; above, how many write-backs are late
};
static_assert(sizeof(dirty_list) == 8 && offsetof(dirty_list, head) == 0 && offsetof(dirty_list, lock) == 4);

// What batches note of pages that they read past the cache (par/detail/touched_pages.hpp): as many words as there are frames; a
// page's hash selects its word. One line behind these words lies another, which counts the calls of kernels.
struct touched_storage {
  std::uint32_t* words;
  std::uint32_t mask;  // how many there are, a power of two, - 1
};
static_assert(sizeof(touched_storage) == 16 && offsetof(touched_storage, words) == 0 && offsetof(touched_storage, mask) == 8);

// A whole cache. It lies in device memory; what a hit needs of it lies where a hit looks anyway (hit_words of file).
struct cache_layout {
  // The scope of all atomics on a cache's words, and of the fences that order its pages' bytes: it says which threads may use the
  // cache. It is a constant, because in PTX the scope is part of the instruction: a scope that is known only at run time would cost
  // a branch in each hit (docs/design/devices.md).
  static constexpr simt::scope scope = simt::scope::device;

  frame_storage frames;
  table_storage table;
  ring_storage rings;
  dirty_storage dirty;
};
static_assert(sizeof(cache_layout) == 104 && offsetof(cache_layout, frames) == 0 && offsetof(cache_layout, table) == 40);
static_assert(offsetof(cache_layout, rings) == 64 && offsetof(cache_layout, dirty) == 80);

}  // namespace gpufs::cache
