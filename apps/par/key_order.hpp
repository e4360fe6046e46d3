// SPDX-License-Identifier: Apache-2.0
// Types of elements and keys, and the order of keys. Host code and kernels.
#pragma once
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs::apps::par {

enum class number_type : std::uint8_t { u32, i32, u64, i64, f32, f64 };

GPUFS_HOST_DEVICE constexpr unsigned nbytes_of(number_type type) {
  return type == number_type::u32 || type == number_type::i32 || type == number_type::f32 ? 4 : 8;
}

// Maps a key's bits to unsigned numbers that have the keys' order, and back. -0 comes before 0; NaNs without a sign are the
// largest, those with one the least, each by its bits. Descending: that order from its other end.
struct key_order {
  number_type type;
  bool descending;

  GPUFS_HOST_DEVICE bool changes_bits() const { return descending || (type != number_type::u32 && type != number_type::u64); }
  template <class Bits>  // std::uint32_t or std::uint64_t, as the type has
  GPUFS_HOST_DEVICE Bits ordered(Bits key) const {
    constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
    const bool is_real = type == number_type::f32 || type == number_type::f64;
    if (is_real) {
      key = (key & sign) != 0 ? ~key : key ^ sign;
    } else if (type == number_type::i32 || type == number_type::i64) {
      key ^= sign;
    }
    return descending ? ~key : key;
  }
  template <class Bits>
  GPUFS_HOST_DEVICE Bits key_of(Bits ordered) const {
    constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
    const bool is_real = type == number_type::f32 || type == number_type::f64;
    Bits key = descending ? ~ordered : ordered;
    if (is_real) {
      key = (key & sign) != 0 ? key ^ sign : ~key;
    } else if (type == number_type::i32 || type == number_type::i64) {
      key ^= sign;
    }
    return key;
  }
};

}  // namespace gpufs::apps::par
