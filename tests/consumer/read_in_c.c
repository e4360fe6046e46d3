// SPDX-License-Identifier: Apache-2.0
// Reads the first byte of this project's own CMakeLists.txt in a kernel in C.
#include <gpufs/gpufs.h>
#include <stdio.h>

struct read {
  gpufs_mount fs;
  int64_t n;
  char first;
};

static void read_first(void* argument) {
  struct read* const what = argument;
  const gpufs_file file = gpufs_open_block(what->fs, "CMakeLists.txt", GPUFS_O_RDONLY);
  const int64_t n = gpufs_pread_block(what->fs, file, &what->first, 1, 0);
  gpufs_close_block(what->fs, file);
  if (gpufs_rank_block() == 0) what->n = n;
}

int main(int argc, char** argv) {
  gpufs_host_mount* mount = NULL;
  if (gpufs_mount_create(argc > 1 ? argv[1] : ".", GPUFS_CPU_MACHINE, NULL, &mount) != 0) {
    fprintf(stderr, "%s\n", gpufs_last_error());
    return 1;
  }
  struct read what = {gpufs_mount_handle(mount), 0, 0};
  const int32_t error = gpufs_launch_cpu(read_first, &what, 1, 64);
  gpufs_mount_destroy(mount);
  printf("%d: %ld byte, '%c'\n", (int)error, (long)what.n, what.first);
  return error == 0 && what.n == 1 && what.first == '#' ? 0 : 1;
}
