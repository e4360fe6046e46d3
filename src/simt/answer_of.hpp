// SPDX-License-Identifier: Apache-2.0
// What a kernel of few threads tells the host at once, beside other kernels.
#pragma once
#include "gpufs/simt/detail/pinned_answer.hpp"
#include "gpufs/simt/launch.hpp"
#include "gpufs/simt/platform.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Runs the kernel by one block, whose member `where` then names the answer's memory. Allocates nothing and frees nothing, for which
// CUDA waits until other kernels have ended.
template <unsigned MaxThreads = 0, unsigned MinBlocks = 0, class Kernel, class Answer>
Answer answer_of(platform& device, Kernel kernel, Answer* Kernel::*where, unsigned nthreads) {
  static_assert(sizeof(Answer) <= runtime::pinned_answer::nbytes);
  const on_device here(device);
  const runtime::pinned_answer answer(device);
  auto* result = static_cast<Answer*>(answer.get());
  kernel.*where = result;
  launch_config config{.grid = 1, .block = nthreads};
  config.schedule.timeout_ns = 0;  // what waits in it has its own deadline
  launch<MaxThreads, MinBlocks>(config, kernel);
  return *result;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
