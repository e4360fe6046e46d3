// SPDX-License-Identifier: Apache-2.0
#include "apps/words/finder_device.hpp"

namespace gpufs::apps::words {

std::unique_ptr<finder> make_finder_simt(const file_tree& tree, const find_options& options) {
  return std::make_unique<device_finder>(tree, options);
}

}  // namespace gpufs::apps::words
