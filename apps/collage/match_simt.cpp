// SPDX-License-Identifier: Apache-2.0
// The kernel on the CPU machine.
#include "apps/collage/match_device.hpp"

namespace gpufs::apps::collage {

match_result match_simt(const library& lib, const photo& picture, const engine_options& options) {
  return match_on_device(lib, picture, options, 64);
}

}  // namespace gpufs::apps::collage
