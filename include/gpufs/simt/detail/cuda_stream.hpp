// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/simt/schedule.hpp"

struct CUstream_st;

namespace gpufs::simt {
namespace runtime {

void cuda_check_launched();  // throws launch_error: what this thread has just launched did not start

// A non-blocking stream of the current device, for one launch or for the life of a simt::stream (src/simt/cuda_stream.cpp).
class cuda_stream_lease {
 public:
  cuda_stream_lease();
  ~cuda_stream_lease();
  cuda_stream_lease(const cuda_stream_lease&) = delete;
  cuda_stream_lease& operator=(const cuda_stream_lease&) = delete;
  CUstream_st* stream() const { return stream_; }
  void wait() const;                   // for what was launched; throws launch_error
  void wait_and_say() const noexcept;  // the same; what went wrong is said on stderr

 private:
  int device_ = 0;
  CUstream_st* stream_ = nullptr;
};

}  // namespace runtime

}  // namespace gpufs::simt
