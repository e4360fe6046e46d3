// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "gpufs/simt/platform.hpp"
#include "gpufs/simt/schedule.hpp"

struct CUstream_st;

namespace gpufs::simt {
namespace runtime {

void cuda_check_launched();  // throws launch_error if the kernel that this thread has just launched did not start

// For kernels that were compiled elsewhere. entry: the host function; arguments: the addresses of the arguments.
void cuda_launch_cooperatively(const void* entry, const launch_config& config, void** arguments, CUstream_st* stream);
unsigned cuda_max_cooperative_grid(const void* entry, unsigned block);  // on the current device
void cuda_load(const void* entry);                                      // on the current device; throws launch_error

bool cuda_is_idle();  // whether no lent stream has anything under way

// A non-blocking stream of a device, for one launch or for the life of a simt::stream (src/simt/cuda_stream.cpp).
class cuda_stream_lease {
 public:
  explicit cuda_stream_lease(platform& device);
  ~cuda_stream_lease();
  cuda_stream_lease(const cuda_stream_lease&) = delete;
  cuda_stream_lease& operator=(const cuda_stream_lease&) = delete;
  CUstream_st* stream() const { return stream_; }
  void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) const;  // begins it; throws launch_error
  void copy_from_device(void* dst, const void* device_src, std::size_t nbytes) const;
  void wait() const;                   // for all launches; throws launch_error
  void wait_and_say() const noexcept;  // the same; prints errors to stderr

 private:
  platform& device_;
  CUstream_st* stream_ = nullptr;
};

}  // namespace runtime

}  // namespace gpufs::simt
