// SPDX-License-Identifier: Apache-2.0
// What sources keep of an open file in memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpufs {

// The sizes of an open file, and the address of its bytes. The slot's opener writes these words; while the file is open for
// writing, the lanes that write or truncate the file write them too.
struct file_bytes {
  std::int64_t nbytes;  // the size
  // The device's address of byte 0 in the file's mapping, or in device memory; of kind nvme, of its nvme::file_layout. 0: there is
  // none.
  std::uint64_t base;
  std::uint64_t host_nbytes;  // of a file that is open for writing: pages from here on are not in the file, so nobody reads them in
  // For a file that is open for writing and mapped at `base`: writes below this offset are plain stores to the mapping, and reads
  // load from there. The value only falls.
  std::uint64_t mapped_nbytes;
};
static_assert(sizeof(file_bytes) == 32 && offsetof(file_bytes, nbytes) == 0 && offsetof(file_bytes, base) == 8);
static_assert(offsetof(file_bytes, host_nbytes) == 16 && offsetof(file_bytes, mapped_nbytes) == 24);

// For a file of kind windows: where the device may read its mapping. Only the host writes it. `pull_base` is 0 while the host
// changes the other words, except when it adds bits.
struct alignas(32) file_windows {
  std::uint64_t pull_base;   // the mapping that the other words describe; mappings that exist at one time have different ones
  std::uint64_t registered;  // a bit a window of 2^shift bytes
  std::uint32_t shift;       // a page has all of its bytes in one window
  std::uint32_t handle;      // of the open that the words are about: the slot's next one may have the same mapping
};
static_assert(sizeof(file_windows) == 32 && offsetof(file_windows, pull_base) == 0);
static_assert(offsetof(file_windows, registered) == 8 && offsetof(file_windows, shift) == 16);
static_assert(offsetof(file_windows, handle) == 20);

}  // namespace gpufs
