// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/source/piece.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

struct pull {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    return version_at(place::host_memory, of, offset, wanted);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
