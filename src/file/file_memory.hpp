// SPDX-License-Identifier: Apache-2.0
// A mount's open files in device memory: lays them out, and makes more when kernels open more.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpufs/file/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs {

struct file_options {
  std::uint32_t max_open_files;  // 1 to 2^slot_bits
  std::uint32_t reserved;        // how many of them have blocks from the beginning
  bool writable;
  std::uint64_t dirty_limit;  // pages; used if writable
};

// The const members, and extend, may be called from any thread, and while kernels run.
class file_memory {
 public:
  // Makes a table with at least one block and no open file. Throws std::system_error if the system gives no random numbers, and
  // whatever the platform throws.
  file_memory(simt::platform& machine, const file_options& options);

  const file_layout& layout() const { return layout_; }

  // Sets the words about the mount in all blocks. Called once, before kernels run.
  void set_home(const file_home& home);

  // Returns block n, and makes it if it is the next one. Null: the mount may have no such block, or not yet. Throws as the platform
  // does if the device has no memory for it.
  file_block* extend(std::uint32_t n);

  // All blocks that were made.
  std::vector<file_block*> blocks() const;
  // The block of this slot; null if there is none.
  file_block* block_of(std::uint32_t slot) const;

 private:
  // Makes block n. Chains its slots as file_blocks::add wants them: each to the next slot of the same list, up to `end`.
  file_block* make_block(std::uint32_t n, std::uint32_t end);
  void write_home(file_block* to) const;

  simt::device_memory memory_;
  bool writable_;
  file_layout layout_{};
  file_home home_{};
  std::mutex making_;        // held by the thread that makes a block, which may last until a kernel ends
  mutable std::mutex lock_;  // guards the fields below
  std::vector<file_block*> blocks_;
};

}  // namespace gpufs
