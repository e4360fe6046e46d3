// SPDX-License-Identifier: Apache-2.0
// The kernels of c_abi_test: plain C that includes gpufs_device.h and nothing else of gpufs. gcc compiles them for the CPU machine,
// nvcc for CUDA.
#ifndef GPUFS_TESTS_C_ABI_KERNELS_H
#define GPUFS_TESTS_C_ABI_KERNELS_H
#include <errno.h>

#include "gpufs/gpufs_device.h"

enum {
  PAGE_NBYTES = 4096,
  INPUT_NBYTES = 100000,  // of the file "input"
  READ_OFFSET = 1000,
  READ_NBYTES = 20000,
  TAIL_NBYTES = 64,
  LATE_OFFSET = 50000,
  LATE_NBYTES = 30000,
  WRITTEN_NBYTES = 9000,
  APPEND_OFFSET = 5000,
  MAPPED_OFFSET = 6000,
  MAPPED_NBYTES = 100,
  UPDATED_NBYTES = 4 * PAGE_NBYTES,
  MANY = 5,  // files in each group's own directory
  ENTRIES_NBYTES = 1024,
  PATH_NBYTES = 64
};

// What one group does, and finds. In memory that all of its threads use.
struct group_job {
  gpufs_mount fs;
  char draft[PATH_NBYTES], folder[PATH_NBYTES], output[PATH_NBYTES], many[PATH_NBYTES];
  int64_t failed_line, got;  // of the first that was not as expected
  int32_t done;
  unsigned char read[READ_NBYTES], tail[TAIL_NBYTES], late[LATE_NBYTES], written[WRITTEN_NBYTES];
  uint64_t entries[ENTRIES_NBYTES / 8], more[ENTRIES_NBYTES / 8];
  const char* names[MANY + 1];
  gpufs_file files[MANY];
  int32_t results[MANY];
  char path[2 * PATH_NBYTES];
};

#ifdef __CUDACC__
#define STEPS_FUNCTION static __device__
#define BOTH_FUNCTION static __host__ __device__
#define KERNEL static __global__
#else
#define STEPS_FUNCTION static
#define BOTH_FUNCTION static
#define KERNEL static
#endif

BOTH_FUNCTION unsigned char written_byte(uint32_t at) { return (unsigned char)(at * 7 + 3); }
BOTH_FUNCTION unsigned char mapped_byte(uint32_t at) { return (unsigned char)(255 - at); }

STEPS_FUNCTION void join(char* path, const char* folder, const char* name) {
  while (*folder != 0) *path++ = *folder++;
  *path++ = '/';
  while ((*path++ = *name++) != 0) {
  }
}

#define EXPECT(value, is_right)    \
  do {                             \
    if (!(is_right)) {             \
      job->failed_line = __LINE__; \
      job->got = (int64_t)(value); \
      return 1;                    \
    }                              \
  } while (0)
#define EXPECT_EQUAL(call, expected)       \
  do {                                     \
    const int64_t value = (int64_t)(call); \
    EXPECT(value, value == (expected));    \
  } while (0)
#define PASTE_(a, b, c) a##b##_##c
#define PASTE(a, b, c) PASTE_(a, b, c)
#define G(name) PASTE(gpufs_, name, GROUP)
#define STEPS(name) PASTE(steps_, name, GROUP)

#define GROUP thread
#include "steps.h"
#undef GROUP
#define GROUP warp
#include "steps.h"
#undef GROUP
#define GROUP block
#include "steps.h"
#undef GROUP

// Each has an array of jobs, one a group.
KERNEL void by_threads(struct group_job* jobs) { steps_all_thread(&jobs[gpufs_rank_block()]); }
KERNEL void by_warps(struct group_job* jobs) { steps_all_warp(&jobs[gpufs_rank_block() / gpufs_size_warp()]); }
KERNEL void by_blocks(struct group_job* jobs) { steps_all_block(&jobs[gpufs_block_rank()]); }

#endif
