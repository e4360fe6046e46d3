// SPDX-License-Identifier: Apache-2.0
// Functions that use what the processor has. Host code.
#pragma once

// One function for several instruction sets, chosen when the program starts. Not under sanitizers: the choice is made before
// their run time is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define GPUFS_SIMD_CLONES __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
// The same, all but the last with an instruction for std::fma.
#define GPUFS_SIMD_FMA_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define GPUFS_SIMD_CLONES
#define GPUFS_SIMD_FMA_CLONES
#endif
