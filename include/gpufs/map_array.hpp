// SPDX-License-Identifier: Apache-2.0
// Arrays that host code makes of a file that it has opened, and hands to kernels by value.
#pragma once
#include "gpufs/host_file.hpp"
#include "gpufs/pointer/array.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {
struct host_mapping {
  template <class T>
  static array<T> of(const host_file& file, std::int64_t offset, std::int64_t count, map_flags flags) {
    return array_of<T>(file.map(offset, count, flags, sizeof(T), alignof(T)));
  }
};
}  // namespace detail

// As map_array of gpufs/pointer/array.hpp, called by the host: the array of `count` elements from byte `offset` of the file on. The
// host_file must outlive what uses the array, and so must what kernels have launched with it. Waits for a kernel of one warp, and
// so for room on the device beside running kernels (on CUDA a process's first call may also wait until running kernels have ended,
// as it loads that kernel). Throws simt::launch_error, and std::system_error with map's error, or EBADF after close() and in a
// child of fork().
template <class T>
array<T> map_array(const host_file& file, std::int64_t offset = 0, std::int64_t count = to_the_end,
                   map_flags flags = map_flags::none) {
  return detail::host_mapping::of<T>(file, offset, count, flags);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
