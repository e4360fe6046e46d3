// SPDX-License-Identifier: Apache-2.0
// Where the bytes of files come from.
#pragma once
#include <cstdint>

namespace gpufs::service {

// Of an open file.
enum class source_kind : std::uint32_t {
  nil = 0,      // nothing is brought in: measures the cache alone
  pull = 1,     // the faulting group copies from a registered host mapping
  staged = 2,   // a host worker fills a pinned staging slot
  windows = 3,  // pull where the file's window is registered, staged elsewhere
  // Only on the device, of files that the host opened for writing:
  live = 4,    // staged, whatever the file has when a page is read in
  unread = 5,  // O_GWRONCE: nothing is brought in, but zeros
};

}  // namespace gpufs::service
