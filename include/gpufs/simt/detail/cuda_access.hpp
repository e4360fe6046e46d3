// SPDX-License-Identifier: Apache-2.0
// Accesses to memory of 16 bytes at once that other threads of the device, or the host, may make meanwhile.
#pragma once
#include <cstdint>
#include <cstring>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/detail/cuda_atomic.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {
namespace detail {

// A vector access is four scalar ones of unspecified order in the PTX memory model; relaxed with a scope wider than the block
// is not served from L1.
template <scope S>
__device__ inline vec16 load_relaxed_16(const void* p) {
  vec16 v;
  if constexpr (S == scope::device) {
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
  } else {
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
  }
  return v;
}
template <scope S>
__device__ inline vec16 load_kept_16(const void* p) {
  vec16 v;
  if constexpr (S == scope::device) {
    asm volatile("ld.relaxed.gpu.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(__cvta_generic_to_global(p)), "l"(evict_last())
                 : "memory");
  } else {
    asm volatile("ld.relaxed.sys.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(__cvta_generic_to_global(p)), "l"(evict_last())
                 : "memory");
  }
  return v;
}
__device__ inline void store_relaxed_16(void* p, const vec16& value) {
  std::uint64_t words[2];
  std::memcpy(words, &value, sizeof words);
  asm volatile("{\n .reg .b128 both;\n mov.b128 both, {%1, %2};\n st.relaxed.gpu.global.b128 [%0], both;\n}"
               :
               : "l"(__cvta_generic_to_global(p)), "l"(words[0]), "l"(words[1])
               : "memory");
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
