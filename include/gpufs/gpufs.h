// SPDX-License-Identifier: Apache-2.0
// gpufs for host programs in C, and in all that calls C (libgpufs_c.so): a mount for kernels that call gpufs/gpufs_device.h. What
// is below is gpufs/mount.hpp's, under plain names; docs/guide/c.md has a program. Calls return 0 or a count, or a negated errno,
// and then gpufs_last_error says more; -EFAULT: a pointer that is needed is null. They may be made from several threads; not for a
// mount that is being destroyed.
#ifndef GPUFS_GPUFS_H
#define GPUFS_GPUFS_H
#include "gpufs/gpufs_device.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Which machine a mount's kernels run on.
enum {
  GPUFS_CPU_MACHINE = 0,
  GPUFS_CUDA_MACHINE = 1  // a device in its primary context, as the CUDA runtime, CuPy and Numba use it
};

// A number with a name. Lists of them end with a null name.
typedef struct {
  const char* name;
  uint64_t value;
} gpufs_value;

typedef struct gpufs_host_mount gpufs_host_mount;

// GPUFS_C_ABI_VERSION of the library that is linked.
int32_t gpufs_abi_version(void);

// What went wrong in the last call of this thread that failed; "" before. Good until the thread's next call.
const char* gpufs_last_error(void);

// Mounts the directory `root`. options: members of gpufs::mount_options and of its `internals` (gpufs/mount.hpp) by name, times in
// nanoseconds, enumerators by number; null for none. Without the option `device` it is the device of the machine that is current
// for the calling thread. -EINVAL: there is no such option, or a value is refused; -ENOTDIR and the like for the root; -ENODEV:
// this machine or device is not there, or not in this build; -ENOMEM.
int32_t gpufs_mount_create(const char* root, int32_t machine, const gpufs_value* options, gpufs_host_mount** made);

// For kernels; good until the mount is destroyed. 0, which is no mount, for null.
gpufs_mount gpufs_mount_handle(const gpufs_host_mount* mount);

// Does what the destructor of gpufs::mount does: writes the pages that kernels left unwritten. All kernels that use the mount must
// have ended. Ignores null.
void gpufs_mount_destroy(gpufs_host_mount* mount);

// As gpufs::mount::sync: how many pages or files could not be written, or -errno.
int64_t gpufs_mount_sync(gpufs_host_mount* mount);

// As gpufs::mount::prepare: registers a file's mapping before kernels read it (O_RDONLY) or write it (O_RDWR).
int32_t gpufs_mount_prepare(gpufs_host_mount* mount, const char* path, int32_t flags);

// Fills in the values of those that are named: members of gpufs::mount_counters. All are of one moment. -EINVAL: there is no such
// counter.
int32_t gpufs_mount_counters(const gpufs_host_mount* mount, gpufs_value* counters);

// Runs kernel(argument) in every thread of `grid` blocks of `block` threads on the CPU machine, on the calling thread's current
// device (0, unless C++ has made another current), and waits for them. Threads of a warp are fibers, so what they share they sync
// for (gpufs_sync_warp). -EINVAL: a geometry that is refused; -ECANCELED: the launch was stopped, since the threads of a group did
// not call together, or it took too long; gpufs_last_error names them. Stacks are unwound then, so kernels must be compiled with
// -fexceptions or, as gcc does for x86-64, with tables for unwinding.
int32_t gpufs_launch_cpu(void (*kernel)(void* argument), void* argument, uint32_t grid, uint32_t block);

#if defined(__cplusplus)
}
#endif
#endif
