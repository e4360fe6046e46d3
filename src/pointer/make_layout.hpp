// SPDX-License-Identifier: Apache-2.0
// Lays out in device memory what pointers into files share.
#pragma once
#include <cstdint>

#include "fault_log.hpp"
#include "gpufs/pointer/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs {

struct pointer_options {
  std::uint32_t max_mappings;  // a power of two
  std::uint32_t page_nbytes;
};

pointer_layout make_layout(simt::device_memory& memory, const fault_log& faults, const pointer_options& options);

}  // namespace gpufs
