// SPDX-License-Identifier: Apache-2.0
#include "apps/words/finder_device.hpp"

namespace gpufs::apps::words {

found find_simt(const file_tree& tree, const wanted& what, const find_options& options) {
  return find_on_device(tree, what, options);
}

}  // namespace gpufs::apps::words
