// SPDX-License-Identifier: Apache-2.0
// Histograms and locality-sensitive keys on the host: what library files hold and what every engine must compute alike.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "apps/collage/format.hpp"

namespace gpufs::apps::collage {

using counts = std::array<std::uint16_t, nbins>;           // R, G, B: 256 bins each; 1024 pixels a channel
using folded_counts = std::array<std::uint16_t, nfolded>;  // four neighbouring bins of a channel added up

// `rows` points at the tile's first pixel; a row of pixels begins row_nbytes after the one before.
void count_pixels(const std::uint8_t* rows, std::size_t row_nbytes, counts& out);
void fold(const counts& in, folded_counts& out);

// The index-th output of the SplitMix64 generator seeded with `seed`.
constexpr std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// One weight: ones in the low half minus ones in the high half, -32 .. 32, variance 16, close to a normal distribution.
constexpr std::int8_t projection_weight(std::uint64_t seed, std::uint32_t table, std::uint32_t bin, std::uint32_t bit) {
  const std::uint64_t z = splitmix64(seed, (std::uint64_t{table} * nfolded + bin) * max_key_nbits + bit);
  return static_cast<std::int8_t>(std::popcount(static_cast<std::uint32_t>(z)) -
                                  std::popcount(static_cast<std::uint32_t>(z >> 32)));
}

// All weights, as section `projections` holds them.
std::vector<std::int8_t> make_projections(std::uint64_t seed);

constexpr std::uint32_t hash_key(std::uint32_t key) { return key * hash_multiplier; }
constexpr std::uint32_t cell_of(std::uint32_t hashed_key, std::uint32_t cell_nbits) {
  return cell_nbits == 0 ? 0 : hashed_key >> (32 - cell_nbits);
}

// Makes the keys of folded histograms: bit b of table t is set when sum over bins of weight(t, bin, b) * (count - reference)
// is positive. Bits do not depend on how many are asked for, so a key of fewer bits is the low bits of a longer one.
class key_maker {
 public:
  // projections: ntables * projection_nbytes weights; reference: nfolded integers.
  key_maker(const std::int8_t* projections, const std::int32_t* reference, std::uint32_t key_nbits);
  // Thread-safe. Writes ntables keys.
  void keys(const folded_counts& folded, std::uint32_t* out) const;

 private:
  std::uint32_t key_nbits_;
  std::array<std::int16_t, nfolded> reference_;
  std::vector<std::int16_t> rows_;  // [table][bit][bin], so that a dot product is one run of memory
};

// Squared Euclidean distance of two histograms of whole counts: exact. Not a number of at most max_distance when one of them
// is none (a damaged library).
float histogram_distance(const float* a, const float* b);

}  // namespace gpufs::apps::collage
