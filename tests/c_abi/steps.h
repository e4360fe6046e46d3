// SPDX-License-Identifier: Apache-2.0
// What a group of the kind GROUP does, by the calls of its kind; included once for each kind. C, and C++ for nvcc.

STEPS_FUNCTION int STEPS(read_input)(struct group_job* job) {
  const gpufs_file f = G(open)(job->fs, "input", GPUFS_O_RDONLY);
  EXPECT(f, f >= 0);
  EXPECT_EQUAL(G(pread)(job->fs, f, job->read, READ_NBYTES, READ_OFFSET), READ_NBYTES);
  EXPECT_EQUAL(G(pread)(job->fs, f, job->tail, TAIL_NBYTES, INPUT_NBYTES - 10), 10);
  EXPECT_EQUAL(G(pread)(job->fs, f, job->tail, TAIL_NBYTES, INPUT_NBYTES), 0);
  EXPECT_EQUAL(G(close)(job->fs, f), 0);
  return 0;
}

STEPS_FUNCTION int STEPS(all)(struct group_job* job) {
  EXPECT_EQUAL(gpufs_device_abi_version(), GPUFS_C_ABI_VERSION);
  if (STEPS(read_input)(job) != 0) return 1;
  job->done = 1;
  return 0;
}
