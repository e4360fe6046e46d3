// SPDX-License-Identifier: Apache-2.0
// Lays out a mount's open files in device memory.
#pragma once
#include <cstdint>

#include "gpufs/file/layout.hpp"
#include "gpufs/simt/device_memory.hpp"

namespace gpufs {

struct file_options {
  std::uint32_t max_open_files;  // 1 to 2^slot_bits
  bool writable;
  std::uint64_t dirty_limit;  // pages; where writable
};

// No file is open. Throws std::system_error where the system gives no random numbers.
file_layout make_layout(simt::device_memory& memory, const file_options& options);

}  // namespace gpufs
