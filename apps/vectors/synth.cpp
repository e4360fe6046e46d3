// SPDX-License-Identifier: Apache-2.0
#include "apps/vectors/synth.hpp"

#include <algorithm>
#include <vector>

#include "apps/atomic_file.hpp"
#include "apps/helper_threads.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::vectors {
namespace {

constexpr std::uint64_t rows_a_share = 512, nbytes_a_write = 64 << 20;

// SplitMix64's mixing (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
constexpr std::uint64_t word_of(std::uint64_t stream, std::uint64_t i) { return mixed(stream + (i + 1) * 0x9e3779b97f4a7c15u); }

// Of a standard deviation of 1, nearly: the sum of four whole numbers of 16 bits, which has one of 2^16 / sqrt(3).
constexpr float normal_of(std::uint64_t word) {
  const auto sum = static_cast<std::int32_t>((word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48));
  return static_cast<float>(sum - 2 * 0xffff) * 0x1.bb67aep-16f;
}

}  // namespace

void draw(const synth_options& of, std::uint64_t first, std::uint64_t n, unsigned nthreads, float* rows) {
  const std::uint64_t centres = mixed(of.seed ^ 0x6a09e667f3bcc908u), noise = mixed(of.seed ^ 0xbb67ae8584caa73bu),
                      clusters = mixed(of.seed ^ 0x3c6ef372fe94f82bu);
  parallel_for(
      thread_count(nthreads), (n + rows_a_share - 1) / rows_a_share,
      [&](std::size_t share) {
        for (std::uint64_t i = share * rows_a_share; i < std::min(n, (share + 1) * rows_a_share); ++i) {
          const std::uint64_t cluster = word_of(clusters, first + i) % of.nclusters;
          float* const row = rows + i * of.dim;
          for (std::uint64_t d = 0; d < of.dim; ++d) {
            const float off = of.spread * normal_of(word_of(noise, (first + i) * of.dim + d));
            row[d] = normal_of(word_of(centres, cluster * of.dim + d)) + off;
          }
        }
      },
      helper_threads::of_process());
}

void write_drawn(const std::string& path, const std::string& head, const synth_options& of, std::uint64_t first, std::uint64_t n,
                 unsigned nthreads, const progress_function& progress) {
  atomic_file file(path);
  file.write(head.data(), head.size(), 0);
  const std::uint64_t row_nbytes = std::uint64_t{of.dim} * sizeof(float);
  const std::uint64_t rows_a_write = std::max<std::uint64_t>(1, nbytes_a_write / row_nbytes);
  std::vector<float> rows(std::min(n, rows_a_write) * of.dim);
  for (std::uint64_t done = 0; done < n;) {
    const std::uint64_t now = std::min(rows_a_write, n - done);
    progress(done * row_nbytes, n * row_nbytes);
    draw(of, first + done, now, nthreads, rows.data());
    file.write(rows.data(), now * row_nbytes, head.size() + done * row_nbytes);
    done += now;
  }
  progress(n * row_nbytes, n * row_nbytes);
  file.publish();
}

}  // namespace gpufs::apps::vectors
