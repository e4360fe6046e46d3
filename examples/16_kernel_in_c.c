// SPDX-License-Identifier: Apache-2.0
// A program in C: a mount by gpufs/gpufs.h, and on the CPU machine a kernel that calls gpufs/gpufs_device.h. For a GPU the
// kernel is a __global__ function, which nvcc compiles and links with gpufs's device code: 16_kernel_in_c.cu is that, and has all
// else from here.
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE  // mkdtemp
#endif
#include <gpufs/gpufs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { GRID = 2, BLOCK = 64, NTHREADS = GRID * BLOCK, PAGE_NBYTES = 4096 };

// What kernels are given: numbers, and memory that all threads see.
struct count {
  gpufs_mount fs;
  int64_t nlines[NTHREADS];
  int32_t errors[NTHREADS];
};

// Each warp counts the lines of every so many-th page, each thread of it those of every 32nd byte.
GPUFS_C_DEVICE static int32_t count_pages(struct count* count, gpufs_file file, int64_t* nlines) {
  const uint32_t warps_a_block = gpufs_size_block() / gpufs_size_warp();
  const int64_t nwarps = (int64_t)gpufs_grid_size() * warps_a_block;
  const int64_t me = (int64_t)gpufs_block_rank() * warps_a_block + gpufs_rank_block() / gpufs_size_warp();
  gpufs_status status;
  const int32_t error = gpufs_fstat_warp(count->fs, file, &status);
  if (error != 0) return error;  // also that of an open that failed
  for (int64_t at = me * PAGE_NBYTES; at < status.nbytes; at += nwarps * PAGE_NBYTES) {
    gpufs_page page;
    const int32_t failed = gpufs_map_page_warp(count->fs, file, at, &page);
    if (failed != 0) return failed;
    const char* const text = (const char*)page.data;
    for (uint32_t i = gpufs_rank_warp(); i < page.nbytes; i += gpufs_size_warp()) *nlines += text[i] == '\n';
    gpufs_unmap_page_warp(&page);
  }
  return 0;
}

GPUFS_C_DEVICE static void count_lines(void* argument) {
  struct count* const count = (struct count*)argument;
  const uint32_t thread = gpufs_block_rank() * gpufs_size_block() + gpufs_rank_block();
  const gpufs_file file = gpufs_open_warp(count->fs, "text", GPUFS_O_RDONLY);
  count->errors[thread] = count_pages(count, file, &count->nlines[thread]);
  gpufs_close_warp(count->fs, file);
}

// Runs count_lines by all threads of the grid, and returns 0.
static int launch(struct count* count);
#ifndef EXAMPLE_FOR_A_GPU
enum { MACHINE = GPUFS_CPU_MACHINE };
static int launch(struct count* count) { return gpufs_launch_cpu(count_lines, count, GRID, BLOCK); }
#endif

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, gpufs_last_error());
  return 1;
}

int main(void) {
  char folder[] = "/tmp/gpufs-example-XXXXXX", path[64];
  if (mkdtemp(folder) == NULL) return fail("mkdtemp");
  snprintf(path, sizeof path, "%s/text", folder);
  FILE* const text = fopen(path, "w");
  if (text == NULL) return fail("fopen");
  int64_t expected = 0, found = 0;
  for (; expected < 20000; ++expected) fprintf(text, "line %ld\n", (long)expected);
  fclose(text);

  gpufs_host_mount* mount = NULL;
  const gpufs_value options[] = {{"cache_nbytes", 1 << 20}, {NULL, 0}};
  if (gpufs_mount_create(folder, MACHINE, options, &mount) != 0) return fail("gpufs_mount_create");
  static struct count count;
  count.fs = gpufs_mount_handle(mount);
  if (launch(&count) != 0) return fail("launch");
  gpufs_value faults[] = {{"faults", 0}, {NULL, 0}};
  gpufs_mount_counters(mount, faults);
  gpufs_mount_destroy(mount);
  unlink(path);
  rmdir(folder);

  for (int i = 0; i < NTHREADS; ++i) {
    if (count.errors[i] != 0) return fprintf(stderr, "thread %d: errno %d\n", i, -count.errors[i]), 1;
    found += count.nlines[i];
  }
  printf("%ld lines, expected %ld; %ld pages were read\n", (long)found, (long)expected, (long)faults[0].value);
  return found == expected ? 0 : 1;
}
