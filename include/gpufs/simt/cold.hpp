// SPDX-License-Identifier: Apache-2.0
// Calls that are rarely made, kept from costing the code around them registers.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/config.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Calls a GPUFS_DEVICE_COLD function. On CUDA the compiler is kept from knowing which one: of a function that it knows, it puts the
// registers on top of those that live in the caller, and the sum decides the kernel's occupancy (94 registers where the
// hot path needs 40). An unknown one follows the calling convention, and saves on the stack what it needs.
// No function may so call one that has the same parameters, nor be led back to by such calls: ptxas takes that for recursion, gives
// the kernel the stack of its own frame alone, and it fails with an illegal address. cmake/stacks.py looks for that.
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

// A word of 4 or 8 bytes that is rarely wanted, of an object whose other members a loop wants. On CUDA it lies on the stack even
// where they are in registers, and leaves its registers to the loop: nvcc keeps a part of an object in memory that is written by
// halves and read whole, as volatile (volatile alone does not do). Left to choose, ptxas spills what the loop wants.
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
