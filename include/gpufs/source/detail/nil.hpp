// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/source/piece.hpp"

namespace gpufs::source {
inline namespace GPUFS_MACHINE {

struct nil {
  GPUFS_DEVICE static piece find(const opened_file&, std::uint64_t, std::uint32_t) { return {place::nowhere, 0, 0}; }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::source
