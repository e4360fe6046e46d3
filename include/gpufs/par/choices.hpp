// SPDX-License-Identifier: Apache-2.0
// What callers of lists, labels, top_k and histogram choose, and what they are told.
#pragma once
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/config.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// Of calls by rounds of pointer jumping: 0 or a negative errno, and in how many rounds.
struct list_result {
  int error;
  unsigned nrounds;
};

// Which pixels of one kind are of one region: those that meet at a side, or at a corner too.
enum class touching : std::uint8_t { sides, corners };

// Which keys come first.
enum class top { largest, smallest };

// bin(element): the number of its bin, an unsigned integer. A function of kernels: GPUFS_DEVICE.
template <class B, class T>
concept bins_of = std::is_trivially_copyable_v<B> && requires(const B& bin, const T& element) {
  { bin(element) } -> std::unsigned_integral;
};
// What elements of a bin are counted in.
template <class C>
concept bin_count = std::same_as<C, std::uint32_t> || std::same_as<C, std::uint64_t>;

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
