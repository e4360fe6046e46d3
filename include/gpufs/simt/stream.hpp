// SPDX-License-Identifier: Apache-2.0
// Launches and copies that the host does not wait for, for host code.
#pragma once
#include <cstddef>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/platform.hpp"
#if GPUFS_ON_CUDA
#include "gpufs/simt/detail/cuda_stream.hpp"
#else
#include "gpufs/simt/detail/cpu_stream.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Kernels and copies of one device that run one after another, in the order of the calls, while the host goes on. The destructor
// waits, and prints errors to stderr that no call has reported.
class stream {
 public:
  explicit stream(platform& device = this_platform()) : device_(device), turns_(device) {}
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
#if GPUFS_ON_CUDA
  ~stream() { turns_.wait_and_say(); }
#endif

  platform& device() const { return device_; }

  // Like platform's copies, but after the stream's earlier work. Both sides must stay until the copy is done. The host's side is
  // pinned memory (pinned_array); with other memory the call may wait on CUDA.
  void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) const {
#if GPUFS_ON_CUDA
    turns_.copy_to_device(device_dst, src, nbytes);
#else
    turns_.enqueue([=, &on = device_] { on.copy_to_device(device_dst, src, nbytes); });
#endif
  }
  void copy_from_device(void* dst, const void* device_src, std::size_t nbytes) const {
#if GPUFS_ON_CUDA
    turns_.copy_from_device(dst, device_src, nbytes);
#else
    turns_.enqueue([=, &on = device_] { on.copy_from_device(dst, device_src, nbytes); });
#endif
  }

  // Waits until all launches and copies have ended. Throws what the first one that failed would throw; on the CPU machine, later
  // ones have not run then.
  void wait() const { turns_.wait(); }
#if GPUFS_ON_CUDA
  // For CUDA's own calls, and for <<<...>>>, with device() as the current device. This stream does not wait for the default stream,
  // nor the default stream for this one.
  CUstream_st* get() const { return turns_.stream(); }
#else
  const runtime::cpu_stream& get() const { return turns_; }
#endif

 private:
  platform& device_;
#if GPUFS_ON_CUDA
  runtime::cuda_stream_lease turns_;
#else
  runtime::cpu_stream turns_;
#endif
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
