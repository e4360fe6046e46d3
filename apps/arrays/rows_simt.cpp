// SPDX-License-Identifier: Apache-2.0
#include "apps/arrays/rows_device.hpp"

namespace gpufs::apps::arrays {

std::unique_ptr<row_mount> make_mount_simt(const std::string& root, const mount_options& options) {
  return std::make_unique<device_mount>(root, options);
}

}  // namespace gpufs::apps::arrays
