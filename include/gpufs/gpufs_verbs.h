// SPDX-License-Identifier: Apache-2.0
// The calls of gpufs_device.h, which includes this, each once; so do the file that defines them and those that make bindings. They
// are given as GPUFS_VERB(result, name, (parameters), (arguments)) for gpufs_name_thread, gpufs_name_warp and gpufs_name_block, and
// as GPUFS_FUNCTION(...) for what no group calls: gpufs_name. What each promises, waits for and fails with stands above the C++
// function of that name; here is what is the C call's own.

// GPUFS_C_ABI_VERSION of the library that is linked.
GPUFS_FUNCTION(int32_t, device_abi_version, (void), ())

// Who the caller is: its rank in the group, how many are in it, and a barrier for it, which also orders memory.
GPUFS_VERB(uint32_t, rank, (void), ())
GPUFS_VERB(uint32_t, size, (void), ())
GPUFS_VERB(void, sync, (void), ())
// Of the grid: which block the caller is in, and of how many.
GPUFS_FUNCTION(uint32_t, block_rank, (void), ())
GPUFS_FUNCTION(uint32_t, grid_size, (void), ())

// gpufs/file/open.hpp. A file, or a negative errno.
GPUFS_VERB(gpufs_file, open, (gpufs_mount fs, const char* path, int32_t flags), (fs, path, flags))
GPUFS_VERB(int32_t, close, (gpufs_mount fs, gpufs_file file), (fs, file))

// gpufs/file/file.hpp. Bytes read, or a negative errno.
GPUFS_VERB(int64_t, pread, (gpufs_mount fs, gpufs_file file, void* dst, uint64_t nbytes, int64_t offset),
           (fs, file, dst, nbytes, offset))

// 0 or a negative errno; *status is each thread's own.
GPUFS_VERB(int32_t, fstat, (gpufs_mount fs, gpufs_file file, gpufs_status* status), (fs, file, status))

// 0 or a negative errno, and then page->data is null. *page is each thread's own; it stays mapped until unmap_page, by it or by a
// copy: once.
GPUFS_VERB(int32_t, map_page, (gpufs_mount fs, gpufs_file file, int64_t offset, gpufs_page* page), (fs, file, offset, page))
GPUFS_VERB(int32_t, unmap_page, (gpufs_page * page), (page))

// gpufs/file/write.hpp, append.hpp. Bytes written; the offset where they lie; `src` and `nbytes` of append_each are each thread's
// own, and what it gives, too; `how` is one of GPUFS_SYNC_*, else -EINVAL.
GPUFS_VERB(int64_t, pwrite, (gpufs_mount fs, gpufs_file file, const void* src, uint64_t nbytes, int64_t offset),
           (fs, file, src, nbytes, offset))
GPUFS_VERB(int64_t, append, (gpufs_mount fs, gpufs_file file, const void* src, uint64_t nbytes), (fs, file, src, nbytes))
GPUFS_VERB(int64_t, append_each, (gpufs_mount fs, gpufs_file file, const void* src, uint64_t nbytes), (fs, file, src, nbytes))
GPUFS_VERB(int32_t, fsync, (gpufs_mount fs, gpufs_file file, int32_t how), (fs, file, how))
GPUFS_VERB(int32_t, ftruncate, (gpufs_mount fs, gpufs_file file, int64_t nbytes), (fs, file, nbytes))

// gpufs/file/map_to_write.hpp. As map_page, with stores: C++'s map_page<std::byte>, and its unmap_page.
GPUFS_VERB(int32_t, map_page_to_write, (gpufs_mount fs, gpufs_file file, int64_t offset, gpufs_writable_page* page),
           (fs, file, offset, page))
GPUFS_VERB(int32_t, msync, (gpufs_writable_page * page, int32_t how), (page, how))
GPUFS_VERB(int32_t, unmap_writable_page, (gpufs_writable_page * page), (page))

// gpufs/file/prefetch.hpp. `advice` is one of GPUFS_ADVICE_*. read_async gives 0, or -EPROTO or -EFAULT (no `pending`); what else
// is wrong, wait tells. ready gives 1 or 0. *pending is each thread's own.
GPUFS_VERB(int32_t, prefetch, (gpufs_mount fs, gpufs_file file, int64_t offset, uint64_t nbytes), (fs, file, offset, nbytes))
GPUFS_VERB(int32_t, advise, (gpufs_mount fs, gpufs_file file, int64_t offset, uint64_t nbytes, int32_t advice),
           (fs, file, offset, nbytes, advice))
GPUFS_VERB(int32_t, read_async,
           (gpufs_mount fs, gpufs_file file, void* dst, uint64_t nbytes, int64_t offset, gpufs_pending_read* pending),
           (fs, file, dst, nbytes, offset, pending))
GPUFS_VERB(int32_t, ready, (const gpufs_pending_read* pending), (pending))
GPUFS_VERB(int64_t, wait, (const gpufs_pending_read* pending), (pending))

// gpufs/file/paths.hpp. *status and *position are each thread's own; *position is 0 at first.
GPUFS_VERB(int32_t, unlink, (gpufs_mount fs, const char* path), (fs, path))
GPUFS_VERB(int32_t, rmdir, (gpufs_mount fs, const char* path), (fs, path))
GPUFS_VERB(int32_t, rename, (gpufs_mount fs, const char* from, const char* to), (fs, from, to))
GPUFS_VERB(int32_t, mkdir, (gpufs_mount fs, const char* path, uint32_t mode), (fs, path, mode))
GPUFS_VERB(int32_t, stat, (gpufs_mount fs, const char* path, gpufs_path_status* status), (fs, path, status))
GPUFS_VERB(int64_t, read_directory, (gpufs_mount fs, const char* path, void* out, uint32_t nbytes, int64_t* position),
           (fs, path, out, nbytes, position))

// gpufs/file/extents.hpp. How many extents, 0 behind the last one, or a negative errno; *offset is each thread's own, and 0 at
// first.
GPUFS_VERB(int64_t, read_extents, (gpufs_mount fs, gpufs_file file, gpufs_extent* out, uint32_t n, int64_t* offset),
           (fs, file, out, n, offset))

// gpufs/file/open_all.hpp. The first two give 1 where all are open, or all closes gave 0, else 0: then `files`, or `results`, say
// which not; or -EPROTO. file_names gives how many there are, and puts pointers into `entries` to their names in `names`.
GPUFS_VERB(int32_t, open_all,
           (gpufs_mount fs, const char* directory, const char* const* names, uint32_t n, int32_t flags, gpufs_file* files),
           (fs, directory, names, n, flags, files))
GPUFS_VERB(int32_t, close_all, (gpufs_mount fs, const gpufs_file* files, uint32_t n, int32_t* results), (fs, files, n, results))
GPUFS_VERB(uint32_t, file_names, (const void* entries, int64_t nbytes, const char** names, uint32_t most),
           (entries, nbytes, names, most))

// gpufs/par/gather.hpp, scatter.hpp. 0 or a negative errno, and then *place is which of the n rows has failed, if `place` is not
// null; *place is each thread's own.
GPUFS_VERB(int32_t, gather,
           (gpufs_mount fs, gpufs_file file, const gpufs_rows* rows, const int64_t* numbers, uint64_t n, void* dst,
            uint64_t* place),
           (fs, file, rows, numbers, n, dst, place))
GPUFS_VERB(int32_t, scatter,
           (gpufs_mount fs, gpufs_file file, const gpufs_rows* rows, const int64_t* numbers, uint64_t n, const void* src,
            uint64_t* place),
           (fs, file, rows, numbers, n, src, place))

// gpufs/pointer/update.hpp. Atomic updates of the element at a byte of a file that is open for writing, and stores to it. No group
// calls: each thread has its own element; those of a full warp that are together share pages and elements. 0 or a negative errno,
// also -EINVAL (offset is negative or no multiple of the element's size) and -ENXIO (the file ends before the element does), and
// then nothing is changed. *before is what was there, or 0 with an error; it may be null. Each call looks the file's mapping up,
// where C++ keeps a pointer.
GPUFS_FUNCTION(int32_t, fetch_add_u32, (gpufs_mount fs, gpufs_file file, int64_t offset, uint32_t value, uint32_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_add_u64, (gpufs_mount fs, gpufs_file file, int64_t offset, uint64_t value, uint64_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_add_f32, (gpufs_mount fs, gpufs_file file, int64_t offset, float value, float* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_add_f64, (gpufs_mount fs, gpufs_file file, int64_t offset, double value, double* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_min_i32, (gpufs_mount fs, gpufs_file file, int64_t offset, int32_t value, int32_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_min_u32, (gpufs_mount fs, gpufs_file file, int64_t offset, uint32_t value, uint32_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_min_i64, (gpufs_mount fs, gpufs_file file, int64_t offset, int64_t value, int64_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_min_u64, (gpufs_mount fs, gpufs_file file, int64_t offset, uint64_t value, uint64_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_max_i32, (gpufs_mount fs, gpufs_file file, int64_t offset, int32_t value, int32_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_max_u32, (gpufs_mount fs, gpufs_file file, int64_t offset, uint32_t value, uint32_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_max_i64, (gpufs_mount fs, gpufs_file file, int64_t offset, int64_t value, int64_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, fetch_max_u64, (gpufs_mount fs, gpufs_file file, int64_t offset, uint64_t value, uint64_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, exchange_u32, (gpufs_mount fs, gpufs_file file, int64_t offset, uint32_t value, uint32_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, exchange_u64, (gpufs_mount fs, gpufs_file file, int64_t offset, uint64_t value, uint64_t* before),
               (fs, file, offset, value, before))
GPUFS_FUNCTION(int32_t, store_u32, (gpufs_mount fs, gpufs_file file, int64_t offset, uint32_t value), (fs, file, offset, value))
GPUFS_FUNCTION(int32_t, store_u64, (gpufs_mount fs, gpufs_file file, int64_t offset, uint64_t value), (fs, file, offset, value))
