// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>
#include <string>

namespace gpufs::simt::runtime {

// "cudaErrorInvalidValue (invalid argument)". Also clears the thread's last error, so that the next check does not see it.
inline std::string cuda_error_text(cudaError_t error) {
  cudaGetLastError();
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

}  // namespace gpufs::simt::runtime
