// SPDX-License-Identifier: Apache-2.0
// Places in an array as elements of other arrays name them: where something is sent, what comes next in a list.
#pragma once
#include <concepts>
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// 0 to n - 1 of an array with n elements.
template <class P>
concept place_number = std::same_as<P, std::uint32_t> || std::same_as<P, std::uint64_t>;

// No place at all, which arrays of 2^32 elements name by 8 bytes.
template <place_number Place>
inline constexpr Place no_place = static_cast<Place>(~Place{0});

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
