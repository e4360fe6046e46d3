// Accesses through pointers that failed: the mount counts and records them, and a write that is lost is told by the file's next
// fsync or close, too.
#pragma once
#include "gpufs/file/write_back.hpp"
#include "gpufs/pointer/mapping.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Counts and records an access that failed, or a mapping.
GPUFS_DEVICE void record_fault(const mount_layout& mount, const fault_record& what) {
  const std::uint64_t n = simt::atomic_ref<std::uint64_t>(mount.words->fault_errors).fetch_add(1, std::memory_order_relaxed);
  if (n >= fault_records) return;
  fault_record& record = mount.faults[n];
  record.offset = what.offset;
  record.error = what.error;
  record.handle = what.handle;
  record.number = what.number;
  record.kind = what.kind;
  // Meets the acquire in host_mount::log.
  simt::atomic_ref<std::uint32_t, simt::scope::system>(record.written).store(1, std::memory_order_release);
}

// Records an access that failed.
GPUFS_DEVICE void record_access(mapping_name name, std::uint64_t position, int error, fault_kind kind) {
  mapping_entry& from = *entry_of(name);
  fault_record what{position,
                    error,
                    simt::atomic_ref<std::uint32_t>(from.handle).load(std::memory_order_relaxed),
                    simt::atomic_ref<std::int32_t>(from.number).load(std::memory_order_relaxed),
                    0,
                    kind,
                    0};
  simt::fence_loads();  // the entry may be given to another file until it is looked at
  if (!is_current(name)) {
    what.handle = 0;
    what.number = -EBADF;
  }
  record_fault(*from.mount, what);
}

GPUFS_DEVICE void stop_if_asked(mapping_name name) {
  if (stops_on_error(name)) simt::stop_kernel("an access through a pointer failed; the mount's log says where");
}

// Records a read that failed, and stops the kernel where the mapping says so: the address of zeros, to be read in its place. Of a
// pointer without a mapping there is nobody to tell, and there are none: 0.
GPUFS_DEVICE_COLD inline std::uint64_t note_fault(mapping_name name, std::uint64_t position, int error) {
  if (is_mapping(name)) record_access(name, position, error, fault_kind::read);
  stop_if_asked(name);
  return is_mapping(name) ? reinterpret_cast<std::uint64_t>(entry_of(name)->mount->zeros) : 0;
}
// What was to be written is lost: the file's next fsync or close tells of it, unless there is no such place (-ENXIO): beyond the
// mapping, or the file's end since it was cut.
GPUFS_DEVICE_COLD inline void keep_write_error(mapping_name name, int error) {
  if (!is_mapping(name) || error == -ENXIO) return;
  const mapping_entry& from = *entry_of(name);
  const file_table files(*from.mount);
  const file_number number{from.number};
  if (stores_to_file(from) && files.is_open(number) && is_current(name)) {
    keep_error(files.slot(file_table::index_of(number)), error);
  }
}
// As note_fault, for a write.
GPUFS_DEVICE_COLD inline void note_failed_write(mapping_name name, std::uint64_t position, int error) {
  if (is_mapping(name)) record_access(name, position, error, fault_kind::write);
  keep_write_error(name, error);
  stop_if_asked(name);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
