// SPDX-License-Identifier: Apache-2.0
// The kernel on a GPU.
#include "apps/collage/match_device.hpp"

namespace gpufs::apps::collage {

std::unique_ptr<matcher> matcher_cuda(const library& lib, const engine_options& options) {
  return std::make_unique<device_matcher>(lib, options, 4096);
}

}  // namespace gpufs::apps::collage
