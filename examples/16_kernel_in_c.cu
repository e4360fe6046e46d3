// SPDX-License-Identifier: Apache-2.0
// 16_kernel_in_c.c for a GPU: the same C, compiled by nvcc and linked with gpufs's device code (docs/guide/c.md). CUDA only.
#include <cuda_runtime.h>
#include <gpufs/gpufs.h>

#define EXAMPLE_FOR_A_GPU
enum { MACHINE = GPUFS_CUDA_MACHINE };
#include "16_kernel_in_c.c"

__global__ void count_lines_on_gpu(struct count* count) { count_lines(count); }

// gpufs says nothing of what CUDA refuses, so this does.
static int launch(struct count* count) {
  struct count* on_gpu = NULL;
  cudaError_t error = cudaMalloc(&on_gpu, sizeof *count);
  if (error == cudaSuccess) error = cudaMemcpy(on_gpu, count, sizeof *count, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) {
    count_lines_on_gpu<<<GRID, BLOCK>>>(on_gpu);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaMemcpy(count, on_gpu, sizeof *count, cudaMemcpyDeviceToHost);
  cudaFree(on_gpu);
  if (error != cudaSuccess) fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  return error == cudaSuccess ? 0 : 1;
}
