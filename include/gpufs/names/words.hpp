// SPDX-License-Identifier: Apache-2.0
// The words of names: flags of calls with a path, and the entries of directories, as kernels, the host and its stores know them.
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
static_assert(sizeof(directory_entry) == 32);
static_assert(offsetof(directory_entry, file_nbytes) == 8 && offsetof(directory_entry, mtime_ns) == 16 &&
              offsetof(directory_entry, mode) == 24);
static_assert(offsetof(directory_entry, entry_nbytes) == 28 && offsetof(directory_entry, name_nbytes) == 30);

}  // namespace gpufs
