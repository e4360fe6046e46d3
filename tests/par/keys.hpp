// SPDX-License-Identifier: Apache-2.0
// What tests of sorts and of the first keys share: keys of all kinds, and the order that is promised.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "gpufs/simt/config.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

using kinds_of_keys = ::testing::Types<std::uint8_t, std::int16_t, std::uint32_t, std::int64_t, float, double>;

// The order that is promised: by value, but -0 before 0, and NaNs at the ends by their sign.
template <class Key>
bool is_before(Key a, Key b) {
  if constexpr (std::is_floating_point_v<Key>) {
    const auto place = [](Key x) { return x != x ? (std::signbit(x) ? -1 : 1) : 0; };
    if (place(a) != place(b)) return place(a) < place(b);
    if (place(a) != 0) return false;
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
  } else {
    return a < b;
  }
}

// Few, many, sorted before, the other way round.
template <class Key>
std::vector<Key> drawn_keys(std::mt19937_64& draw, std::uint64_t n) {
  const std::uint64_t kind = draw() % 4;
  std::vector<Key> keys(n);
  for (Key& key : keys) {
    const std::uint64_t word = draw();
    if (kind == 0) {  // few
      key = static_cast<Key>(static_cast<std::int64_t>(word % 5) - 2);
    } else if constexpr (std::is_floating_point_v<Key>) {
      constexpr Key ends[] = {Key{0}, -Key{0}, std::numeric_limits<Key>::infinity(), -std::numeric_limits<Key>::infinity(),
                              std::numeric_limits<Key>::denorm_min()};
      const Key nan = std::numeric_limits<Key>::quiet_NaN();
      key = std::ldexp(static_cast<Key>(static_cast<std::int64_t>(word)), static_cast<int>(draw() % 60) - 100);
      if (word % 9 == 0) key = ends[word / 9 % 5];
      if (word % 31 == 0) key = std::copysign(nan, word % 2 == 0 ? Key{1} : Key{-1});
    } else {
      key = static_cast<Key>(word);
    }
  }
  if (kind == 1) std::sort(keys.begin(), keys.end(), is_before<Key>);
  if (kind == 2) std::sort(keys.begin(), keys.end(), [](Key a, Key b) { return is_before(b, a); });
  return keys;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
