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

// Kernels and copies of one device that run one after another, in the order in which they came, while the host goes on. One that
// ends waits, and says on stderr what went wrong, if nobody has been told.
class stream {
 public:
  explicit stream(platform& device = this_platform()) : device_(device), turns_(device) {}
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
#if GPUFS_ON_CUDA
  ~stream() { turns_.wait_and_say(); }
#endif

  platform& device() const { return device_; }

  // As platform's copies, in the stream's turn. Both sides must stay until then; the host's is pinned memory (pinned_array), or on
  // CUDA the call may wait.
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

  // Until all that was launched and copied has ended. Throws what launch and the copies do, for the first that failed; on the CPU
  // machine what came behind it has not run then.
  void wait() const { turns_.wait(); }
#if GPUFS_ON_CUDA
  // For CUDA's own calls, and for <<<...>>>, with device() as the current one. It does not wait for the default stream, nor that
  // for it.
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
