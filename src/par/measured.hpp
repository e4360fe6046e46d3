// SPDX-License-Identifier: Apache-2.0
// What measurements change in batches, to see what it is worth. Programs cannot: this header is not theirs.
#pragma once

namespace gpufs::par {

struct measured_forms {
  // In row_batches made from now on, each page that is missed is to get a frame at its first use.
  bool admits_all = false;
  // Rows are sorted by which of 2^window_nbits windows of the file they lie in, and no further; 0: by address. Only while all rows
  // of a batch are distinct: who looks for repeated ones relies on the whole order.
  unsigned window_nbits = 0;
};
inline measured_forms forms;

}  // namespace gpufs::par
