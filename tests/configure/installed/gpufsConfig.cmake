# SPDX-License-Identifier: Apache-2.0
# What an installed gpufs gives to a project that is configured and never built: its targets' names.
include("${CMAKE_CURRENT_LIST_DIR}/../../../cmake/GpufsPrograms.cmake")
add_library(gpufs::gpufs INTERFACE IMPORTED)
if(GPUFS_CPU_MACHINE)
  target_compile_definitions(gpufs::gpufs INTERFACE GPUFS_HAVE_CPU_MACHINE=1)
endif()
add_library(gpufs::c INTERFACE IMPORTED)
set(gpufs_cpu_FOUND ${GPUFS_CPU_MACHINE})
if(GPUFS_CUDA)
  add_library(gpufs::cuda INTERFACE IMPORTED)
endif()
