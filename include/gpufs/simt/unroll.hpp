// SPDX-License-Identifier: Apache-2.0
// For loops over arrays that should stay in registers.
#pragma once
#include "gpufs/simt/config.hpp"

// Before a loop whose number of turns the compiler knows: nvcc unrolls it, however long its body is. Otherwise an array that it
// indexes lies on the stack. Nothing on the CPU machine.
#if GPUFS_ON_CUDA
#define GPUFS_UNROLL _Pragma("unroll")
#else
#define GPUFS_UNROLL
#endif
