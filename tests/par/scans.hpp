// SPDX-License-Identifier: Apache-2.0
// What tests of scans and sorts share: operators that do not commute, schedules, lengths.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "gpufs/par/heads.hpp"
#include "gpufs/par/operators.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// x -> a x + b, of words that wrap around; the left map first. Does not commute.
struct affine {
  struct value {
    std::uint32_t a, b;
    friend bool operator==(const value&, const value&) = default;
  };
  GPUFS_HOST_DEVICE value identity() const { return {1, 0}; }
  GPUFS_HOST_DEVICE value operator()(const value& f, const value& g) const { return {f.a * g.a, g.a * f.b + g.b}; }
  // a is odd, so that no product of many of them is 0, which would forget all to its left.
  static value drawn(std::mt19937_64& draw) { return {static_cast<std::uint32_t>(draw()) | 1, static_cast<std::uint32_t>(draw())}; }
};

// Products of 2 by 2 matrices: 16 bytes. Does not commute.
struct product {
  struct value {
    std::uint32_t of[4];
    friend bool operator==(const value&, const value&) = default;
  };
  GPUFS_HOST_DEVICE value identity() const { return {{1, 0, 0, 1}}; }
  GPUFS_HOST_DEVICE value operator()(const value& a, const value& b) const {
    return {{a.of[0] * b.of[0] + a.of[1] * b.of[2], a.of[0] * b.of[1] + a.of[1] * b.of[3], a.of[2] * b.of[0] + a.of[3] * b.of[2],
             a.of[2] * b.of[1] + a.of[3] * b.of[3]}};
  }
  static value drawn(std::mt19937_64& draw) {
    value m{};
    for (std::uint32_t& x : m.of) x = static_cast<std::uint32_t>(draw());
    m.of[0] |= 1;  // an odd determinant: it has an inverse
    m.of[3] |= 1;
    m.of[2] &= ~1u;
    return m;
  }
};

// Each kind of heads, by turns.
inline constexpr int nheads_kinds = 4;
struct any_heads {
  int kind;
  par::heads_by_bytes bytes;
  par::heads_by_bits bits;
  par::heads_by_keys<std::uint16_t> keys;
  par::heads_by_offsets offsets;
  GPUFS_DEVICE bool operator()(std::uint64_t i) const {
    return kind == 0 ? bytes(i) : kind == 1 ? bits(i) : kind == 2 ? keys(i) : offsets(i);
  }
  template <unsigned N>
  GPUFS_DEVICE std::uint32_t several(std::uint64_t first) const {
    if (kind == 0) return bytes.several<N>(first);
    if (kind == 1) return bits.several<N>(first);
    std::uint32_t all = 0;
    for (unsigned k = 0; k < N; ++k) all |= std::uint32_t{(*this)(first + k)} << k;
    return all;
  }
};

// How many elements a block takes of a segmented scan's array at a time.
template <class T>
constexpr std::uint64_t segmented_tile(unsigned nthreads) {
  return std::uint64_t{nthreads} * par::scan_space::items_a_row(sizeof(T)) * par::scan_space::rows_by_segments(sizeof(T));
}

// Half of them by priorities: so a warp, or a block, may go far ahead of another, or stay behind where it has just said something.
inline simt::cpu_schedule drawn_schedule(std::mt19937_64& draw) {
  simt::cpu_schedule schedule{.seed = draw(), .order = simt::block_order::random};
  if (draw() % 2 == 0) schedule.policy = simt::schedule_policy::priorities;
  schedule.switch_percent = draw() % 2 == 0 ? 25 : 100;
  schedule.delay_percent = draw() % 2 == 0 ? 0 : 50;
  return schedule;
}

// Around the ends of threads' shares, warps and tiles.
#if defined(__SANITIZE_THREAD__)  // which makes a switch a hundred times slower
inline const std::vector<std::uint64_t> lengths = {0, 9, 33, 257, 2049};
inline constexpr int ntrials = 10;
inline constexpr std::uint64_t nreals = 3011;
inline constexpr unsigned nblocks_to_look_back_over = 100;
inline const std::vector<std::uint64_t> short_lengths = {0, 33, 257};
inline constexpr unsigned nthreads_for_segments = 32, norders_of_segments = 1;
#else
inline const std::vector<std::uint64_t> lengths = {0, 1, 2, 7, 8, 9, 31, 32, 33, 255, 256, 257, 1000, 2047, 2049, 10007};
inline constexpr int ntrials = 60;
inline constexpr std::uint64_t nreals = 30011;
inline constexpr unsigned nblocks_to_look_back_over = 300;
inline const std::vector<std::uint64_t> short_lengths = {0, 1, 2, 33, 257, 2049};
inline constexpr unsigned nthreads_for_segments = 64, norders_of_segments = 2;
#endif

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
