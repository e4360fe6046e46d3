// SPDX-License-Identifier: Apache-2.0
// The kernels of c_abi_test: plain C that includes gpufs_device.h and nothing else of gpufs. gcc compiles them for the CPU machine,
// nvcc for CUDA.
#ifndef GPUFS_TESTS_C_ABI_KERNELS_H
#define GPUFS_TESTS_C_ABI_KERNELS_H
#include <errno.h>

#include "gpufs/gpufs_device.h"

enum {
  INPUT_NBYTES = 100000,  // of the file "input"
  READ_OFFSET = 1000,
  READ_NBYTES = 20000,
  TAIL_NBYTES = 64,
};

// What one group does, and finds. In memory that all of its threads use.
struct group_job {
  gpufs_mount fs;
  int64_t failed_line, got;  // of the first that was not as expected
  int32_t done;
  unsigned char read[READ_NBYTES], tail[TAIL_NBYTES];
};

#ifdef __CUDACC__
#define STEPS_FUNCTION static __device__
#else
#define STEPS_FUNCTION static
#endif
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
STEPS_FUNCTION void by_threads(struct group_job* jobs) { steps_all_thread(&jobs[gpufs_rank_block()]); }
STEPS_FUNCTION void by_warps(struct group_job* jobs) { steps_all_warp(&jobs[gpufs_rank_block() / gpufs_size_warp()]); }
STEPS_FUNCTION void by_blocks(struct group_job* jobs) { steps_all_block(&jobs[gpufs_block_rank()]); }

#endif
