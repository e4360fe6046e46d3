// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/simt/schedule.hpp"

namespace gpufs::simt::runtime {

// Throws launch_error for a geometry that no machine runs.
void check_launch_config(const launch_config& config);

}  // namespace gpufs::simt::runtime
