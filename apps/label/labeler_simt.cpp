// SPDX-License-Identifier: Apache-2.0
#include "apps/label/labeler_device.hpp"

namespace gpufs::apps::label {

std::unique_ptr<labeler> make_labeler_simt(const label_options& options) { return std::make_unique<device_labeler>(options); }

}  // namespace gpufs::apps::label
