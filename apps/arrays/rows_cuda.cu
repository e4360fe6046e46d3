// SPDX-License-Identifier: Apache-2.0
#include "apps/arrays/rows_device.hpp"

namespace gpufs::apps::arrays {

std::unique_ptr<row_file> open_rows_cuda(const std::string& path, const row_place& place, const cache_options& options) {
  return std::make_unique<device_rows>(path, place, options);
}

}  // namespace gpufs::apps::arrays
