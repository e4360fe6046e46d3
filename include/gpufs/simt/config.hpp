// SPDX-License-Identifier: Apache-2.0
// Which machine this translation unit is compiled for. nvcc sees the CUDA machine, any other compiler the CPU machine.
#pragma once

#if __cplusplus < 202002L
#error "gpufs needs C++20: compile with -std=c++20"
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "gpufs needs sm_80 or newer: pass nvcc -arch=native or -arch=sm_80, or set CMAKE_CUDA_ARCHITECTURES (native, or 80)"
#endif

#if defined(__CUDACC__)
#define GPUFS_ON_CUDA 1
#define GPUFS_MACHINE cuda_machine
#define GPUFS_DEVICE __device__ inline
#define GPUFS_DEVICE_COLD __device__ __noinline__  // kept out of hot code: templates and members only
#define GPUFS_HOST_DEVICE __host__ __device__ inline
// For a member of a device type that host-device templates call, such as cuda::std's algorithms: otherwise nvcc warns of each call.
#define GPUFS_DEVICE_IN_TEMPLATES _Pragma("nv_exec_check_disable") __host__ __device__ inline
#else
#define GPUFS_ON_CUDA 0
#define GPUFS_MACHINE cpu_machine
#define GPUFS_DEVICE inline
#define GPUFS_DEVICE_COLD
#define GPUFS_HOST_DEVICE inline
#define GPUFS_DEVICE_IN_TEMPLATES inline
#endif

// Code that depends on the machine lives in this inline namespace, so that the objects of both compilers link into one program.
// Templates that use such code must carry the machine in their names too, so they live in the namespace or take one of its types as
// an argument.
namespace gpufs::simt {
inline namespace GPUFS_MACHINE {}
}  // namespace gpufs::simt
