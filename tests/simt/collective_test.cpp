// SPDX-License-Identifier: Apache-2.0
// Counts, ballots and scans of threads, tiles, warps, blocks and grids, and the grid's barrier: against what the host computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gpufs/simt/grid.hpp"
#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
inline namespace GPUFS_MACHINE {
namespace {

GPUFS_HOST_DEVICE std::uint64_t input(std::uint64_t thread, unsigned round) { return scramble(thread * 977 + round * 31 + 5); }
// Of all sizes and both signs, so that another order gives another sum.
GPUFS_HOST_DEVICE double real(std::uint64_t thread, unsigned round) {
  const std::uint64_t x = input(thread, round);
  const double mantissa = static_cast<double>(x % 100003) / 7.0;
  return (x >> 40 & 1) != 0 ? -mantissa * 1e6 : mantissa;
}

struct results {
  std::uint32_t count, ballot;
  std::int64_t inclusive, exclusive;
  std::uint64_t inclusive_unsigned;
  std::int16_t inclusive16, exclusive16;
  float exclusive_float;
  double inclusive_real;
};

template <class Group>
GPUFS_DEVICE results run(Group group, std::uint64_t thread, unsigned round) {
  const std::uint64_t mine = input(thread, round);
  results r{};
  r.count = group.count((mine & 3) == 0);
  r.ballot = group.ballot((mine & 3) == 0);
  r.inclusive = group.inclusive_scan_add(static_cast<std::int64_t>(mine));
  r.exclusive = group.exclusive_scan_add(static_cast<std::int64_t>(mine));
  r.inclusive_unsigned = group.inclusive_scan_add(mine);
  r.inclusive16 = group.inclusive_scan_add(static_cast<std::int16_t>(mine));
  r.exclusive16 = group.exclusive_scan_add(static_cast<std::int16_t>(mine));
  r.exclusive_float = group.exclusive_scan_add(static_cast<float>(real(thread, round)));
  r.inclusive_real = group.inclusive_scan_add(real(thread, round));
  return r;
}

template <unsigned N>
struct group_of {
  using type = tile<N>;
};
template <>
struct group_of<0> {
  using type = block;
};

template <unsigned N>
struct group_kernel {
  results* out;
  unsigned nrounds;
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{block_rank()} * block_size() + thread_rank();
    for (unsigned round = 0; round < nrounds; ++round) {  // one after another through the same shared memory
      out[round * grid_size() * block_size() + me] = run(typename group_of<N>::type{}, me, round);
    }
  }
};

// What scans of real numbers promise: each step adds what lies 1, 2, 4, ... below.
template <class T>
std::vector<T> scan(std::vector<T> values) {
  for (std::size_t distance = 1; distance < values.size(); distance *= 2) {
    for (std::size_t i = values.size() - 1; i >= distance; --i) values[i] = values[i - distance] + values[i];
  }
  return values;
}
template <class T>
std::vector<T> reals(std::uint64_t first, unsigned n, unsigned round) {
  std::vector<T> values;
  for (unsigned i = 0; i < n; ++i) values.push_back(static_cast<T>(real(first + i, round)));
  return values;
}
// Of a block: of each warp, with the sum of the warps below before.
template <class T>
std::vector<T> block_scan(const std::vector<T>& values) {
  std::vector<T> all, sums(warp_lanes);
  for (std::size_t w = 0; w < values.size() / warp_lanes; ++w) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(w * warp_lanes);
    const std::vector<T> of_warp = scan(std::vector<T>(first, first + warp_lanes));
    sums[w] = of_warp.back();
    all.insert(all.end(), of_warp.begin(), of_warp.end());
  }
  const std::vector<T> up_to = scan(sums);
  for (std::size_t i = warp_lanes; i < all.size(); ++i) all[i] = up_to[i / warp_lanes - 1] + all[i];
  return all;
}

template <unsigned N>
void expect_right(unsigned threads) {
  constexpr unsigned grid_blocks = 2, nrounds = 3;
  const unsigned total = grid_blocks * threads, size = N == 0 ? threads : N;
  const device_array<results> out(std::size_t{total} * nrounds);
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    launch({.grid = grid_blocks, .block = threads, .schedule = {.seed = seed}}, group_kernel<N>{out.get(), nrounds});
    const std::vector<results> found = out.read();
    for (unsigned round = 0; round < nrounds; ++round) {
      for (unsigned first = 0; first < total; first += size) {
        const std::vector<double> of_reals = reals<double>(first, size, round);
        const std::vector<double> expected = N == 0 ? block_scan(of_reals) : scan(of_reals);
        const std::vector<float> of_floats = scan(reals<float>(first, size, round));
        std::uint32_t count = 0;
        std::vector<std::uint32_t> votes(warp_lanes);
        for (unsigned i = 0; i < size; ++i) {
          const bool has_it = (input(first + i, round) & 3) == 0;
          count += has_it;
          votes[i / warp_lanes] |= std::uint32_t{has_it} << i % warp_lanes;
        }
        std::uint64_t sum = 0;
        for (unsigned i = 0; i < size; ++i) {
          const results& r = found[round * total + first + i];
          ASSERT_EQ(r.count, count);
          ASSERT_EQ(r.ballot, votes[N == 0 ? i % warp_lanes : 0]);
          ASSERT_EQ(static_cast<std::uint64_t>(r.exclusive), sum);
          ASSERT_EQ(r.exclusive16, static_cast<std::int16_t>(sum));
          sum += input(first + i, round);
          ASSERT_EQ(static_cast<std::uint64_t>(r.inclusive), sum);
          ASSERT_EQ(r.inclusive_unsigned, sum);
          ASSERT_EQ(r.inclusive16, static_cast<std::int16_t>(sum));
          ASSERT_EQ(r.inclusive_real, expected[i]) << "thread " << first + i << " of a group of " << size;
          if (N != 0 || i == 0) {  // a block adds that of its lower warps last
            ASSERT_EQ(r.exclusive_float, i == 0 ? 0.0f : of_floats[i - 1]);
          }
        }
      }
    }
  }
}

TEST(scan, of_tiles) {
  expect_right<1>(32);
  expect_right<2>(64);
  expect_right<4>(32);
  expect_right<8>(96);
  expect_right<16>(64);
  expect_right<32>(96);
}

TEST(scan, of_blocks) {
  for (const unsigned threads : {32u, 64u, 96u, 1024u}) expect_right<0>(threads);
}

// Neighbours pass what they have round the grid, with a barrier between writing and reading.
struct pass_round_kernel {
  std::uint64_t* words;
  std::uint32_t* errors;
  unsigned nrounds;
  GPUFS_DEVICE void operator()() const {
    const grid all = this_grid();
    for (unsigned round = 0; round < nrounds; ++round) {
      words[all.rank()] = all.rank() * nrounds + round;
      all.sync();
      const std::uint64_t neighbour = (all.rank() + block_size()) % all.size();  // of another block
      if (words[neighbour] != neighbour * nrounds + round) atomic_ref<std::uint32_t>(*errors).add_relaxed(1);
      all.sync();
    }
  }
};

TEST(grid, has_a_barrier_where_the_launch_is_cooperative) {
  for (const unsigned blocks : {1u, 2u, 7u, 20u}) {
    for (std::uint64_t seed = 1; seed <= effort / 4 + 1; ++seed) {
      const device_array<std::uint64_t> words(std::size_t{blocks} * 64);
      const device_array<std::uint32_t> errors(1);
      const launch_config config{.grid = blocks, .block = 64, .schedule = {.seed = seed}, .cooperative = true};
      launch(config, pass_round_kernel{words.get(), errors.get(), 4});
      ASSERT_EQ(errors.read_one(), 0u) << blocks << " blocks, seed " << seed;
    }
  }
}

TEST(grid, has_a_barrier_in_launches_with_bounds_and_on_streams) {
  const device_array<std::uint64_t> words(3 * 64);
  const device_array<std::uint32_t> errors(1);
  const stream turns;
  launch<64>({.grid = 3, .block = 64, .cooperative = true}, pass_round_kernel{words.get(), errors.get(), 2}, turns);
  turns.wait();
  EXPECT_EQ(errors.read_one(), 0u);
  EXPECT_EQ(words.read()[100], 100u * 2 + 1);
}

struct grid_results {
  std::uint64_t sum, inclusive, exclusive;
  std::int32_t least, most;
  double real_sum, real_inclusive;
};
struct grid_kernel {
  grid_results* out;
  std::uint64_t* words;
  std::int32_t* small_words;
  double* real_words;
  unsigned nrounds;
  GPUFS_DEVICE void operator()() const {
    const grid all = this_grid();
    for (unsigned round = 0; round < nrounds; ++round) {
      const std::uint64_t mine = input(all.rank(), round);
      const auto few = static_cast<std::int32_t>(mine);
      grid_results r{};
      r.sum = all.reduce_add(mine, words);
      r.inclusive = all.inclusive_scan_add(mine, words);
      r.exclusive = all.exclusive_scan_add(mine, words);
      r.least = all.reduce_min(few, small_words);
      r.most = all.reduce_max(few, small_words);
      r.real_sum = all.reduce_add(real(all.rank(), round), real_words);
      r.real_inclusive = all.inclusive_scan_add(real(all.rank(), round), real_words);
      out[round * all.size() + all.rank()] = r;
    }
  }
};

TEST(grid, reduces_and_scans) {
  constexpr unsigned nrounds = 2;
  for (const unsigned blocks : {1u, 3u, 40u}) {
    const std::size_t n = std::size_t{blocks} * 32;
    const device_array<grid_results> out(n * nrounds);
    const device_array<std::uint64_t> words(blocks);
    const device_array<std::int32_t> small_words(blocks);
    const device_array<double> real_words(blocks);
    const grid_kernel kernel{out.get(), words.get(), small_words.get(), real_words.get(), nrounds};
    std::vector<grid_results> before;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      launch({.grid = blocks, .block = 32, .schedule = {.seed = seed}, .cooperative = true}, kernel);
      const std::vector<grid_results> found = out.read();
      for (unsigned round = 0; round < nrounds; ++round) {
        std::uint64_t sum = 0;
        std::int32_t least = INT32_MAX, most = INT32_MIN;
        double real_sum = 0;
        for (std::size_t i = 0; i < n; ++i) {
          const grid_results& r = found[round * n + i];
          ASSERT_EQ(r.exclusive, sum);
          sum += input(i, round);
          ASSERT_EQ(r.inclusive, sum);
          least = std::min(least, static_cast<std::int32_t>(input(i, round)));
          most = std::max(most, static_cast<std::int32_t>(input(i, round)));
          real_sum += real(i, round);
          ASSERT_NEAR(r.real_inclusive, real_sum, 0.1);
        }
        for (std::size_t i = 0; i < n; ++i) {
          const grid_results& r = found[round * n + i];
          ASSERT_EQ(r.sum, sum);
          ASSERT_EQ(r.least, least);
          ASSERT_EQ(r.most, most);
          ASSERT_EQ(r.real_sum, found[round * n].real_sum);
        }
        ASSERT_NEAR(found[round * n].real_sum, real_sum, 0.1);
      }
      // To the bit, whoever comes first.
      for (std::size_t i = 0; i < before.size(); ++i) {
        ASSERT_EQ(found[i].real_sum, before[i].real_sum);
        ASSERT_EQ(found[i].real_inclusive, before[i].real_inclusive);
      }
      before = found;
    }
  }
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const launch_error& e) {
    return e.what();
  }
  return "";
}

TEST(grid, of_more_blocks_than_run_at_once_is_refused) {
  const pass_round_kernel kernel{nullptr, nullptr, 0};
  const launch_config one{.block = 1024};
  const unsigned most = max_cooperative_grid(one, kernel);
  ASSERT_GE(most, 1u);
  launch({.grid = most, .block = 1024, .cooperative = true}, kernel);
  EXPECT_THROW(launch({.grid = most + 1, .block = 1024, .cooperative = true}, kernel), launch_error);
  EXPECT_NO_THROW(launch({.grid = most + 1, .block = 1024}, kernel));  // one after the other
#if !GPUFS_ON_CUDA
  const std::string why =
      refusal([&] { launch({.grid = 3, .block = 32, .schedule = {.resident_blocks = 2}, .cooperative = true}, kernel); });
  EXPECT_EQ(why, "a cooperative launch of 3 blocks of 32 threads: at most 2 run at once");
#endif
}

#if !GPUFS_ON_CUDA  // on CUDA the kernel is lost, or waits for ever

struct some_blocks_kernel {
  GPUFS_DEVICE void operator()() const {
    if (block_rank() != 1) this_grid().sync();
  }
};

TEST(grid, is_told_where_blocks_do_not_come_or_the_launch_is_not_cooperative) {
  const std::string not_all = refusal([] { launch({.grid = 3, .block = 32, .cooperative = true}, some_blocks_kernel{}); });
  EXPECT_NE(not_all.find("waits in a grid barrier for blocks that have ended"), std::string::npos) << not_all;
  const std::string plain = refusal([] { launch({.grid = 3, .block = 32}, some_blocks_kernel{}); });
  EXPECT_NE(plain.find("comes to a grid barrier in a launch that is not cooperative"), std::string::npos) << plain;
  EXPECT_THROW(this_grid().sync(), launch_error);  // in a host thread
}

#endif

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt::test
