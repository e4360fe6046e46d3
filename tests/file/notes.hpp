// SPDX-License-Identifier: Apache-2.0
// A kernel that makes calls one after another and notes what each gave.
#pragma once
#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr unsigned nresults = 32;

// Results of a kernel's calls, in order; noted by lane 0.
struct notes {
  std::int64_t* to;
  std::uint32_t n = 0;
  GPUFS_DEVICE void operator()(std::int64_t result) {
    if (this_warp().leader()) to[n] = result;
    ++n;
  }
};

// What a kernel with `fs` and `results` has noted: nresults words.
template <class Kernel>
std::vector<std::int64_t> noted(const mount& fs, Kernel kernel) {
  const device_buffer<std::int64_t> results(nresults);
  kernel.fs = fs.ref();
  kernel.results = results.get();
  simt::launch({.grid = 1, .block = 32}, kernel);
  return results.read();
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
