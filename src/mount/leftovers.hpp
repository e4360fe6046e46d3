// SPDX-License-Identifier: Apache-2.0
// What a mount still holds when it ends. A watcher may ask to be told: the project's tests do, to check that nothing is left.
#pragma once
#include <atomic>
#include <cstdint>

// Not in `gpufs::detail`: in a file that includes headers of kernels before, that is the `detail` of the machine's inline
// namespace, and in others it is not. So the watcher that is set would not be the one that a mount asks.
namespace gpufs {

struct leftovers {
  std::uint64_t pins = 0;             // of all frames
  std::uint64_t open_slots = 0;       // files that kernels have open
  std::uint64_t host_files = 0;       // files that the host has open for them
  std::uint64_t unwritten_pages = 0;  // written, and not yet back in their files
  std::uint64_t changed_frames = 0;   // dirty frames; those of private mappings, too
  bool any() const { return (pins | open_slots | host_files | unwritten_pages | changed_frames) != 0; }
};

// Called by the mount's end, before it writes what is left; null: nobody watches. Before the first mount is made.
inline std::atomic<void (*)(const leftovers&)> leftovers_watcher{nullptr};

}  // namespace gpufs
