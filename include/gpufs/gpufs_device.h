// SPDX-License-Identifier: Apache-2.0
// gpufs for kernels in C, and in all that links C: the calls of gpufs/gpufs.hpp under plain names (gpufs/gpufs_verbs.h lists them).
// In CUDA they lie in lib/gpufs/, as a fatbin and as LTO-IR; for C functions that run on the CPU machine in libgpufs_c.so.
// docs/guide/c.md says how to link them, docs/design/c-abi.md what stays as it is from one version to the next.
//
// gpufs_NAME_thread is called by one thread, gpufs_NAME_warp by all 32 lanes of a warp, gpufs_NAME_block by all threads of a block.
// All of a group call, with equal arguments, and get equal results. Memory that a call reads or writes is one piece for all of
// them, but for what is said to be each thread's own. Integers below 0 are negated errnos, Linux's numbers; what is not an error is
// 0, a count, an offset or a file.
#ifndef GPUFS_GPUFS_DEVICE_H
#define GPUFS_GPUFS_DEVICE_H

#if defined(__CUDACC_RTC__)  // has no <stdint.h>
typedef signed int int32_t;
typedef signed long long int64_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#define GPUFS_C_ABI_VERSION 1

// A mount (gpufs_mount_handle of gpufs/gpufs.h). Its upper bits say of which gpufs and which machine it is: calls on another one's
// give -EPROTO.
typedef uint64_t gpufs_mount;

// An open file of a mount: not negative, and good for any kernel until it is closed. Calls on an errno in its place give that
// errno; on a number that is not open, -EBADF.
typedef int32_t gpufs_file;

// Flags of gpufs_open: O_* of Linux, which do as well.
enum {
  GPUFS_O_RDONLY = 0,
  GPUFS_O_WRONLY = 1,
  GPUFS_O_RDWR = 2,
  GPUFS_O_CREAT = 0100,
  GPUFS_O_EXCL = 0200,
  GPUFS_O_TRUNC = 01000,
  GPUFS_O_APPEND = 02000,
  GPUFS_O_WRITE_ONCE = 0x40000000  // GPUfs's O_GWRONCE: never read
};

// How far fsync and msync bring what was written.
enum {
  GPUFS_SYNC_PAGE_CACHE = 0,  // to the host's page cache
  GPUFS_SYNC_DATA = 1,        // as fdatasync(2)
  GPUFS_SYNC_STABLE = 2       // as fsync(2)
};

enum {
  GPUFS_ADVICE_NORMAL = 0,
  GPUFS_ADVICE_RANDOM = 1,
  GPUFS_ADVICE_SEQUENTIAL = 2,
  GPUFS_ADVICE_WILLNEED = 3,
  GPUFS_ADVICE_DONTNEED = 4,
  GPUFS_ADVICE_NOREUSE = 5,
  GPUFS_ADVICE_WHOLE = 6
};

// Flags of gpufs_extent.
enum {
  GPUFS_EXTENT_ELSEWHERE = 1,  // the bytes are not to be had at device_offset
  GPUFS_EXTENT_UNWRITTEN = 2,  // they read as zeros
  GPUFS_EXTENT_SHARED = 4      // other files have the same place
};

// Where the bytes of an open file come from (docs/design/sources.md).
enum {
  GPUFS_SOURCE_NIL = 0,
  GPUFS_SOURCE_PULL = 1,
  GPUFS_SOURCE_STAGED = 2,
  GPUFS_SOURCE_WINDOWS = 3,
  GPUFS_SOURCE_MEM = 4,
  GPUFS_SOURCE_LIVE = 5,
  GPUFS_SOURCE_ZERO = 6,
  GPUFS_SOURCE_NVME = 7
};

// Of an open file.
typedef struct {
  int64_t nbytes;
  uint64_t inode;
  uint64_t mtime_ns;
  uint32_t mode;      // st_mode
  uint32_t cache_id;  // names this version of the file within the mount
  uint32_t source;    // GPUFS_SOURCE_*
  uint32_t reserved;
} gpufs_status;

// Of a path.
typedef struct {
  int64_t nbytes;
  uint64_t inode;
  uint64_t mtime_ns;
  uint32_t mode;  // st_mode
  uint32_t reserved;
} gpufs_path_status;

// A page mapped for reading; each thread has its own. `inside` is gpufs's.
typedef struct {
  const void* data;  // the byte at the offset asked for
  uint32_t nbytes;   // that follow it in this page and in the file
  uint32_t reserved;
  uint64_t inside[4];
} gpufs_page;

// The same for reading and writing.
typedef struct {
  void* data;
  uint32_t nbytes;
  uint32_t reserved;
  uint64_t inside[4];
} gpufs_writable_page;

// A read that was begun; each thread has its own, and a copy is as good.
typedef struct {
  uint64_t inside[6];
} gpufs_pending_read;

// What gpufs_read_directory gives, one after another: this, the name's bytes and a NUL, up to a multiple of 8.
typedef struct {
  uint64_t inode;
  int64_t file_nbytes;
  uint64_t mtime_ns;
  uint32_t mode;          // 0: it was gone when we looked
  uint16_t entry_nbytes;  // from this entry to the next
  uint16_t name_nbytes;   // without the NUL
} gpufs_directory_entry;

// What gpufs_read_extents gives: where a run of a file's bytes lies on what its file system lies on.
typedef struct {
  int64_t offset;         // in the file
  int64_t device_offset;  // of the same byte
  int64_t nbytes;
  uint32_t flags;  // GPUFS_EXTENT_*
  uint32_t reserved;
} gpufs_extent;

// Where rows of equal size lie in a file: row i takes row_nbytes from begin + i * stride_nbytes on.
typedef struct {
  uint64_t row_nbytes;
  uint64_t nrows;
  uint64_t begin;
  uint64_t stride_nbytes;  // 0: row_nbytes
  uint64_t from_end;       // 1: -1 names the last row; 0: it names none
} gpufs_rows;

#if defined(__CUDACC__)
#define GPUFS_C_DEVICE __device__
#else
#define GPUFS_C_DEVICE
#endif
#if defined(__cplusplus)
extern "C" {
#endif

#define GPUFS_FUNCTION(result, name, parameters, arguments) GPUFS_C_DEVICE result gpufs_##name parameters;
#define GPUFS_VERB(result, name, parameters, arguments)   \
  GPUFS_C_DEVICE result gpufs_##name##_thread parameters; \
  GPUFS_C_DEVICE result gpufs_##name##_warp parameters;   \
  GPUFS_C_DEVICE result gpufs_##name##_block parameters;
#include "gpufs/gpufs_verbs.h"
#undef GPUFS_FUNCTION
#undef GPUFS_VERB

#if defined(__cplusplus)
}
#endif
#endif
