// SPDX-License-Identifier: Apache-2.0
// Streams for launches. They are kept for the life of the process, because destroying one may wait for other work of the device.
#include <cuda_runtime_api.h>
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_error.hpp"
#include "gpufs/simt/detail/cuda_stream.hpp"
#include "gpufs/simt/detail/launch_end.hpp"
#include "gpufs/simt/schedule.hpp"

namespace gpufs::simt::runtime {
namespace {

struct pool {
  std::mutex mutex;
  std::vector<std::pair<const platform*, cudaStream_t>> streams;  // that nobody has, with their device
  std::vector<cudaStream_t> lent;
};
pool& the_pool() {
  static pool* p = new pool;
  return *p;
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw launch_error(std::string(what) + ": " + cuda_error_text(error));
}

}  // namespace

cuda_stream_lease::cuda_stream_lease(platform& device) : device_(device) {
  {
    pool& p = the_pool();
    const std::lock_guard lock(p.mutex);
    for (auto& entry : p.streams) {
      if (entry.first != &device_) continue;
      p.lent.push_back(entry.second);
      stream_ = entry.second;
      entry = p.streams.back();
      p.streams.pop_back();
      return;
    }
  }
  const on_device here(device_);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cannot make a stream");
  pool& p = the_pool();
  const std::lock_guard lock(p.mutex);
  p.lent.push_back(stream_);
}

cuda_stream_lease::~cuda_stream_lease() {
  pool& p = the_pool();
  const std::lock_guard lock(p.mutex);
  std::erase(p.lent, stream_);
  p.streams.emplace_back(&device_, stream_);
}

bool cuda_is_idle() {
  pool& p = the_pool();
  const std::lock_guard lock(p.mutex);
  return std::none_of(p.lent.begin(), p.lent.end(), [](cudaStream_t each) {
    // A stream that is captured must not be asked.
    cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(each, &captured);
    if (error == cudaSuccess && captured != cudaStreamCaptureStatusNone) return true;
    if (error == cudaSuccess) error = cudaStreamQuery(each);
    if (error != cudaSuccess) cudaGetLastError();  // else the next launch would take it for its own
    return error != cudaSuccess;
  });
}

void cuda_check_launched() { check(cudaGetLastError(), "the kernel was not launched"); }

void cuda_launch_cooperatively(const void* entry, const launch_config& config, void** arguments, CUstream_st* stream) {
  const cudaError_t error = cudaLaunchCooperativeKernel(entry, dim3(config.grid), dim3(config.block), arguments, 0, stream);
  check(error, "the kernel was not launched");
}

unsigned cuda_max_cooperative_grid(const void* entry, unsigned block) {
  int device = 0, nprocessors = 0, nblocks = 0;
  check(cudaGetDevice(&device), "no device to launch on");
  check(cudaDeviceGetAttribute(&nprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&nblocks, entry, static_cast<int>(block), 0), "how many blocks fit");
  return static_cast<unsigned>(nprocessors * nblocks);
}

void cuda_load(const void* entry) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, entry), "the kernel cannot be loaded");
}

void cuda_stream_lease::copy_to_device(void* device_dst, const void* src, std::size_t nbytes) const {
  const on_device here(device_);
  check(cudaMemcpyAsync(device_dst, src, nbytes, cudaMemcpyHostToDevice, stream_), "copy to the device");
}

void cuda_stream_lease::copy_from_device(void* dst, const void* device_src, std::size_t nbytes) const {
  const on_device here(device_);
  check(cudaMemcpyAsync(dst, device_src, nbytes, cudaMemcpyDeviceToHost, stream_), "copy from the device");
}

void cuda_stream_lease::wait() const {
  const cudaError_t error = cudaStreamSynchronize(stream_);
  tell_launch_ended();
  check(error, "the kernel failed");
}

void cuda_stream_lease::wait_and_say() const noexcept {
  const cudaError_t error = cudaStreamSynchronize(stream_);
  tell_launch_ended();
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpufs: a stream ends, and nobody has waited for a kernel that failed: %s\n", cudaGetErrorName(error));
}

}  // namespace gpufs::simt::runtime
