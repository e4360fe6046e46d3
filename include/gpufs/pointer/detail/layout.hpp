// SPDX-License-Identifier: Apache-2.0
// What pointers into files share in memory, as the host lays it out (src/pointer/) and the device uses it: mappings, and records of
// accesses that failed.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/cache/detail/layout.hpp"
#include "gpufs/file/detail/layout.hpp"

namespace gpufs {

// What a hit of a pointer needs of a mount. The same in all entries, and for the mount's life.
struct hit_words {
  cache::frame_storage frames;
  cache::table_storage table;
  hit_counters* hits;  // of the file, the first of its copies
  const file_mount* mount;
};
static_assert(sizeof(hit_words) == 80 && offsetof(hit_words, frames) == 0 && offsetof(hit_words, table) == 40);
static_assert(offsetof(hit_words, hits) == 64 && offsetof(hit_words, mount) == 72);

// A mapping, as `map` makes it: an open file as pointers into it see it (pointer/detail/mapping.hpp), and copies of what a fault
// that hits needs. It fills one line of the cache. Written before `word` says so, and then constant. In mapping_copies copies, as
// one line of the second-level cache serves less than two thousand million loads a second; pointers name the first.
struct alignas(128) mapping_entry {
  std::uint64_t word;  // generation << 2 | state
  hit_words hit;
  std::uint32_t cache_id;  // of the file's version, in the mapping's form
  std::int32_t number;     // of the open file
  std::uint32_t handle;    // its, on the host
  std::uint32_t adding;    // in the first copy: locks adding keys whose home this is
};
static_assert(sizeof(mapping_entry) == 128 && offsetof(mapping_entry, word) == 0 && offsetof(mapping_entry, hit) == 8);
static_assert(offsetof(mapping_entry, cache_id) == 88 && offsetof(mapping_entry, number) == 92);
static_assert(offsetof(mapping_entry, handle) == 96 && offsetof(mapping_entry, adding) == 100);
inline constexpr std::uint32_t mapping_copies = 8;

enum class fault_kind : std::uint32_t {
  read,
  write,
  lost_writes,  // what had been written through a pointer, and could not be noted when it left the page
  mapping,      // one that was refused
};

// Why an access through a pointer could not be served, or why a mapping that stops the kernel could not be made.
struct fault {
  std::int64_t offset;       // in the file
  std::uint64_t begin, end;  // of the mapping, in the file
  std::uint32_t nbytes;      // of what was accessed
  std::int32_t error;        // negative errno
  std::uint32_t handle;      // of the file on the host, also after it was closed; or 0
  std::int32_t number;       // the file's number, or a negative errno
  fault_kind kind;
  std::uint32_t block, thread;  // who
  std::uint32_t counted_in;     // which of the fault_counts has those that are like it
};
static_assert(sizeof(fault) == 56 && offsetof(fault, offset) == 0 && offsetof(fault, begin) == 8 && offsetof(fault, end) == 16);
static_assert(offsetof(fault, nbytes) == 24 && offsetof(fault, error) == 28 && offsetof(fault, handle) == 32);
static_assert(offsetof(fault, number) == 36 && offsetof(fault, kind) == 40 && offsetof(fault, block) == 44);
static_assert(offsetof(fault, thread) == 48 && offsetof(fault, counted_in) == 52);
// The record of a failed access. Records lie in pinned host memory, so that they outlive a kernel that stops because of one. A
// mount keeps the first fault_records of them. One lane writes a record, once, and sets `written` last. One record stands for all
// accesses of a warp to a page of a file that fail for one reason; it describes the first of them.
struct alignas(64) fault_record {
  fault what;
  std::uint32_t written;
};
static_assert(sizeof(fault_record) == 64 && offsetof(fault_record, what) == 0 && offsetof(fault_record, written) == 56);
inline constexpr std::uint32_t fault_records = 256;

// How many accesses a record stands for. These counts lie in device memory, in a hash set. There are more of them than records,
// so that each record finds a place.
struct alignas(16) fault_count {
  std::uint64_t key;    // of what they have in common; 0: not used
  std::uint32_t lanes;  // of the warp, a bit each
  std::uint32_t accesses;
};
static_assert(sizeof(fault_count) == 16 && offsetof(fault_count, key) == 0 && offsetof(fault_count, lanes) == 8);
static_assert(offsetof(fault_count, accesses) == 12);
inline constexpr std::uint32_t fault_counts = 1024;

// Words the device shares with itself only.
struct alignas(64) pointer_words {
  std::uint64_t fault_errors;  // accesses through pointers that could not be served, and mappings that were to stop the kernel then
  std::uint64_t fault_records;  // of these, how many are unlike those before: the first of them are kept
  // When an access through a pointer last found all frames pinned, by simt::clock_ns(), or 0: of those that only read, and others.
  std::uint64_t starved_ns[2];
  std::uint64_t past_cache;  // reads through pointers that got no frame, and were served without
  std::uint32_t spare_lock;  // of pointer_layout::spare_page
};
static_assert(sizeof(pointer_words) == 64 && offsetof(pointer_words, fault_errors) == 0);
static_assert(offsetof(pointer_words, fault_records) == 8 && offsetof(pointer_words, starved_ns) == 16);
static_assert(offsetof(pointer_words, past_cache) == 32 && offsetof(pointer_words, spare_lock) == 40);

struct pointer_layout {
  mapping_entry* mappings;  // [mapping][copy]
  fault_record* faults;     // pinned
  fault_count* fault_counts;
  std::byte* spare_page;  // for a page that gets no frame, while a fault handler works on it (past_cache.hpp)
  pointer_words* words;
  std::uint32_t mapping_mask;  // how many - 1
};
static_assert(sizeof(pointer_layout) == 48 && offsetof(pointer_layout, mappings) == 0 && offsetof(pointer_layout, faults) == 8);
static_assert(offsetof(pointer_layout, fault_counts) == 16 && offsetof(pointer_layout, spare_page) == 24);
static_assert(offsetof(pointer_layout, words) == 32 && offsetof(pointer_layout, mapping_mask) == 40);

}  // namespace gpufs
