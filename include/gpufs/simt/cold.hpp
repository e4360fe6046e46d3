// SPDX-License-Identifier: Apache-2.0
// Calls that are rarely made, kept from costing the code around them registers.
#pragma once
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/config.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Calls a GPUFS_DEVICE_COLD function. On CUDA the compiler is kept from knowing which one: of a function that it knows, it puts the
// registers on top of those that live in the caller, and the sum decides the kernel's occupancy (94 registers where the
// hot path needs 40). An unknown one follows the calling convention, and saves on the stack what it needs.
template <class Result, class... Parameters>
GPUFS_DEVICE Result call_cold(Result (*function)(Parameters...), std::type_identity_t<Parameters>... arguments) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(function));
#endif
  return function(arguments...);
}

// The value, of which the compiler knows nothing: for code that is rarely run inside a loop, of which it would compute what it can
// ahead of the loop, and keep that in registers.
GPUFS_DEVICE std::uint64_t only_here(std::uint64_t value) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(value));
#endif
  return value;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
