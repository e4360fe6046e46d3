// SPDX-License-Identifier: Apache-2.0
#include "apps/label/labeler_device.hpp"

namespace gpufs::apps::label {

std::uint64_t label_cuda(const image_view& image, const label_options& options, std::int32_t* labels) {
  return label_by_kernels(image, options, labels);
}

}  // namespace gpufs::apps::label
