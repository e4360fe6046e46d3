// SPDX-License-Identifier: Apache-2.0
// The workloads of ActivePointers (ISCA'16, section VI-B), in the order of their compute intensity: what a warp makes of vectors of
// 32 elements of 4 bytes. apply: what a lane makes of its element x (and of y, of a second vector, where of_two); of_warp: the same
// for all lanes, on the host, to check it.
#pragma once
#include <array>
#include <cmath>
#include <numbers>

#include "device.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

using lanes32 = std::array<std::uint32_t, 32>;

template <class T>
GPUFS_DEVICE T shuffle_xor(T x, unsigned mask) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  return __shfl_xor_sync(0xffffffffu, x, static_cast<int>(mask));  // as who writes for raw pointers does it
#else
  return gpufs::this_warp().shfl(x, gpufs::simt::lane_id() ^ mask);
#endif
}

// Work that each lane does alone.
template <class Work>
struct lane_work {
  using value = std::uint32_t;
  static std::array<value, 32> of_warp(const lanes32& x, const lanes32& y) {
    std::array<value, 32> made;
    for (unsigned lane = 0; lane < 32; ++lane) made[lane] = Work::apply(x[lane], y[lane]);
    return made;
  }
};

struct add_work : lane_work<add_work> {
  static constexpr const char* name = "add";
  static constexpr bool of_two = true;
  GPUFS_HOST_DEVICE static std::uint32_t apply(std::uint32_t x, std::uint32_t y) { return x + y; }
};

struct read_work : lane_work<read_work> {
  static constexpr const char* name = "read";
  static constexpr bool of_two = false;
  GPUFS_HOST_DEVICE static std::uint32_t apply(std::uint32_t x, std::uint32_t) { return x; }
};

// Marsaglia's xorshift, which no compiler makes shorter.
template <unsigned N>
struct random_work : lane_work<random_work<N>> {
  static constexpr const char* name = N == 5 ? "random_5" : N == 20 ? "random_20" : "random_50";
  static constexpr bool of_two = false;
  GPUFS_HOST_DEVICE static std::uint32_t apply(std::uint32_t x, std::uint32_t) {
    for (unsigned i = 0; i < N; ++i) {
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
    }
    return x;
  }
};

struct reduce_work {
  static constexpr const char* name = "reduce";
  static constexpr bool of_two = false;
  using value = std::uint32_t;
  GPUFS_DEVICE static value apply(std::uint32_t x, std::uint32_t) {
    for (unsigned d = 16; d > 0; d /= 2) x += shuffle_xor(x, d);
    return x;
  }
  static std::array<value, 32> of_warp(const lanes32& x, const lanes32&) {
    std::uint32_t sum = 0;
    for (const std::uint32_t one : x) sum += one;
    std::array<value, 32> made;
    made.fill(sum);
    return made;
  }
};

// The factor by which a lane multiplies in each of the five stages, in constant memory as in the paper.
struct complex_number {
  float re, im;
};
struct fft_factors {
  complex_number of[5][32];
};
#if GPUFS_ON_CUDA
static __constant__ fft_factors factors;  // the device code of each file that is compiled has its own
#else
inline fft_factors factors;
#endif

// On CUDA: those of the file that is compiled with this.
[[maybe_unused]] static void make_factors() {
  fft_factors made;
  for (unsigned stage = 0; stage < 5; ++stage) {
    const unsigned half = 16 >> stage;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const double angle = (lane & half) == 0 ? 0 : -std::numbers::pi * (lane & (half - 1)) / half;
      made.of[stage][lane] = {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
    }
  }
#if GPUFS_ON_CUDA
  check(cudaMemcpyToSymbol(factors, &made, sizeof made), "cudaMemcpyToSymbol");
#else
  factors = made;
#endif
}

// Radix 2, decimation in frequency: a lane ends up with the coefficient of its number's bits reversed.
struct fft_work {
  static constexpr const char* name = "fft";
  static constexpr bool of_two = false;
  using value = float;
  GPUFS_HOST_DEVICE static float sample(std::uint32_t x) { return static_cast<float>(x >> 8) * 0x1p-24f; }
  GPUFS_DEVICE static value apply(std::uint32_t x, std::uint32_t) {
    complex_number mine{sample(x), 0};
    for (unsigned stage = 0; stage < 5; ++stage) {
      const unsigned half = 16 >> stage;
      const float sign = (gpufs::simt::lane_id() & half) == 0 ? 1.f : -1.f;
      const complex_number f = factors.of[stage][gpufs::simt::lane_id()];
      const float re = shuffle_xor(mine.re, half) + sign * mine.re, im = shuffle_xor(mine.im, half) + sign * mine.im;
      mine = {re * f.re - im * f.im, re * f.im + im * f.re};
    }
    return std::fabs(mine.re) + std::fabs(mine.im);
  }
  static std::array<value, 32> of_warp(const lanes32& x, const lanes32&) {
    std::array<value, 32> made;
    for (unsigned lane = 0; lane < 32; ++lane) {
      unsigned k = 0;
      for (unsigned bit = 0; bit < 5; ++bit) k |= (lane >> bit & 1) << (4 - bit);
      double re = 0, im = 0;
      for (unsigned n = 0; n < 32; ++n) {
        const double angle = -2 * std::numbers::pi * k * n / 32;
        re += sample(x[n]) * std::cos(angle);
        im += sample(x[n]) * std::sin(angle);
      }
      made[lane] = static_cast<float>(std::abs(re) + std::abs(im));
    }
    return made;
  }
};

struct sort_work {
  static constexpr const char* name = "bitonic_sort";
  static constexpr bool of_two = false;
  using value = std::uint32_t;
  GPUFS_DEVICE static value apply(std::uint32_t x, std::uint32_t) {
    for (unsigned run = 2; run <= 32; run *= 2) {
      for (unsigned d = run / 2; d > 0; d /= 2) {
        const std::uint32_t other = shuffle_xor(x, d);
        const bool keep_smaller = ((gpufs::simt::lane_id() & d) == 0) == ((gpufs::simt::lane_id() & run) == 0);
        x = keep_smaller ? (x < other ? x : other) : (x < other ? other : x);
      }
    }
    return x;
  }
  static std::array<value, 32> of_warp(const lanes32& x, const lanes32&) {
    std::array<value, 32> made = x;
    std::sort(made.begin(), made.end());
    return made;
  }
};

// Whether two results of a workload are the same, sums of floats but for rounding.
inline bool agree(float a, float b) { return std::abs(a - b) <= 1e-4f * std::max(1.f, std::abs(b)); }
inline bool agree(std::uint32_t a, std::uint32_t b) { return a == b; }

}  // namespace GPUFS_MACHINE
}  // namespace bench
