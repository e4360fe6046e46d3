// SPDX-License-Identifier: Apache-2.0
#include "apps/label/labeler_device.hpp"

namespace gpufs::apps::label {

std::unique_ptr<labeler> make_labeler_cuda(const label_options& options) { return std::make_unique<device_labeler>(options); }

std::uint64_t usual_memory_of_gpu(int device) {
  return std::min<std::uint64_t>(simt::device(device).free_nbytes() / 4 * 3, usual_memory_of_host());
}

}  // namespace gpufs::apps::label
