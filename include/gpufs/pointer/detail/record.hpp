// SPDX-License-Identifier: Apache-2.0
// Accesses through pointers that failed: the mount counts and records them, and a write that is lost is told by the file's next
// fsync or close, too.
#pragma once
#include "gpufs/file/detail/write_back.hpp"
#include "gpufs/pointer/detail/mapping.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The part of a failed access that all accesses of one record share, as a key: never 0.
GPUFS_DEVICE std::uint64_t record_key_of(const fault& what, unsigned page_shift) {
  const std::uint64_t parts[] = {
      std::uint64_t{what.block} << 32 | what.thread / simt::warp_lanes,
      static_cast<std::uint64_t>(what.offset) >> page_shift,
      what.begin,
      what.end,
      std::uint64_t{what.handle} << 32 | static_cast<std::uint32_t>(what.error),
      std::uint64_t{static_cast<std::uint32_t>(what.number)} << 32 | static_cast<std::uint32_t>(what.kind)};
  std::uint64_t key = 0;
  for (const std::uint64_t part : parts) {
    key = (key ^ part) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  }
  return key | 1;
}

// Counts and records an access of the caller that failed, or a mapping. Lanes need not be together, so those of a warp find each
// other by the fault_count of what they have in common.
GPUFS_DEVICE void record_fault(const mount_layout& mount, fault what) {
  count(mount.pointers.words->fault_errors, 1);
  what.block = simt::block_rank();
  what.thread = simt::thread_rank();
  const std::uint64_t key = record_key_of(what, mount.cache.frames.page_shift);
  bool first = false, found = false;
  for (std::uint32_t tries = 0; tries < 16 && !found; ++tries) {
    what.counted_in = (static_cast<std::uint32_t>(key >> 32) + tries) % fault_counts;
    fault_count& alike = mount.pointers.fault_counts[what.counted_in];
    const simt::atomic_ref<std::uint64_t> word(alike.key);
    std::uint64_t seen = word.load(std::memory_order_relaxed);
    if (seen == 0) first = word.compare_exchange(seen, key, std::memory_order_relaxed);
    found = first || seen == key;
    if (!found) continue;
    simt::atomic_ref<std::uint32_t>(alike.lanes).fetch_or(1u << simt::lane_id(), std::memory_order_relaxed);
    simt::atomic_ref<std::uint32_t>(alike.accesses).add_relaxed(1);
  }
  if (!first) return;
  const std::uint64_t n =
      simt::atomic_ref<std::uint64_t>(mount.pointers.words->fault_records).fetch_add(1, std::memory_order_relaxed);
  if (n >= fault_records) return;
  fault_record& record = mount.pointers.faults[n];
  record.what = what;
  // Meets the acquire in host_mount::log.
  simt::atomic_ref<std::uint32_t, simt::scope::system>(record.written).store(1, std::memory_order_release);
}

// What was accessed through a pointer.
struct accessed {
  bounds within;  // of the pointer
  std::uint64_t position;
  std::uint32_t nbytes;
};

// Records an access that failed.
GPUFS_DEVICE void record_access(mapping_name name, const accessed& at, int error, fault_kind kind) {
  mapping_entry& from = *entry_of(name);
  fault what{};
  what.offset = static_cast<std::int64_t>(at.position);
  what.begin = at.within.begin;
  what.end = at.within.end;
  what.nbytes = at.nbytes;
  what.error = error;
  what.kind = kind;
  what.handle = simt::atomic_ref<std::uint32_t>(from.handle).load(std::memory_order_relaxed);
  what.number = simt::atomic_ref<std::int32_t>(from.number).load(std::memory_order_relaxed);
  simt::fence_loads();  // the entry may be given to another file until it is looked at
  if (!is_current(name)) {
    what.handle = 0;
    what.number = -EBADF;
  }
  record_fault(*mount_of(from), what);
}

GPUFS_DEVICE void stop_if_asked(mapping_name name) {
  if (stops_on_error(name)) simt::stop_kernel("an access through a pointer failed; the mount's log says where");
}

// Records a read that failed, and stops the kernel where the mapping says so. Of a pointer without a mapping there is nobody to
// tell.
GPUFS_DEVICE_COLD inline void note_failed_read(mapping_name name, accessed at, int error) {
  if (is_mapping(name)) record_access(name, at, error, fault_kind::read);
  stop_if_asked(name);
}
// Notes that a write is lost, so that the file's next fsync or close returns an error. It notes nothing for -ENXIO: the write's
// place does not exist, as it lies beyond the mapping, or beyond the end of the file since a truncation.
GPUFS_DEVICE_COLD inline void keep_write_error(mapping_name name, int error) {
  if (!is_mapping(name) || error == -ENXIO) return;
  const mapping_entry& from = *entry_of(name);
  const file_table files(*mount_of(from));
  const file_number number{from.number};
  if (stores_to_file(from) && files.is_open(number) && is_current(name)) {
    keep_error(files.slot(file_table::index_of(number)), error);
  }
}
// As note_failed_read, for a write.
GPUFS_DEVICE_COLD inline void note_failed_write(mapping_name name, accessed at, int error) {
  if (is_mapping(name)) record_access(name, at, error, fault_kind::write);
  keep_write_error(name, error);
  stop_if_asked(name);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
