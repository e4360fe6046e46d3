// SPDX-License-Identifier: Apache-2.0
// A kernel that knows gpufs by its C header alone.
#include <gpufs/gpufs_device.h>

extern "C" __global__ void read_first(gpufs_mount fs, char* first, int64_t* n) {
  const gpufs_file file = gpufs_open_block(fs, "CMakeLists.txt", GPUFS_O_RDONLY);
  *n = gpufs_pread_block(fs, file, first, 1, 0);
  gpufs_close_block(fs, file);
}
