// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/source/detail/live.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

struct zero {
  GPUFS_DEVICE static piece find(const opened_file&, std::uint64_t, std::uint32_t) { return {place::zeros, 0, 0}; }
  GPUFS_DEVICE static piece find_to_write(const opened_file& of, std::uint64_t offset, std::uint32_t nbytes) {
    return live::find_to_write(of, offset, nbytes);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
