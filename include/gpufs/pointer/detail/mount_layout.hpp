// SPDX-License-Identifier: Apache-2.0
// A whole mount in memory: what files have of it, and after that what pointers have.
#pragma once
#include "gpufs/pointer/detail/layout.hpp"
#include "gpufs/simt/config.hpp"

namespace gpufs {

// In device memory there is one of each mount.
struct mount_layout : file_mount {
  pointer_layout pointers;
};
// So that they follow at once, for g++ and for nvcc.
static_assert(sizeof(mount_layout) == sizeof(file_mount) + sizeof(pointer_layout) && sizeof(mount_layout) == 312);

inline namespace GPUFS_MACHINE {
namespace detail {

// The mount that this is the beginning of, in device memory.
GPUFS_HOST_DEVICE const mount_layout* whole_of(const file_mount* mount) { return static_cast<const mount_layout*>(mount); }

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
