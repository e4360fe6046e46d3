// SPDX-License-Identifier: Apache-2.0
// c_abi_test for CUDA: the same C, linked with lib/gpufs's device code.
#include <cuda_runtime.h>

#include "c_abi_test.c"

static int machine(void) { return GPUFS_CUDA_MACHINE; }

static void launch(kernel_of_jobs kernel, struct group_job* jobs, unsigned grid, unsigned block) {
  struct group_job* on_device = NULL;
  const size_t nbytes = MAX_GROUPS * sizeof *jobs;
  check(cudaMalloc(&on_device, nbytes) == cudaSuccess, "cudaMalloc");
  check(cudaMemcpy(on_device, jobs, nbytes, cudaMemcpyHostToDevice) == cudaSuccess, "cudaMemcpy");
  kernel<<<grid, block>>>(on_device);
  check(cudaDeviceSynchronize() == cudaSuccess, "the kernel");
  check(cudaMemcpy(jobs, on_device, nbytes, cudaMemcpyDeviceToHost) == cudaSuccess, "cudaMemcpy");
  check(cudaFree(on_device) == cudaSuccess, "cudaFree");
}

static void check_launches(void) {}  // CUDA's own
