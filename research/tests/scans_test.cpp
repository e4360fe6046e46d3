// SPDX-License-Identifier: Apache-2.0
// The papers' scans and segmented scans (research/scans) against a loop: operators that do not commute, lengths around the ends of
// threads' shares, tiles and tiles of tiles' sums, all kinds of segments, schedules drawn at random.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include "leftovers.hpp"
#include "par/scans.hpp"
#include "research/scans/three_kernels.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace baselines;  // NOLINT(google-build-using-namespace)
using simt::device_array;

// 32 threads have a tile of 256 elements, and 65,536 are a tile of tiles' sums.
constexpr unsigned nthreads[] = {32, 64, 512};
const std::vector<std::uint64_t> all_lengths = {0, 1, 7, 8, 9, 255, 256, 257, 511, 513, 2049, 4095, 4096, 4097, 10007, 70'001};

template <class Algorithm, class Op>
struct design {
  using algorithm = Algorithm;
  using op = Op;
};

template <class T>
std::vector<T> drawn_values(std::mt19937_64& draw, std::uint64_t n, T (*one)(std::mt19937_64&)) {
  std::vector<T> values(n);
  for (T& x : values) x = one(draw);
  return values;
}

auto by_blocks_of(unsigned n, std::mt19937_64& draw) {
  return [n, &draw](unsigned grid, const auto& kernel) {
    simt::launch({.grid = grid, .block = n, .schedule = drawn_schedule(draw)}, kernel);
  };
}

// Few blocks of large lengths, as each is a switch of all its threads for each round.
unsigned drawn_threads(std::mt19937_64& draw, std::uint64_t n) { return nthreads[n > 20'000 ? 0 : draw() % std::size(nthreads)]; }

template <class Design>
class paper_scans : public ::testing::Test {};
using scan_designs =
    ::testing::Types<design<by_all_threads, affine>, design<by_all_threads, product>, design<by_reduce_and_down_sweep, affine>,
                     design<by_reduce_and_down_sweep, product>, design<by_warps, affine>, design<by_warps, product>>;
TYPED_TEST_SUITE(paper_scans, scan_designs);

TYPED_TEST(paper_scans, are_the_loops) {
  using Op = typename TypeParam::op;
  using T = typename Op::value;
  std::mt19937_64 draw(1);
  for (const std::uint64_t n : all_lengths) {
    const std::vector<T> values = drawn_values(draw, n, &Op::drawn);
    std::vector<T> wanted;
    T all = Op{}.identity();
    for (const T& x : values) wanted.push_back(all = Op{}(all, x));
    const device_array<T> in{std::span<const T>(values)}, out(n);
    const unsigned threads = drawn_threads(draw, n);
    const three_kernels<Op> scans(n, threads);
    scans.template scan<typename TypeParam::algorithm>(in.get(), out.get(), Op{}, by_blocks_of(threads, draw));
    EXPECT_EQ(out.read(), wanted) << n << " elements, " << threads << " threads";
    scans.template scan<typename TypeParam::algorithm>(in.get(), in.get(), Op{}, by_blocks_of(threads, draw));
    EXPECT_EQ(in.read(), wanted) << n << " elements in place, " << threads << " threads";
  }
}

template <class Design>
class paper_segments : public ::testing::Test {};
using segment_designs = ::testing::Types<design<segments_by_operator, affine>, design<segments_by_operator, product>,
                                         design<segments_by_index, affine>, design<segments_by_index, product>>;
TYPED_TEST_SUITE(paper_segments, segment_designs);

// Heads everywhere, nowhere, at the first lane of each warp and of each tile, rarely (so that segments go over many tiles and then
// end), and often.
enum class heads_at : std::uint32_t { everywhere, nowhere, warps, tiles, rarely, often };
std::vector<std::uint8_t> drawn_heads(std::mt19937_64& draw, std::uint64_t n, heads_at where, unsigned threads) {
  std::vector<std::uint8_t> heads(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    switch (where) {
      case heads_at::everywhere:
        heads[i] = 1;
        break;
      case heads_at::nowhere:
        break;
      case heads_at::warps:
        heads[i] = i % (32 * 8) == 0;
        break;
      case heads_at::tiles:
        heads[i] = i % (std::uint64_t{threads} * 8) == 0;
        break;
      case heads_at::rarely:
        heads[i] = draw() % (std::uint64_t{threads} * 24) == 0;
        break;
      case heads_at::often:
        heads[i] = draw() % 5 == 0;
        break;
    }
    if (heads[i] != 0) heads[i] = static_cast<std::uint8_t>(1 + draw() % 255);
  }
  return heads;
}

TYPED_TEST(paper_segments, are_the_loops) {
  using Op = typename TypeParam::op;
  using T = typename Op::value;
  std::mt19937_64 draw(2);
  for (const std::uint64_t n : all_lengths) {
    for (const heads_at where :
         {heads_at::everywhere, heads_at::nowhere, heads_at::warps, heads_at::tiles, heads_at::rarely, heads_at::often}) {
      if (n > 20'000 && where != heads_at::rarely) continue;
      const unsigned threads = drawn_threads(draw, n);
      const std::vector<T> values = drawn_values(draw, n, &Op::drawn);
      const std::vector<std::uint8_t> heads = drawn_heads(draw, n, where, threads);
      std::vector<T> wanted;
      T all = Op{}.identity();
      for (std::uint64_t i = 0; i < n; ++i) wanted.push_back(all = heads[i] != 0 ? values[i] : Op{}(all, values[i]));
      const device_array<T> in{std::span<const T>(values)}, out(n);
      const device_array<std::uint8_t> at{std::span<const std::uint8_t>(heads)};
      const three_kernels<Op> scans(n, threads);
      scans.template segmented_scan<typename TypeParam::algorithm>(in.get(), at.get(), out.get(), Op{},
                                                                   by_blocks_of(threads, draw));
      EXPECT_EQ(out.read(), wanted) << n << " elements, heads " << static_cast<int>(where) << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
