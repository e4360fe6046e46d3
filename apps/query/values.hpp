// SPDX-License-Identifier: Apache-2.0
// Values of columns: their order, conditions on them, and sums that are exact, so that the order in which they are added does not
// show. For host code and kernels. docs/design/query.md, "Exact sums".
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpufs/simt/config.hpp"

namespace gpufs::apps::query {

enum class value_type : std::uint32_t { i8, i16, i32, i64, u8, u16, u32, u64, f32, f64 };
inline constexpr unsigned ntypes = 10;

// What is known of some values of a column. Zeros with `least` at its maximum: of none.
struct column_sums {
  // The sum of those that are finite, in units of 2^-1074, the least double: digit i counts 2^(32 i) of them, as a signed word, and
  // wraps. 2^31 values may be added until carry().
  static constexpr unsigned ndigits = 68;  // of 2^2176 units: room for more values of 2^2098 than columns have
  std::uint64_t digits[ndigits];
  std::uint64_t least, greatest;  // keys; of what is no number, too
  std::uint64_t nnan, ninfinite, nminus_infinite;
};
static_assert(sizeof(column_sums) == 584 && offsetof(column_sums, least) == 544 && offsetof(column_sums, nnan) == 560);

enum class comparison : std::uint32_t { less, at_most, equal, unequal, at_least, more };

inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t sign_bit = std::uint64_t{1} << 63, no_number_key = ~std::uint64_t{0};

GPUFS_HOST_DEVICE constexpr bool is_float(value_type type) { return type >= value_type::f32; }
GPUFS_HOST_DEVICE constexpr bool is_signed(value_type type) { return type <= value_type::i64; }
GPUFS_HOST_DEVICE constexpr std::uint32_t nbytes_of(value_type type) {
  if (is_float(type)) return type == value_type::f32 ? 4 : 8;
  return 1u << static_cast<std::uint32_t>(type) % 4;
}

// The bytes of a value, little endian, at any address.
GPUFS_HOST_DEVICE std::uint64_t bits_at(const std::byte* at, std::uint32_t nbytes) {
  if (reinterpret_cast<std::uintptr_t>(at) % nbytes == 0) {
    if (nbytes == 8) return *reinterpret_cast<const std::uint64_t*>(at);
    if (nbytes == 4) return *reinterpret_cast<const std::uint32_t*>(at);
    if (nbytes == 2) return *reinterpret_cast<const std::uint16_t*>(at);
  }
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < nbytes; ++i) bits |= static_cast<std::uint64_t>(at[i]) << 8 * i;
  return bits;
}

// The bits of the double that a value of f32 or f64 is.
GPUFS_HOST_DEVICE std::uint64_t bits_of_double(value_type type, std::uint64_t bits) {
  if (type == value_type::f64) return bits;
  const auto narrow = static_cast<std::uint32_t>(bits);
  float value;
  std::memcpy(&value, &narrow, sizeof value);
  const double wide = value;  // exact
  std::memcpy(&bits, &wide, sizeof wide);
  return bits;
}
GPUFS_HOST_DEVICE std::uint64_t sign_extended(value_type type, std::uint64_t bits) {
  const std::uint32_t unused = 64 - 8 * nbytes_of(type);
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused);
}

// A number that is less where the value is. Both zeros are one; what is no number has the greatest.
GPUFS_HOST_DEVICE std::uint64_t key_of(value_type type, std::uint64_t bits) {
  if (!is_float(type)) return is_signed(type) ? sign_extended(type, bits) ^ sign_bit : bits;
  const std::uint64_t wide = bits_of_double(type, bits);
  if (wide << 1 == 0) return sign_bit;
  if (wide << 1 > std::uint64_t{0x7ff} << 53) return no_number_key;
  return (wide & sign_bit) != 0 ? ~wide : wide | sign_bit;
}
// The way back: an integer of 64 bits, or a double's bits.
GPUFS_HOST_DEVICE constexpr std::uint64_t bits_of_key(value_type type, std::uint64_t key) {
  if (!is_float(type)) return is_signed(type) ? key ^ sign_bit : key;
  return (key & sign_bit) != 0 ? key ^ sign_bit : ~key;
}

// Which values are wanted, as a range of keys. What is no number is unequal to all.
struct condition {
  std::uint64_t low, high;
  bool negated;

  static condition of(value_type type, comparison how, std::uint64_t bits) {
    const std::uint64_t key = key_of(type, bits);
    const std::uint64_t greatest = is_float(type) ? sign_bit | std::uint64_t{0x7ff} << 52 : ~std::uint64_t{0};
    constexpr condition none{1, 0, false};
    switch (how) {
      case comparison::less:
        return key == 0 ? none : condition{0, key - 1, false};
      case comparison::at_most:
        return {0, key, false};
      case comparison::equal:
        return {key, key, false};
      case comparison::unequal:
        return {key, key, true};
      case comparison::at_least:
        return {key, greatest, false};
      case comparison::more:
        break;
    }
    return key >= greatest ? none : condition{key + 1, greatest, false};
  }
  GPUFS_HOST_DEVICE bool holds(std::uint64_t key) const { return (key >= low && key <= high) != negated; }
};

// Adds a value. Words: add(word, n), lower(word, key) and raise(word, key), which are atomic where several threads add.
template <class Words>
GPUFS_HOST_DEVICE void add_value(column_sums& to, value_type type, std::uint64_t bits, const Words& words) {
  const std::uint64_t key = key_of(type, bits);
  words.lower(to.least, key);
  words.raise(to.greatest, key);
  std::uint64_t magnitude, place = 1074;  // of the magnitude's lowest bit, above 2^-1074
  bool is_negative;
  if (is_float(type)) {
    const std::uint64_t wide = bits_of_double(type, bits);
    const std::uint64_t exponent = wide >> 52 & 0x7ff;
    magnitude = wide & ((std::uint64_t{1} << 52) - 1);
    is_negative = (wide & sign_bit) != 0;
    if (exponent == 0x7ff) return words.add(magnitude != 0 ? to.nnan : is_negative ? to.nminus_infinite : to.ninfinite, 1);
    if (exponent != 0) magnitude |= std::uint64_t{1} << 52;
    place = exponent == 0 ? 0 : exponent - 1;
  } else {
    const std::uint64_t wide = is_signed(type) ? sign_extended(type, bits) : bits;
    is_negative = is_signed(type) && (wide & sign_bit) != 0;
    magnitude = is_negative ? 0 - wide : wide;
  }
  const auto shift = static_cast<std::uint32_t>(place % 32);
  std::uint64_t* const at = to.digits + place / 32;
  const std::uint64_t low = magnitude << shift,
                      parts[3] = {low & 0xffffffff, low >> 32, shift == 0 ? 0 : magnitude >> (64 - shift)};
  for (unsigned i = 0; i < 3; ++i) {
    if (parts[i] != 0) words.add(at[i], is_negative ? 0 - parts[i] : parts[i]);
  }
}

// Of one thread.
struct plain_words {
  GPUFS_HOST_DEVICE void add(std::uint64_t& word, std::uint64_t n) const { word += n; }
  GPUFS_HOST_DEVICE void lower(std::uint64_t& word, std::uint64_t key) const { word = key < word ? key : word; }
  GPUFS_HOST_DEVICE void raise(std::uint64_t& word, std::uint64_t key) const { word = key > word ? key : word; }
};

// Adds what another has, which is of other values.
template <class Words>
GPUFS_HOST_DEVICE void add_sums(column_sums& to, const column_sums& from, const Words& words) {
  for (unsigned i = 0; i < column_sums::ndigits; ++i) {
    if (from.digits[i] != 0) words.add(to.digits[i], from.digits[i]);
  }
  words.lower(to.least, from.least);
  words.raise(to.greatest, from.greatest);
  words.add(to.nnan, from.nnan);
  words.add(to.ninfinite, from.ninfinite);
  words.add(to.nminus_infinite, from.nminus_infinite);
}

}  // namespace GPUFS_MACHINE

// All digits but the last get 0 to 2^32 - 1: then equal sums have equal digits.
inline void carry(column_sums& of) {
  std::uint64_t carried = 0;
  for (unsigned i = 0; i < column_sums::ndigits; ++i) {
    of.digits[i] += carried;
    if (i + 1 == column_sums::ndigits) break;
    carried = static_cast<std::uint64_t>(static_cast<std::int64_t>(of.digits[i]) >> 32);
    of.digits[i] &= 0xffffffff;
  }
}

}  // namespace gpufs::apps::query
