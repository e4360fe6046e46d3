// SPDX-License-Identifier: Apache-2.0
// The calls of gpufs_device.h, which includes this, each once; so do the file that defines them and whoever makes bindings. They
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
