// SPDX-License-Identifier: Apache-2.0
// What measurements change in batches, to see what it is worth. Programs cannot: this header is not theirs.
#pragma once

namespace gpufs::par {

struct measured_forms {
  bool admits_all = false;  // in batches made from now on, each page that is missed is to get a frame at its first use
};
inline measured_forms forms;

}  // namespace gpufs::par
