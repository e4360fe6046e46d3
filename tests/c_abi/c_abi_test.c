// SPDX-License-Identifier: Apache-2.0
// gpufs as C programs use it: a mount by gpufs.h, kernels of threads, warps and blocks by gpufs_device.h, and their bytes against
// what POSIX calls see. gcc compiles this for the CPU machine; c_abi_test.cu includes it for CUDA.
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpufs/gpufs.h"
#include "kernels.h"

enum { MAX_GROUPS = 32 };

static char root[] = "/tmp/gpufs-c-abi-XXXXXX";

static void check(int is_right, const char* what) {
  if (is_right) return;
  fprintf(stderr, "WRONG: %s (last error: %s)\n", what, gpufs_last_error());
  exit(1);
}

static const char* path_of(const char* name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", root, name);
  return path;
}

static unsigned char input_byte(long at) { return (unsigned char)(at * 31 + at / 251); }

static void write_file(const char* name, const void* bytes, size_t nbytes) {
  const int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  check(fd >= 0 && write(fd, bytes, nbytes) == (ssize_t)nbytes && close(fd) == 0, name);
}

static void write_input(void) {
  unsigned char* const bytes = (unsigned char*)malloc(INPUT_NBYTES);
  for (long i = 0; i < INPUT_NBYTES; ++i) bytes[i] = input_byte(i);
  write_file("input", bytes, INPUT_NBYTES);
  free(bytes);
}

// The machine's: runs the kernel on its own copy of the jobs, which come back.
typedef void (*kernel_of_jobs)(struct group_job* jobs);
static int machine(void);
static void launch(kernel_of_jobs kernel, struct group_job* jobs, unsigned grid, unsigned block);

#ifndef __CUDACC__
static int machine(void) { return GPUFS_CPU_MACHINE; }
struct launched {
  kernel_of_jobs kernel;
  struct group_job* jobs;
};
static void run_launched(void* argument) {
  const struct launched* const what = (const struct launched*)argument;
  what->kernel(what->jobs);
}
static void launch(kernel_of_jobs kernel, struct group_job* jobs, unsigned grid, unsigned block) {
  struct launched what = {kernel, jobs};
  check(gpufs_launch_cpu(run_launched, &what, grid, block) == 0, "gpufs_launch_cpu");
}
#endif

static void run(gpufs_host_mount* mount, const char* kind, kernel_of_jobs kernel, int ngroups, unsigned grid, unsigned block) {
  struct group_job* const jobs = (struct group_job*)calloc(MAX_GROUPS, sizeof *jobs);
  for (int i = 0; i < ngroups; ++i) jobs[i].fs = gpufs_mount_handle(mount);
  launch(kernel, jobs, grid, block);
  for (int i = 0; i < ngroups; ++i) {
    const struct group_job* const job = &jobs[i];
    if (job->failed_line != 0) fprintf(stderr, "%s %d: steps.h:%ld: %ld\n", kind, i, (long)job->failed_line, (long)job->got);
    check(job->failed_line == 0 && job->done == 1, kind);
    for (long at = 0; at < READ_NBYTES; ++at) check(job->read[at] == input_byte(READ_OFFSET + at), "bytes read");
    for (long at = 0; at < 10; ++at) check(job->tail[at] == input_byte(INPUT_NBYTES - 10 + at), "bytes at the end of the file");
  }
  free(jobs);
}

int main(void) {
  check(mkdtemp(root) != NULL, "mkdtemp");
  write_input();
  gpufs_host_mount* mount = NULL;
  const gpufs_value options[] = {{"cache_nbytes", 4 << 20}, {"writable", 1}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), options, &mount) == 0, "gpufs_mount_create");
  run(mount, "thread", by_threads, 32, 1, 32);
  run(mount, "warp", by_warps, 4, 1, 128);
  run(mount, "block", by_blocks, 2, 2, 64);
  gpufs_mount_destroy(mount);
  printf("ok\n");
  return 0;
}
