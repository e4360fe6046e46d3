// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/simt/schedule.hpp"

struct CUstream_st;

namespace gpufs::simt {
namespace runtime {

void check_launch_config(const launch_config& config);  // throws launch_error

// A non-blocking stream of the current device for one launch (src/simt/cuda_platform.cpp).
class cuda_stream_lease {
 public:
  cuda_stream_lease();
  ~cuda_stream_lease();
  cuda_stream_lease(const cuda_stream_lease&) = delete;
  cuda_stream_lease& operator=(const cuda_stream_lease&) = delete;
  CUstream_st* stream() const { return stream_; }
  void check_launched() const;  // throws launch_error
  void wait() const;            // for what was launched; throws launch_error

 private:
  int device_ = 0;
  CUstream_st* stream_ = nullptr;
};

}  // namespace runtime

}  // namespace gpufs::simt
