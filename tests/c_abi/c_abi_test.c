// SPDX-License-Identifier: Apache-2.0
// gpufs as C programs use it: a mount by gpufs.h, kernels of threads, warps and blocks by gpufs_device.h, and their bytes against
// what POSIX calls see. gcc compiles this for the CPU machine; c_abi_test.cu includes it for CUDA.
#ifndef _DEFAULT_SOURCE  // g++ has it
#define _DEFAULT_SOURCE
#endif
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
static void check_launches(void);

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
static void open_input(void* mount) { gpufs_open_warp(*(gpufs_mount*)mount, "input", GPUFS_O_RDONLY); }
// Launches are device 0's here, so a mount of device 1 is refused.
static void check_devices(void) {
  gpufs_host_mount* mount = NULL;
  for (uint64_t device = 0; device < 2; ++device) {
    const gpufs_value options[] = {{"device", device}, {"cache_nbytes", 1 << 20}, {NULL, 0}};
    check(gpufs_mount_create(root, machine(), options, &mount) == 0, "a mount on a device");
    gpufs_mount fs = gpufs_mount_handle(mount);
    check(gpufs_launch_cpu(open_input, &fs, 1, 32) == (device == 0 ? 0 : -ECANCELED), "a launch on device 0");
    check(device == 0 || strstr(gpufs_last_error(), "with what is device 1's") != NULL, "the mount's device in the error");
    gpufs_mount_destroy(mount);
  }
}
static void wait_for_others(void* argument) {
  (void)argument;
  if (gpufs_rank_block() != 5) gpufs_sync_warp();
}
static void check_launches(void) {
  check(gpufs_launch_cpu(NULL, NULL, 1, 32) == -EFAULT, "no kernel");
  check(gpufs_launch_cpu(wait_for_others, NULL, 1, 31) == -EINVAL, "a geometry that is refused");
  check(gpufs_launch_cpu(wait_for_others, NULL, 1, 32) == -ECANCELED, "a warp of which one thread does not come");
  check(strstr(gpufs_last_error(), "lane 5") != NULL, "the thread's name in the error");
  check_devices();
}
#endif

static void prepare(struct group_job* job, gpufs_host_mount* mount, const char* kind, int i) {
  job->fs = gpufs_mount_handle(mount);
  snprintf(job->draft, PATH_NBYTES, "draft-%s-%d", kind, i);
  snprintf(job->folder, PATH_NBYTES, "folder-%s-%d", kind, i);
  snprintf(job->output, PATH_NBYTES, "folder-%s-%d/output", kind, i);
  snprintf(job->many, PATH_NBYTES, "many-%s-%d", kind, i);
  check(mkdir(path_of(job->many), 0700) == 0, "mkdir");
  for (int file = 0; file < MANY; ++file) {
    char name[2 * PATH_NBYTES];
    snprintf(name, sizeof name, "%s/file%d", job->many, file);
    write_file(name, "0123456789", (size_t)file);
  }
}

static void check_output(const char* name) {
  unsigned char bytes[WRITTEN_NBYTES + 1];
  const int fd = open(path_of(name), O_RDONLY);
  check(fd >= 0 && read(fd, bytes, sizeof bytes) == WRITTEN_NBYTES && close(fd) == 0, "the size of what was written");
  for (uint32_t at = 0; at < WRITTEN_NBYTES; ++at) {
    const int was_mapped = at >= MAPPED_OFFSET && at < MAPPED_OFFSET + MAPPED_NBYTES;
    check(bytes[at] == (was_mapped ? mapped_byte(at - MAPPED_OFFSET) : written_byte(at)), "bytes written");
  }
}

static void run(gpufs_host_mount* mount, const char* kind, kernel_of_jobs kernel, int ngroups, unsigned grid, unsigned block) {
  struct group_job* const jobs = (struct group_job*)calloc(MAX_GROUPS, sizeof *jobs);
  for (int i = 0; i < ngroups; ++i) prepare(&jobs[i], mount, kind, i);
  launch(kernel, jobs, grid, block);
  for (int i = 0; i < ngroups; ++i) {
    const struct group_job* const job = &jobs[i];
    if (job->failed_line != 0) fprintf(stderr, "%s %d: steps.h:%ld: %ld\n", kind, i, (long)job->failed_line, (long)job->got);
    check(job->failed_line == 0 && job->done == 1, kind);
    for (long at = 0; at < READ_NBYTES; ++at) check(job->read[at] == input_byte(READ_OFFSET + at), "bytes read");
    for (long at = 0; at < LATE_NBYTES; ++at) check(job->late[at] == input_byte(LATE_OFFSET + at), "bytes read by read_async");
    check_output(job->output);
    check(access(path_of(job->many), F_OK) != 0, "a removed directory");
    check(unlink(path_of(job->output)) == 0 && rmdir(path_of(job->folder)) == 0, "cleaning up");
  }
  free(jobs);
}

static uint64_t counter(const gpufs_host_mount* mount, const char* name) {
  gpufs_value wanted[] = {{name, ~(uint64_t)0}, {NULL, 0}};
  check(gpufs_mount_counters(mount, wanted) == 0, name);
  return wanted[0].value;
}

// What the host's calls refuse, and how they say it.
static void make_mistakes(void) {
  gpufs_host_mount* mount = NULL;
  const gpufs_value unknown[] = {{"cache_bytes", 1}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), unknown, &mount) == -EINVAL && mount == NULL, "an unknown option");
  check(strstr(gpufs_last_error(), "cache_bytes") != NULL, "the option's name in the error");
  const gpufs_value too_much[] = {{"page_nbytes", (uint64_t)1 << 32}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), too_much, &mount) == -EINVAL, "an option that does not fit");
  const gpufs_value odd[] = {{"page_nbytes", 5000}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), odd, &mount) == -EINVAL, "an option that is refused");
  const gpufs_value no_memory[] = {{"cache_memory_nbytes", 1 << 20}, {"cache_memory", 0}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), no_memory, &mount) == -EFAULT, "memory for the cache that is none");
  const gpufs_value no_store[] = {{"store", ~(uint64_t)0}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), no_store, &mount) == -EINVAL, "an enumerator that does not fit");
  const gpufs_value no_answer[] = {{"on_failed_accesses", ~(uint64_t)0}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), no_answer, &mount) == -EINVAL, "another that does not fit");
  const gpufs_value too_large[] = {{"cache_nbytes", (uint64_t)1 << 40}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), too_large, &mount) == -ENOMEM, "a cache larger than the memory");
  const gpufs_value no_device[] = {{"device", 99}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), no_device, &mount) == -ENODEV, "no such device");
  check(strstr(gpufs_last_error(), "there is no device 99") != NULL, "the device's number in the error");
  check(gpufs_mount_create(path_of("nowhere"), machine(), NULL, &mount) == -ENOENT, "no such root");
  check(gpufs_mount_create(path_of("input"), machine(), NULL, &mount) == -ENOTDIR, "a file for a root");
  check(gpufs_mount_create(NULL, machine(), NULL, &mount) == -EFAULT, "no root");
  check(gpufs_mount_create(root, 99, NULL, &mount) == -ENODEV, "no such machine");
  check(gpufs_mount_handle(NULL) == 0, "a handle of no mount");
  check(gpufs_mount_sync(NULL) == -EFAULT, "a sync of no mount");
  check(gpufs_mount_prepare(NULL, "input", O_RDONLY) == -EFAULT, "gpufs_mount_prepare without a mount");
  gpufs_value no_counters[] = {{NULL, 0}};
  check(gpufs_mount_counters(NULL, no_counters) == -EFAULT, "counters of no mount");
  gpufs_mount_destroy(NULL);
}

int main(void) {
  check(setenv("GPUFS_SIMT_DEVICES", "2", 1) == 0, "setenv");  // mounts are made on two
  check(mkdtemp(root) != NULL, "mkdtemp");
  write_input();
  check(gpufs_abi_version() == GPUFS_C_ABI_VERSION, "the version");
  make_mistakes();
  gpufs_host_mount* mount = NULL;
  const gpufs_value options[] = {{"cache_nbytes", 4 << 20}, {"writable", 1}, {NULL, 0}};
  check(gpufs_mount_create(root, machine(), options, &mount) == 0, "gpufs_mount_create");
  run(mount, "thread", by_threads, 32, 1, 32);
  run(mount, "warp", by_warps, 4, 1, 128);
  run(mount, "block", by_blocks, 2, 2, 64);

  check(gpufs_mount_prepare(mount, "input", O_RDONLY) == 0, "gpufs_mount_prepare");
  check(gpufs_mount_prepare(mount, "nothing", O_RDONLY) == -ENOENT, "gpufs_mount_prepare of nothing");
  check(gpufs_mount_sync(mount) == 0, "gpufs_mount_sync");
  check(counter(mount, "bytes_read") > 0 && counter(mount, "bytes_written") > 0, "counters");
  check(counter(mount, "pins") == 0 && counter(mount, "unwritten_pages") == 0, "nothing is left");
  gpufs_value no_counter[] = {{"no_counter", 0}, {NULL, 0}};
  check(gpufs_mount_counters(mount, no_counter) == -EINVAL, "an unknown counter");
  check(gpufs_mount_counters(mount, NULL) == -EFAULT, "no counters");
  gpufs_mount_destroy(mount);
  check_launches();
  check(unlink(path_of("input")) == 0 && rmdir(root) == 0, "cleaning up");
  printf("ok\n");
  return 0;
}
