// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/source/piece.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

struct nvme {
  GPUFS_DEVICE static piece find(const opened_file& of, std::uint64_t offset, std::uint32_t wanted) {
    piece found = version_at(place::blocks, of, offset, wanted);
    found.address = of.base;
    return found;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
