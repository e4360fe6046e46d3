// SPDX-License-Identifier: Apache-2.0
// Calls that are rarely made, so that they cost the code around them no registers.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/config.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Calls a GPUFS_DEVICE_COLD function. On CUDA the compiler must not know which function it is. For a function that it knows, it
// puts the registers on top of those that live in the caller, and the sum decides the kernel's occupancy (94 registers where the
// hot path needs 40). An unknown function follows the calling convention, and saves on the stack what it needs.
// No function may use this for a call to one with the same parameters, nor may such calls lead back to the function: ptxas takes
// that for recursion, gives the kernel a stack for its own frame alone, and the kernel fails with an illegal address.
// cmake/stacks.py looks for this.
template <class Result, class... Parameters>
GPUFS_DEVICE Result call_cold(Result (*function)(Parameters...), std::type_identity_t<Parameters>... arguments) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(function));
#endif
  return function(arguments...);
}

// Returns the value, and hides it from the compiler. For code that is rarely run inside a loop: else the compiler would compute
// parts of that code ahead of the loop, and keep the results in registers.
GPUFS_DEVICE std::uint64_t only_here(std::uint64_t value) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(value));
#endif
  return value;
}

// A word of 4 or 8 bytes that is rarely used, in an object whose other members a loop uses. On CUDA it lies on the stack even if
// the other members are in registers, and leaves its registers to the loop: nvcc keeps a part of an object in memory if it is
// written by halves and read whole, as volatile (volatile alone does not do). Otherwise ptxas may spill what the loop uses.
template <class Word>
class rarely_used {
  static_assert(sizeof(Word) == 4 || sizeof(Word) == 8);
  using bits = std::conditional_t<sizeof(Word) == 8, std::uint64_t, std::uint32_t>;
  using half = std::conditional_t<sizeof(Word) == 8, std::uint32_t, std::uint16_t>;

 public:
  GPUFS_DEVICE constexpr rarely_used() {}
  GPUFS_DEVICE rarely_used(Word word) { *this = word; }
  GPUFS_DEVICE rarely_used(const rarely_used& other) { *this = other; }
  GPUFS_DEVICE rarely_used& operator=(const rarely_used& other) { return *this = static_cast<Word>(other); }
  GPUFS_DEVICE rarely_used& operator=(Word word) {
    const auto is = static_cast<bits>(word);
    word_.halves[0] = static_cast<half>(is);
    word_.halves[1] = static_cast<half>(is >> 4 * sizeof(Word));
    return *this;
  }
  GPUFS_DEVICE operator Word() const { return static_cast<Word>(const_cast<const volatile words&>(word_).whole); }

 private:
  static_assert(std::endian::native == std::endian::little);
  union words {
    bits whole = 0;
    half halves[2];
  };
  words word_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
