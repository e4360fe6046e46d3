# SPDX-License-Identifier: Apache-2.0
# find_package(CUDAToolkit QUIET), and what CMake 3.25 (Debian 12's) does not know of CUDA 13. Used by the build, after CUDA
# has been enabled, and by gpufsConfig.cmake.

# That nvcc compiles C++20.
if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
endif()

# That there is no nvToolsExt any more: it sets a property of that target when the project requires CMake 3.25.
set(gpufs_minimum_required_version ${CMAKE_MINIMUM_REQUIRED_VERSION})
if(CMAKE_VERSION VERSION_LESS 3.26)
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
endif()
find_package(CUDAToolkit QUIET)
set(CMAKE_MINIMUM_REQUIRED_VERSION ${gpufs_minimum_required_version})
