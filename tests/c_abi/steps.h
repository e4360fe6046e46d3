// SPDX-License-Identifier: Apache-2.0
// What a group of the kind GROUP does, by the calls of its kind; included once for each kind. C, and C++ for nvcc.

STEPS_FUNCTION int STEPS(read_input)(struct group_job* job) {
  const gpufs_file f = G(open)(job->fs, "input", GPUFS_O_RDONLY);
  EXPECT(f, f >= 0);
  EXPECT_EQUAL(G(pread)(job->fs, f, job->read, READ_NBYTES, READ_OFFSET), READ_NBYTES);
  EXPECT_EQUAL(G(pread)(job->fs, f, job->tail, TAIL_NBYTES, INPUT_NBYTES - 10), 10);
  EXPECT_EQUAL(G(pread)(job->fs, f, job->tail, TAIL_NBYTES, INPUT_NBYTES), 0);

  gpufs_status status;
  gpufs_path_status at_path;
  EXPECT_EQUAL(G(fstat)(job->fs, f, &status), 0);
  EXPECT_EQUAL(status.nbytes, INPUT_NBYTES);
  EXPECT_EQUAL(status.mode & 0170000, 0100000);
  EXPECT_EQUAL(G(stat)(job->fs, "input", &at_path), 0);
  EXPECT_EQUAL(at_path.nbytes, INPUT_NBYTES);

  gpufs_page page;
  EXPECT_EQUAL(G(map_page)(job->fs, f, PAGE_NBYTES + 7, &page), 0);
  EXPECT_EQUAL(page.nbytes, PAGE_NBYTES - 7);
  const unsigned char* const mapped = (const unsigned char*)page.data;
  for (uint32_t i = 0; i < page.nbytes; ++i) EXPECT(i, mapped[i] == job->read[PAGE_NBYTES + 7 - READ_OFFSET + i]);
  EXPECT_EQUAL(G(unmap_page)(&page), 0);
  EXPECT_EQUAL(G(unmap_page)(&page), -EBADF);
  EXPECT_EQUAL(G(map_page)(job->fs, f, INPUT_NBYTES, &page), -ENXIO);
  EXPECT(1, page.data == 0);

  EXPECT_EQUAL(G(advise)(job->fs, f, 0, 0, GPUFS_ADVICE_SEQUENTIAL), 0);
  EXPECT_EQUAL(G(prefetch)(job->fs, f, LATE_OFFSET, LATE_NBYTES), 0);
  gpufs_pending_read reading;
  EXPECT_EQUAL(G(read_async)(job->fs, f, job->late, LATE_NBYTES, LATE_OFFSET, &reading), 0);
  int is_ready = 0;
  for (int i = 0; i < 1000 && !is_ready; ++i) is_ready = G(ready)(&reading);
  EXPECT(is_ready, is_ready == 0 || is_ready == 1);
  EXPECT_EQUAL(G(wait)(&reading), LATE_NBYTES);

  gpufs_extent* const extents = (gpufs_extent*)(void*)job->entries;
  int64_t offset = 0;
  const int64_t nextents = G(read_extents)(job->fs, f, extents, 4, &offset);
  EXPECT(nextents, nextents == -EOPNOTSUPP || (nextents > 0 && offset > 0));  // as the file system is
  EXPECT_EQUAL(G(read_extents)(job->fs, f, extents, 4, 0), -EFAULT);

  EXPECT_EQUAL(G(pwrite)(job->fs, f, job->read, 1, 0), -EBADF);  // not open for writing
  EXPECT_EQUAL(G(pread)(job->fs, f, job->tail, 1, -1), -EINVAL);
  EXPECT_EQUAL(G(pread)(job->fs, f, 0, 1, 0), -EFAULT);
  EXPECT_EQUAL(G(fstat)(job->fs, f, 0), -EFAULT);
  EXPECT_EQUAL(G(map_page)(job->fs, f, 0, 0), -EFAULT);
  EXPECT_EQUAL(G(read_async)(job->fs, f, job->late, 1, 0, 0), -EFAULT);
  EXPECT_EQUAL(G(advise)(job->fs, f, 0, 0, 99), -EINVAL);
  EXPECT_EQUAL(G(close)(job->fs, f), 0);
  return 0;
}

// What the host then finds: WRITTEN_NBYTES of written_byte(), and at MAPPED_OFFSET those of mapped_byte().
STEPS_FUNCTION int STEPS(write_output)(struct group_job* job) {
  const gpufs_file f = G(open)(job->fs, job->draft, GPUFS_O_RDWR | GPUFS_O_CREAT | GPUFS_O_EXCL);
  EXPECT(f, f >= 0);
  for (uint32_t i = G(rank)(); i < WRITTEN_NBYTES; i += G(size)()) job->written[i] = written_byte(i);
  G(sync)();
  EXPECT_EQUAL(G(pwrite)(job->fs, f, job->written, APPEND_OFFSET, 0), APPEND_OFFSET);
  const int64_t own_offset = WRITTEN_NBYTES - (int64_t)G(size)();  // the last bytes, one from each thread
  EXPECT_EQUAL(G(append)(job->fs, f, job->written + APPEND_OFFSET, own_offset - APPEND_OFFSET), APPEND_OFFSET);
  const unsigned char own_byte = written_byte((uint32_t)own_offset + G(rank)());
  EXPECT_EQUAL(G(append_each)(job->fs, f, &own_byte, 1), own_offset + G(rank)());

  gpufs_writable_page page;
  EXPECT_EQUAL(G(map_page_to_write)(job->fs, f, MAPPED_OFFSET, &page), 0);
  EXPECT(page.nbytes, page.nbytes >= MAPPED_NBYTES);
  unsigned char* const mapped = (unsigned char*)page.data;
  for (uint32_t i = G(rank)(); i < MAPPED_NBYTES; i += G(size)()) mapped[i] = mapped_byte(i);
  G(sync)();
  EXPECT_EQUAL(G(msync)(&page, 99), -EINVAL);
  EXPECT_EQUAL(G(msync)(&page, GPUFS_SYNC_PAGE_CACHE), 0);
  EXPECT_EQUAL(G(unmap_writable_page)(&page), 0);
  EXPECT_EQUAL(G(unmap_writable_page)(&page), -EBADF);

  EXPECT_EQUAL(G(ftruncate)(job->fs, f, 2 * WRITTEN_NBYTES), 0);
  gpufs_status status;
  gpufs_path_status at_path;
  EXPECT_EQUAL(G(fstat)(job->fs, f, &status), 0);
  EXPECT_EQUAL(status.nbytes, 2 * WRITTEN_NBYTES);
  EXPECT_EQUAL(G(ftruncate)(job->fs, f, WRITTEN_NBYTES), 0);
  EXPECT_EQUAL(G(fsync)(job->fs, f, -1), -EINVAL);
  EXPECT_EQUAL(G(fsync)(job->fs, f, GPUFS_SYNC_PAGE_CACHE), 0);
  EXPECT_EQUAL(G(close)(job->fs, f), 0);
  EXPECT_EQUAL(G(pread)(job->fs, f, job->tail, 1, 0), -EBADF);  // closed
  EXPECT_EQUAL(G(close)(job->fs, f), -EBADF);
  EXPECT_EQUAL(G(open)(job->fs, job->draft, GPUFS_O_WRONLY | GPUFS_O_CREAT | GPUFS_O_EXCL), -EEXIST);

  EXPECT_EQUAL(G(mkdir)(job->fs, job->folder, 0700), 0);
  EXPECT_EQUAL(G(mkdir)(job->fs, job->folder, 0700), -EEXIST);
  EXPECT_EQUAL(G(rename)(job->fs, job->draft, job->output), 0);
  EXPECT_EQUAL(G(stat)(job->fs, job->draft, &at_path), -ENOENT);
  EXPECT_EQUAL(G(stat)(job->fs, job->output, &at_path), 0);
  EXPECT_EQUAL(at_path.nbytes, WRITTEN_NBYTES);
  EXPECT_EQUAL(G(rmdir)(job->fs, job->folder), -ENOTEMPTY);
  return 0;
}

// All files of a directory, and then the directory itself.
STEPS_FUNCTION int STEPS(empty_many)(struct group_job* job) {
  int64_t position = 0;
  const int64_t nbytes = G(read_directory)(job->fs, job->many, job->entries, ENTRIES_NBYTES, &position);
  EXPECT(nbytes, nbytes > 0);
  EXPECT_EQUAL(G(read_directory)(job->fs, job->many, job->more, sizeof job->more, &position), 0);
  EXPECT_EQUAL(G(file_names)(job->entries, nbytes, job->names, MANY + 1), MANY);
  EXPECT_EQUAL(G(open_all)(job->fs, job->many, job->names, MANY, GPUFS_O_RDONLY, job->files), 1);
  for (int i = 0; i < MANY; ++i) {
    const gpufs_directory_entry* const entry = (const gpufs_directory_entry*)(const void*)job->names[i] - 1;
    EXPECT_EQUAL(G(pread)(job->fs, job->files[i], job->tail, TAIL_NBYTES, 0), entry->file_nbytes);
  }
  EXPECT_EQUAL(G(close_all)(job->fs, job->files, MANY, job->results), 1);
  EXPECT_EQUAL(G(close_all)(job->fs, job->files, MANY, job->results), 0);
  EXPECT_EQUAL(job->results[0], -EBADF);
  for (int i = 0; i < MANY; ++i) {
    if (G(rank)() == 0) join(job->path, job->many, job->names[i]);
    G(sync)();
    EXPECT_EQUAL(G(unlink)(job->fs, job->path), 0);
  }
  EXPECT_EQUAL(G(rmdir)(job->fs, job->many), 0);
  return 0;
}

STEPS_FUNCTION int STEPS(make_mistakes)(struct group_job* job) {
  EXPECT_EQUAL(G(open)(job->fs, "no such file", GPUFS_O_RDONLY), -ENOENT);
  EXPECT_EQUAL(G(open)(job->fs, "input", GPUFS_O_CREAT), -EINVAL);  // without writing
  EXPECT_EQUAL(G(open)(job->fs, "input", 1 << 23), -EINVAL);        // no flag of open's
  EXPECT_EQUAL(G(open)(job->fs, 0, GPUFS_O_RDONLY), -EFAULT);
  EXPECT_EQUAL(G(pread)(job->fs, -ENOENT, job->tail, 1, 0), -ENOENT);  // the error of its open
  // No small ones: these may be files that another group has open just now.
  static const gpufs_file forged[] = {12345678, 0x7fffffff, -5000, (gpufs_file)0x80000000u};
  for (unsigned i = 0; i < sizeof forged / sizeof *forged; ++i) {
    EXPECT_EQUAL(G(pread)(job->fs, forged[i], job->tail, 1, 0), -EBADF);
    EXPECT_EQUAL(G(pwrite)(job->fs, forged[i], job->tail, 1, 0), -EBADF);
    EXPECT_EQUAL(G(close)(job->fs, forged[i]), -EBADF);
  }
  const gpufs_mount no_mount[] = {0, job->fs ^ (uint64_t)1 << 57, job->fs & (((uint64_t)1 << 57) - 1)};
  gpufs_page page;
  gpufs_pending_read reading;
  for (unsigned i = 0; i < sizeof no_mount / sizeof *no_mount; ++i) {
    EXPECT_EQUAL(G(open)(no_mount[i], "input", GPUFS_O_RDONLY), -EPROTO);
    EXPECT_EQUAL(G(pread)(no_mount[i], 0, job->tail, 1, 0), -EPROTO);
    EXPECT_EQUAL(G(unlink)(no_mount[i], "input"), -EPROTO);
    EXPECT_EQUAL(G(map_page)(no_mount[i], 0, 0, &page), -EPROTO);
    EXPECT_EQUAL(G(unmap_page)(&page), -EBADF);
    EXPECT_EQUAL(G(read_async)(no_mount[i], 0, job->tail, 1, 0, &reading), -EPROTO);
    EXPECT_EQUAL(G(ready)(&reading), 1);
    EXPECT_EQUAL(G(wait)(&reading), -EBADF);
  }
  EXPECT_EQUAL(G(unmap_page)(0), -EFAULT);
  return 0;
}

STEPS_FUNCTION int STEPS(all)(struct group_job* job) {
  EXPECT_EQUAL(gpufs_device_abi_version(), GPUFS_C_ABI_VERSION);
  if (STEPS(read_input)(job) != 0) return 1;
  if (STEPS(write_output)(job) != 0) return 1;
  if (STEPS(empty_many)(job) != 0) return 1;
  if (STEPS(make_mistakes)(job) != 0) return 1;
  job->done = 1;
  return 0;
}
