// SPDX-License-Identifier: Apache-2.0
// A kernel in C that includes gpufs_device.h and nothing else: nvcc compiles it, and nvlink links it with the LTO-IR.
#include "gpufs/gpufs_device.h"

extern "C" __global__ void read_first_page(gpufs_mount fs, const char* path, void* room, int64_t* n) {
  const gpufs_file file = gpufs_open_warp(fs, path, GPUFS_O_RDONLY);
  *n = gpufs_pread_warp(fs, file, room, 4096, 0);
  gpufs_close_warp(fs, file);
}
