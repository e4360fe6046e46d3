// SPDX-License-Identifier: Apache-2.0
// Synthetic vectors in clusters, for trials. Host code.
#pragma once
#include <cstdint>
#include <string>

#include "apps/progress.hpp"

namespace gpufs::apps::vectors {

// Vector i is its cluster's centre and noise, and a function of the seed and i alone, with the same bits on every machine. Elements
// of centres have a standard deviation of 1, those of the noise one of `spread`. Both are sums of four numbers that are spread
// evenly, which is near a normal distribution (Irwin and Hall).
struct synth_options {
  std::uint32_t dim;
  std::uint32_t nclusters;
  float spread;
  std::uint64_t seed;
};

// Vectors first to first + n, as rows. By up to nthreads threads (0: a processor each).
void draw(const synth_options& of, std::uint64_t first, std::uint64_t n, unsigned nthreads, float* rows);

// Writes a file of them behind a head. Throws gpufs::error, and what progress, called with bytes, throws; then there is no file.
void write_drawn(const std::string& path, const std::string& head, const synth_options& of, std::uint64_t first, std::uint64_t n,
                 unsigned nthreads, const progress_function& progress);

}  // namespace gpufs::apps::vectors
