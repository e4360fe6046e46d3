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

// Elements of a file that the threads update, and rows of it. The group has the file for itself.
STEPS_FUNCTION int STEPS(update_elements)(struct group_job* job) {
  const gpufs_mount fs = job->fs;
  const gpufs_file f = G(open)(fs, job->draft, GPUFS_O_RDWR | GPUFS_O_CREAT | GPUFS_O_EXCL);
  EXPECT(f, f >= 0);
  EXPECT_EQUAL(G(ftruncate)(fs, f, UPDATED_NBYTES), 0);

  // All threads in one element of each kind.
  const uint32_t n = G(size)(), rank = G(rank)();
  int32_t i32 = 5;
  uint32_t u32 = 5;
  int64_t i64 = 5;
  uint64_t u64 = 5;
  float f32 = 5;
  double f64 = 5;
  EXPECT_EQUAL(gpufs_fetch_add_u32(fs, f, 0, 1, &u32), 0);
  EXPECT(u32, u32 < n);
  EXPECT_EQUAL(gpufs_fetch_add_u64(fs, f, 8, 1ull << 40, &u64), 0);
  EXPECT(u64, u64 >> 40 < n);
  EXPECT_EQUAL(gpufs_fetch_add_f32(fs, f, 16, 0.5f, &f32), 0);
  EXPECT(f32, f32 >= 0 && f32 < 0.5f * n);
  EXPECT_EQUAL(gpufs_fetch_add_f64(fs, f, 24, -0.25, &f64), 0);
  EXPECT(f64, f64 <= 0 && f64 > -0.25 * n);
  EXPECT_EQUAL(gpufs_fetch_min_i32(fs, f, 32, -3 - (int32_t)rank, &i32), 0);
  EXPECT_EQUAL(gpufs_fetch_max_u32(fs, f, 36, 0x80000000u + rank, 0), 0);
  EXPECT_EQUAL(gpufs_fetch_min_i64(fs, f, 40, -3 - ((int64_t)rank << 40), &i64), 0);
  EXPECT_EQUAL(gpufs_fetch_max_u64(fs, f, 48, (1ull << 63) + rank, 0), 0);
  EXPECT_EQUAL(gpufs_fetch_max_i32(fs, f, 56, -1, &i32), 0);  // of signed numbers 0 is more
  EXPECT_EQUAL(i32, 0);
  EXPECT_EQUAL(gpufs_fetch_min_u32(fs, f, 60, 0xffffffffu, &u32), 0);
  EXPECT_EQUAL(u32, 0);
  EXPECT_EQUAL(gpufs_fetch_max_i64(fs, f, 64, -1, &i64), 0);
  EXPECT_EQUAL(i64, 0);
  EXPECT_EQUAL(gpufs_fetch_min_u64(fs, f, 72, ~0ull, &u64), 0);
  EXPECT_EQUAL(u64, 0);
  // Each its own, in the second page.
  EXPECT(n, n <= PAGE_NBYTES / 64);
  const int64_t own = PAGE_NBYTES + 64 * (int64_t)rank;
  EXPECT_EQUAL(gpufs_store_u64(fs, f, own, 1000 + rank), 0);
  EXPECT_EQUAL(gpufs_store_u32(fs, f, own + 8, 2000 + rank), 0);
  EXPECT_EQUAL(gpufs_exchange_u64(fs, f, own, rank, &u64), 0);
  EXPECT_EQUAL(u64, 1000 + rank);
  EXPECT_EQUAL(gpufs_exchange_u32(fs, f, own + 8, rank, &u32), 0);
  EXPECT_EQUAL(u32, 2000 + rank);
  G(sync)();
  EXPECT_EQUAL(gpufs_fetch_add_u32(fs, f, 0, 0, &u32), 0);
  EXPECT_EQUAL(u32, n);
  EXPECT_EQUAL(gpufs_fetch_add_u64(fs, f, 8, 0, &u64), 0);
  EXPECT_EQUAL(u64, (int64_t)n << 40);
  EXPECT_EQUAL(gpufs_fetch_add_f32(fs, f, 16, 0, &f32), 0);
  EXPECT(f32, f32 == 0.5f * n);
  EXPECT_EQUAL(gpufs_fetch_add_f64(fs, f, 24, 0, &f64), 0);
  EXPECT(f64, f64 == -0.25 * n);
  EXPECT_EQUAL(gpufs_fetch_min_i32(fs, f, 32, 0, &i32), 0);
  EXPECT_EQUAL(i32, -3 - (int32_t)(n - 1));
  EXPECT_EQUAL(gpufs_fetch_max_u32(fs, f, 36, 0, &u32), 0);
  EXPECT_EQUAL(u32, 0x80000000u + (n - 1));
  EXPECT_EQUAL(gpufs_fetch_min_i64(fs, f, 40, 0, &i64), 0);
  EXPECT_EQUAL(i64, -3 - ((int64_t)(n - 1) << 40));
  EXPECT_EQUAL(gpufs_fetch_max_u64(fs, f, 48, 0, &u64), 0);
  EXPECT(u64, u64 == (1ull << 63) + (n - 1));

  EXPECT_EQUAL(gpufs_fetch_add_u32(fs, f, 2, 1, &u32), -EINVAL);
  EXPECT_EQUAL(u32, 0);
  EXPECT_EQUAL(gpufs_store_u64(fs, f, -8, 1), -EINVAL);
  EXPECT_EQUAL(gpufs_exchange_u64(fs, f, UPDATED_NBYTES, 1, &u64), -ENXIO);
  EXPECT_EQUAL(gpufs_store_u32(fs, f, UPDATED_NBYTES, 1), -ENXIO);
  EXPECT_EQUAL(gpufs_fetch_add_u32(fs, -ENOENT, 0, 1, &u32), -ENOENT);
  EXPECT_EQUAL(gpufs_fetch_add_u32(0, f, 0, 1, &u32), -EPROTO);

  // Rows of 16 bytes in the third page. The last of three has no number that names a row.
  const gpufs_rows rows = {16, 8, 2 * PAGE_NBYTES, 0, 1};
  int64_t* const numbers = (int64_t*)(void*)job->entries;
  unsigned char* const got = (unsigned char*)job->more;
  G(sync)();
  if (rank == 0) {
    numbers[0] = 3;
    numbers[1] = -8;
    numbers[2] = 8;
    for (uint32_t i = 0; i < 48; ++i) job->written[i] = written_byte(i);
  }
  G(sync)();
  uint64_t place = 99;
  EXPECT_EQUAL(G(scatter)(fs, f, &rows, numbers, 3, job->written, &place), -EDOM);
  EXPECT_EQUAL(place, 2);
  EXPECT_EQUAL(G(scatter)(fs, f, &rows, numbers, 2, job->written, 0), 0);
  EXPECT_EQUAL(G(gather)(fs, f, &rows, numbers, 3, got, &place), -EDOM);
  for (uint32_t i = 0; i < 48; ++i) EXPECT(i, got[i] == (i < 32 ? written_byte(i) : 0));
  EXPECT_EQUAL(G(pread)(fs, f, job->tail, 16, 2 * PAGE_NBYTES), 16);
  for (uint32_t i = 0; i < 16; ++i) EXPECT(i, job->tail[i] == written_byte(16 + i));
  EXPECT_EQUAL(G(gather)(fs, f, 0, numbers, 1, got, &place), -EFAULT);
  EXPECT_EQUAL(G(gather)(fs, f, &rows, 0, 1, got, &place), -EFAULT);
  EXPECT_EQUAL(place, 0);
  const gpufs_rows no_rows = {16, 8, 0, 0, 2};
  EXPECT_EQUAL(G(scatter)(fs, f, &no_rows, numbers, 1, job->written, &place), -EINVAL);
  EXPECT_EQUAL(G(gather)(0, f, &rows, numbers, 1, got, &place), -EPROTO);
  EXPECT_EQUAL(G(close)(fs, f), 0);

  const gpufs_file input = G(open)(fs, "input", GPUFS_O_RDONLY);
  EXPECT_EQUAL(gpufs_fetch_add_u64(fs, input, 0, 1, 0), -EACCES);
  EXPECT_EQUAL(G(gather)(fs, input, &rows, numbers, 2, got, &place), 0);
  EXPECT_EQUAL(G(pread)(fs, input, job->tail, 16, 2 * PAGE_NBYTES + 3 * 16), 16);
  for (uint32_t i = 0; i < 16; ++i) EXPECT(i, got[i] == job->tail[i]);
  EXPECT_EQUAL(G(close)(fs, input), 0);
  EXPECT_EQUAL(G(unlink)(fs, job->draft), 0);
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
  if (STEPS(update_elements)(job) != 0) return 1;
  if (STEPS(empty_many)(job) != 0) return 1;
  if (STEPS(make_mistakes)(job) != 0) return 1;
  job->done = 1;
  return 0;
}
