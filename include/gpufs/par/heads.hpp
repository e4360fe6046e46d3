// SPDX-License-Identifier: Apache-2.0
// Where the segments of an array begin, as a segmented scan asks: by bytes, bits, keys or offsets. Element 0 begins one in any
// case.
#pragma once
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/prefetch.hpp"
#include "gpufs/simt/unroll.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// heads(i): whether a segment begins at element i. Functions of kernels: GPUFS_DEVICE. Heads that lie side by side in memory may be
// asked for several at a time: heads.several<N>(first) has bit k for element first + k, k < N, N being 1, 2, 4 or 8.
// And heads.prefetch(begin, end) says, by one thread, that those of elements from `begin` to `end` are wanted soon.
template <class H>
concept segment_heads = std::is_trivially_copyable_v<H> && requires(const H& heads) {
  { heads(std::uint64_t{}) } -> std::convertible_to<bool>;
};

// A byte an element: not 0 where one begins.
struct heads_by_bytes {
  const std::uint8_t* bytes;
  GPUFS_DEVICE bool operator()(std::uint64_t i) const { return bytes[i] != 0; }
  template <unsigned N>
  GPUFS_DEVICE std::uint32_t several(std::uint64_t first) const {
    std::uint8_t here[N];
    if (reinterpret_cast<std::uintptr_t>(bytes + first) % N == 0) {
      std::memcpy(here, __builtin_assume_aligned(bytes + first, N), N);
    } else {
      std::memcpy(here, bytes + first, N);
    }
    std::uint32_t bits = 0;
    GPUFS_UNROLL
    for (unsigned k = 0; k < N; ++k) bits |= std::uint32_t{here[k] != 0} << k;
    return bits;
  }
  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const {
    simt::prefetch(bytes + begin, static_cast<std::uint32_t>(end - begin));
  }
};

// A bit an element: bit i % 32 of word i / 32.
struct heads_by_bits {
  const std::uint32_t* words;
  GPUFS_DEVICE bool operator()(std::uint64_t i) const { return (words[i / 32] >> i % 32 & 1) != 0; }
  template <unsigned N>
  GPUFS_DEVICE std::uint32_t several(std::uint64_t first) const {
    const auto at = static_cast<unsigned>(first % 32);
    std::uint32_t bits = words[first / 32] >> at;
    if (at + N > 32) bits |= words[first / 32 + 1] << (32 - at);  // then `at` is not 0
    return bits & ((1u << N) - 1);
  }
  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const {
    simt::prefetch(words + begin / 32, static_cast<std::uint32_t>((end + 31) / 32 - begin / 32) * 4);
  }
};

// A key an element: one begins where the key is another than before. The keys are not in the memory that the scan writes.
template <std::equality_comparable Key>
struct heads_by_keys {
  const Key* keys;
  GPUFS_DEVICE bool operator()(std::uint64_t i) const { return i == 0 || !(keys[i] == keys[i - 1]); }
};

namespace detail {
// Of ascending numbers the place of the first from `begin` to `end` that is i or more; `end` if there is none.
template <class Numbers>
GPUFS_DEVICE std::uint64_t first_from(const Numbers& numbers, std::uint64_t begin, std::uint64_t end, std::uint64_t i) {
  while (begin < end) {
    const std::uint64_t middle = begin + (end - begin) / 2;
    if (numbers[middle] < i) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}
}  // namespace detail

// The numbers of the elements with which one begins, in ascending order; equal ones (segments without elements) count once. Each
// element is looked up by bisection.
struct heads_by_offsets {
  const std::uint64_t* offsets;
  std::uint64_t noffsets;
  GPUFS_DEVICE bool operator()(std::uint64_t i) const {
    const std::uint64_t at = first_from(i);
    return at < noffsets && offsets[at] == i;
  }
  // The place of the first of them that is i or more; noffsets if there is none.
  GPUFS_DEVICE std::uint64_t first_from(std::uint64_t i) const { return detail::first_from(offsets, 0, noffsets, i); }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
