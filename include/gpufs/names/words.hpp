// SPDX-License-Identifier: Apache-2.0
// The words of names: flags of calls with a path, the entries of directories, and extents, as kernels, the host and its stores know
// them.
#pragma once
#include <fcntl.h>

#include <cstddef>
#include <cstdint>

namespace gpufs {
namespace names {

inline constexpr std::uint32_t max_path_nbytes = 4095;

// Flags of opens, beside O_*.
inline constexpr std::uint32_t open_write_once = 0x40000000;  // never read, GPUfs's O_GWRONCE
// A flag from the service to its store: the store need not map the file, since it will be truncated, or another open of it is used.
inline constexpr std::uint32_t open_unmapped = 0x20000000;
// A flag from the host to its store: the store registers the whole mapping of the file now.
inline constexpr std::uint32_t open_prepared = 0x10000000;
// What else an open takes: O_ACCMODE and these; to write, these, too. Of the first, the harmless ones have no meaning for a
// kernel's calls: portable callers pass them.
inline constexpr int open_flags_to_read =
    O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOATIME | O_DIRECT | O_NOFOLLOW | 0100000 /* O_LARGEFILE, which is 0 in 64-bit headers */;
inline constexpr int open_flags_to_write = O_CREAT | O_TRUNC | O_APPEND | O_EXCL | static_cast<int>(open_write_once);

inline constexpr std::uint32_t unlink_directory = 1;

// Flags of a file's sync.
inline constexpr std::uint32_t sync_data_only = 1;   // fdatasync(2) in place of fsync(2)
inline constexpr std::uint32_t sync_page_cache = 2;  // neither; the bytes go to the host's page cache only

}  // namespace names

// An entry of a directory, as read_directory gives it: this, then the name's bytes and a NUL, then up to the next multiple of 8
// anything. Its file's status may be from a moment before or after the others'.
struct alignas(8) directory_entry {
  std::uint64_t inode;
  std::int64_t file_nbytes;
  std::uint64_t mtime_ns;
  std::uint32_t mode;          // st_mode, of a symbolic link itself; 0: it was gone when we looked
  std::uint16_t entry_nbytes;  // from this entry to the next
  std::uint16_t name_nbytes;   // without the NUL
};
static_assert(sizeof(directory_entry) == 32 && offsetof(directory_entry, inode) == 0);
static_assert(offsetof(directory_entry, file_nbytes) == 8 && offsetof(directory_entry, mtime_ns) == 16 &&
              offsetof(directory_entry, mode) == 24);
static_assert(offsetof(directory_entry, entry_nbytes) == 28 && offsetof(directory_entry, name_nbytes) == 30);

// Where a run of a file's bytes lies on what its file system lies on, as read_extents gives it. Bytes in no extent are a hole: they
// read as zeros.
struct alignas(8) extent {
  std::int64_t offset;         // in the file
  std::int64_t device_offset;  // of the same byte in the device
  std::int64_t nbytes;         // of whole blocks: the last extent may reach past the file's end
  std::uint32_t flags;         // extent_*
  std::uint32_t reserved;
};
static_assert(sizeof(extent) == 32 && offsetof(extent, offset) == 0 && offsetof(extent, device_offset) == 8);
static_assert(offsetof(extent, nbytes) == 16 && offsetof(extent, flags) == 24 && offsetof(extent, reserved) == 28);
// The bytes are not to be had at device_offset: the file system has encoded them, keeps them among its own, or has no place yet.
inline constexpr std::uint32_t extent_elsewhere = 1;
inline constexpr std::uint32_t extent_unwritten = 2;  // has a place, but its bytes read as zeros
inline constexpr std::uint32_t extent_shared = 4;     // other files have the same place

}  // namespace gpufs
