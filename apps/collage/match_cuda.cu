// SPDX-License-Identifier: Apache-2.0
// The kernel on a GPU.
#include "apps/collage/match_device.hpp"

namespace gpufs::apps::collage {

match_result match_cuda(const library& lib, const photo& picture, const engine_options& options) {
  return match_on_device(lib, picture, options, 4096);
}

}  // namespace gpufs::apps::collage
