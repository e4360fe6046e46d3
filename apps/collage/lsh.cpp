// SPDX-License-Identifier: Apache-2.0
#include "apps/collage/lsh.hpp"

#include <cstring>

#include "apps/simd_clones.hpp"

namespace gpufs::apps::collage {
namespace {

using float16 = float __attribute__((vector_size(64)));

}  // namespace

void count_pixels(const std::uint8_t* rows, std::size_t row_nbytes, counts& out) {
  out.fill(0);
  for (std::uint32_t y = 0; y < tile_side; ++y) {
    const std::uint8_t* p = rows + y * row_nbytes;
    for (std::uint32_t x = 0; x < tile_side; ++x, p += 3) {
      ++out[p[0]];
      ++out[256 + p[1]];
      ++out[512 + p[2]];
    }
  }
}

void fold(const counts& in, folded_counts& out) {
  for (std::uint32_t i = 0; i < nfolded; ++i) {
    out[i] = static_cast<std::uint16_t>(in[4 * i] + in[4 * i + 1] + in[4 * i + 2] + in[4 * i + 3]);
  }
}

std::vector<std::int8_t> make_projections(std::uint64_t seed) {
  std::vector<std::int8_t> weights(std::size_t{ntables} * projection_nbytes);
  for (std::uint32_t table = 0; table < ntables; ++table) {
    for (std::uint32_t bin = 0; bin < nfolded; ++bin) {
      for (std::uint32_t bit = 0; bit < max_key_nbits; ++bit) {
        weights[(std::size_t{table} * nfolded + bin) * max_key_nbits + bit] = projection_weight(seed, table, bin, bit);
      }
    }
  }
  return weights;
}

// Products are below 2^16 and sums below 2^18: the differences add up to at most 6144 in absolute value.
GPUFS_SIMD_CLONES void project(const std::int16_t* rows, const std::int16_t* centred, std::uint32_t key_nbits, std::uint32_t* out) {
  for (std::uint32_t table = 0; table < ntables; ++table) {
    std::uint32_t key = 0;
    for (std::uint32_t bit = 0; bit < key_nbits; ++bit) {
      const std::int16_t* row = rows + std::size_t{table * key_nbits + bit} * nfolded;
      std::int32_t sum = 0;
      for (std::uint32_t i = 0; i < nfolded; ++i) sum += std::int32_t{row[i]} * centred[i];
      key |= static_cast<std::uint32_t>(sum > 0) << bit;
    }
    out[table] = key;
  }
}

key_maker::key_maker(const std::int8_t* projections, const std::int32_t* reference, std::uint32_t key_nbits)
    : key_nbits_(key_nbits), rows_(std::size_t{ntables} * key_nbits * nfolded) {
  for (std::uint32_t bin = 0; bin < nfolded; ++bin) reference_[bin] = static_cast<std::int16_t>(reference[bin]);
  for (std::uint32_t table = 0; table < ntables; ++table) {
    for (std::uint32_t bit = 0; bit < key_nbits; ++bit) {
      for (std::uint32_t bin = 0; bin < nfolded; ++bin) {
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): a small number, not a character
        const int weight = projections[(std::size_t{table} * nfolded + bin) * max_key_nbits + bit];
        rows_[(std::size_t{table} * key_nbits + bit) * nfolded + bin] = static_cast<std::int16_t>(weight);
      }
    }
  }
}

void key_maker::keys(const folded_counts& folded, std::uint32_t* out) const {
  std::array<std::int16_t, nfolded> centred;
  for (std::uint32_t i = 0; i < nfolded; ++i) centred[i] = static_cast<std::int16_t>(folded[i] - reference_[i]);
  project(rows_.data(), centred.data(), key_nbits_, out);
}

GPUFS_SIMD_CLONES float histogram_distance(const float* a, const float* b) {
  float16 sum0 = {};
  float16 sum1 = {};
  for (std::uint32_t i = 0; i < nbins; i += 32) {
    float16 a0;
    float16 a1;
    float16 b0;
    float16 b1;
    std::memcpy(&a0, a + i, sizeof a0);
    std::memcpy(&a1, a + i + 16, sizeof a1);
    std::memcpy(&b0, b + i, sizeof b0);
    std::memcpy(&b1, b + i + 16, sizeof b1);
    a0 -= b0;
    a1 -= b1;
    sum0 += a0 * a0;
    sum1 += a1 * a1;
  }
  sum0 += sum1;
  float total = 0;
  for (int i = 0; i < 16; ++i) total += sum0[i];
  return total;
}

}  // namespace gpufs::apps::collage
