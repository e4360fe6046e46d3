// SPDX-License-Identifier: Apache-2.0
// on_gpu PROGRAM ARGS...: becomes PROGRAM where there is a GPU, else says so and exits with 77, which CTest shows as a
// skipped test.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  int ngpus = 0;
  const cudaError_t err = cudaGetDeviceCount(&ngpus);
  if (err != cudaSuccess || ngpus == 0) {
    std::printf("skipped: no GPU (%s)\n", err == cudaSuccess ? "none found" : cudaGetErrorString(err));
    return 77;
  }
  if (argc < 2) return 0;
  execv(argv[1], argv + 1);
  std::perror(argv[1]);
  return 1;
}
