// SPDX-License-Identifier: Apache-2.0
// gpufs: files for code that runs on GPUs. All that a kernel and its host program need.
#pragma once
#include "gpufs/file/append.hpp"
#include "gpufs/file/extents.hpp"
#include "gpufs/file/format_path.hpp"
#include "gpufs/file/map_to_write.hpp"
#include "gpufs/file/open_all.hpp"
#include "gpufs/file/prefetch.hpp"
#include "gpufs/map_array.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/pointer/for_each.hpp"
#include "gpufs/pointer/update.hpp"
#include "gpufs/simt/device_array.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// Owner of a mount for the machine this translation unit is compiled for. Move-only. Throws gpufs::error, also if there is no such
// device; std::runtime_error if there is no such machine (no GPU, no driver).
class mount : public host_mount {
 public:
  explicit mount(const std::string& root, const mount_options& options = {}) : host_mount(device_of(options), root, options) {}

  // For kernels, by value; valid while the mount lives.
  mount_ref ref() const { return mount_ref(mount_inside(*this).resident()); }

 private:
  static simt::platform& device_of(const mount_options& options) {
    if (options.device == current_device) return simt::this_platform();
    try {
      return simt::device(options.device);
    } catch (const std::out_of_range& why) {
      throw error(std::string("gpufs::mount: ") + why.what());
    }
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
