// SPDX-License-Identifier: Apache-2.0
// Tiles of every size and blocks: each operation against what the host computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

// What every thread brings: few distinct values, so that match_any finds some.
GPUFS_HOST_DEVICE std::uint64_t input(unsigned thread, unsigned round) { return scramble(thread * 977 + round * 31 + 5); }
GPUFS_HOST_DEVICE std::int32_t small(unsigned thread, unsigned round) {
  return static_cast<std::int32_t>(input(thread, round) % 5) - 2;
}

struct tile_results {
  std::uint32_t size, rank, mask, leader, ballot, any, all, sync_saw;
  std::uint64_t shfl, broadcast;
  std::uint32_t match4, match8;
  std::int32_t add32, min32, max32;
  std::uint32_t uadd32, umin32, umax32;
  std::int64_t add64, min64, max64;
  std::uint64_t umin64, umax64;
  std::int32_t min8, max16;
};

template <unsigned N>
GPUFS_DEVICE tile_results run_tile(tile<N> group, unsigned thread, unsigned round, std::uint32_t* scratch) {
  tile_results r{};
  const std::uint64_t mine = input(thread, round);
  const std::int32_t few = small(thread, round);
  r.size = group.size();
  r.rank = group.rank();
  r.mask = group.mask();
  r.leader = group.leader() && group.elect();
  r.ballot = group.ballot((mine & 1) != 0);
  r.any = group.any((mine & 7) == 0);
  r.all = group.all((mine & 7) != 0);
  r.shfl = group.shfl(mine, static_cast<unsigned>((mine >> 8) % N));
  r.broadcast = group.broadcast(mine, (round * 7) % N);
  r.match4 = group.match_any(few);
  r.match8 = group.match_any(static_cast<double>(few));
  r.add32 = group.reduce_add(few);
  r.min32 = group.reduce_min(few);
  r.max32 = group.reduce_max(few);
  r.uadd32 = group.reduce_add(static_cast<std::uint32_t>(mine));
  r.umin32 = group.reduce_min(static_cast<std::uint32_t>(mine));
  r.umax32 = group.reduce_max(static_cast<std::uint32_t>(mine));
  r.add64 = group.reduce_add(static_cast<std::int64_t>(mine));
  r.min64 = group.reduce_min(static_cast<std::int64_t>(mine));
  r.max64 = group.reduce_max(static_cast<std::int64_t>(mine));
  r.umin64 = group.reduce_min(mine);
  r.umax64 = group.reduce_max(mine);
  r.min8 = group.reduce_min(static_cast<signed char>(mine));
  r.max16 = group.reduce_max(static_cast<std::int16_t>(mine));
  // sync orders plain writes among the group.
  group.sync();
  scratch[thread] = static_cast<std::uint32_t>(mine);
  group.sync();
  r.sync_saw = scratch[thread - group.rank() + (group.rank() + 1) % N];
  return r;
}

template <unsigned N>
struct tile_kernel {
  tile_results* out;
  std::uint32_t* scratch;
  unsigned round;
  bool divergent;
  GPUFS_DEVICE void operator()() const {
    const unsigned thread = block_rank() * block_size() + thread_rank();
    const unsigned which = lane_id() / N;
    if (!divergent) {
      out[thread] = run_tile(this_tile<N>(), thread, round, scratch);
    } else if (which % 3 == 0) {  // tiles of one warp in different code, some more than once
      out[thread] = run_tile(this_tile<N>(), thread, round, scratch);
    } else {
      for (unsigned i = 0; i < which; ++i) out[thread] = run_tile(this_tile<N>(), thread, round, scratch);
    }
  }
};

template <unsigned N>
tile_results expected_tile(unsigned thread, unsigned round) {
  tile_results r{};
  const unsigned base = thread / N * N;
  const std::uint64_t mine = input(thread, round);
  r.size = N;
  r.rank = thread - base;
  r.mask = (N == 32 ? ~0u : (1u << N) - 1) << (base % 32);
  r.leader = r.rank == 0;
  r.all = 1;
  r.min32 = r.min8 = 127;
  r.max32 = r.max16 = -32768;
  r.umin32 = ~0u;
  r.umin64 = ~std::uint64_t{0};
  r.min64 = INT64_MAX;
  r.max64 = INT64_MIN;
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < N; ++i) {
    const std::uint64_t v = input(base + i, round);
    const std::int32_t few = small(base + i, round);
    if (v & 1) r.ballot |= 1u << i;
    if ((v & 7) == 0) r.any = 1;
    if ((v & 7) == 0) r.all = 0;
    if (few == small(thread, round)) r.match4 |= 1u << i;
    r.add32 += few;
    r.min32 = std::min(r.min32, few);
    r.max32 = std::max(r.max32, few);
    r.uadd32 += static_cast<std::uint32_t>(v);
    r.umin32 = std::min(r.umin32, static_cast<std::uint32_t>(v));
    r.umax32 = std::max(r.umax32, static_cast<std::uint32_t>(v));
    sum += v;
    r.min64 = std::min(r.min64, static_cast<std::int64_t>(v));
    r.max64 = std::max(r.max64, static_cast<std::int64_t>(v));
    r.umin64 = std::min(r.umin64, v);
    r.umax64 = std::max(r.umax64, v);
    r.min8 = std::min<std::int32_t>(r.min8, static_cast<signed char>(v));
    r.max16 = std::max<std::int32_t>(r.max16, static_cast<std::int16_t>(v));
  }
  r.add64 = static_cast<std::int64_t>(sum);
  r.match8 = r.match4;
  r.shfl = input(base + static_cast<unsigned>((mine >> 8) % N), round);
  r.broadcast = input(base + (round * 7) % N, round);
  r.sync_saw = static_cast<std::uint32_t>(input(base + (r.rank + 1) % N, round));
  return r;
}

template <unsigned N>
void check_tiles() {
  constexpr unsigned grid = 2, threads = 96;
  device_array<tile_results> out(grid * threads);
  device_array<std::uint32_t> scratch(grid * threads);
  for (unsigned round = 0; round < 2 + effort / 5; ++round) {
    for (const bool divergent : {false, true}) {
      launch({.grid = grid, .block = threads, .schedule = {.seed = round + 1}},
             tile_kernel<N>{out.get(), scratch.get(), round, divergent});
      const auto found = out.read();
      for (unsigned t = 0; t < grid * threads; ++t) {
        const tile_results e = expected_tile<N>(t, round), &f = found[t];
        const auto at = ::testing::Message() << "N=" << N << " thread " << t << " round " << round;
        ASSERT_EQ(f.size, e.size) << at;
        ASSERT_EQ(f.rank, e.rank) << at;
        ASSERT_EQ(f.mask, e.mask) << at;
        ASSERT_EQ(f.leader, e.leader) << at;
        ASSERT_EQ(f.ballot, e.ballot) << at;
        ASSERT_EQ(f.any, e.any) << at;
        ASSERT_EQ(f.all, e.all) << at;
        ASSERT_EQ(f.shfl, e.shfl) << at;
        ASSERT_EQ(f.broadcast, e.broadcast) << at;
        ASSERT_EQ(f.match4, e.match4) << at;
        ASSERT_EQ(f.match8, e.match8) << at;
        ASSERT_EQ(f.add32, e.add32) << at;
        ASSERT_EQ(f.min32, e.min32) << at;
        ASSERT_EQ(f.max32, e.max32) << at;
        ASSERT_EQ(f.uadd32, e.uadd32) << at;
        ASSERT_EQ(f.umin32, e.umin32) << at;
        ASSERT_EQ(f.umax32, e.umax32) << at;
        ASSERT_EQ(f.add64, e.add64) << at;
        ASSERT_EQ(f.min64, e.min64) << at;
        ASSERT_EQ(f.max64, e.max64) << at;
        ASSERT_EQ(f.umin64, e.umin64) << at;
        ASSERT_EQ(f.umax64, e.umax64) << at;
        ASSERT_EQ(f.min8, e.min8) << at;
        ASSERT_EQ(f.max16, e.max16) << at;
        ASSERT_EQ(f.sync_saw, e.sync_saw) << at;
      }
    }
  }
}

TEST(tile, of_1) { check_tiles<1>(); }
TEST(tile, of_2) { check_tiles<2>(); }
TEST(tile, of_4) { check_tiles<4>(); }
TEST(tile, of_8) { check_tiles<8>(); }
TEST(tile, of_16) { check_tiles<16>(); }
TEST(tile, of_32) { check_tiles<32>(); }

template <std::size_t Size>
struct bytes {
  unsigned char value[Size];
};

// A value of Size bytes through shfl of a warp and of a tile, and through the block's broadcast.
template <std::size_t Size>
GPUFS_DEVICE unsigned exchange_errors() {
  bytes<Size> mine;
  for (std::size_t i = 0; i < Size; ++i) mine.value[i] = static_cast<unsigned char>(thread_rank() * 7 + i * 3 + Size);
  const unsigned from_warp = (lane_id() * 5 + 3) % 32, from_tile = (lane_id() + 1) % 8;
  const bytes<Size> a = this_warp().shfl(mine, from_warp);
  const bytes<Size> b = this_tile<8>().shfl(mine, from_tile);
  const bytes<Size> c = this_block().broadcast(mine, static_cast<unsigned>(Size) % block_size());
  const bytes<Size> d = this_warp().broadcast(mine, static_cast<unsigned>(Size) % 32);
  unsigned errors = 0;
  const unsigned warp_base = thread_rank() - lane_id(), tile_base = thread_rank() / 8 * 8;
  for (std::size_t i = 0; i < Size; ++i) {
    const auto at = [i](unsigned thread) { return static_cast<unsigned char>(thread * 7 + i * 3 + Size); };
    errors += a.value[i] != at(warp_base + from_warp);
    errors += b.value[i] != at(tile_base + from_tile);
    errors += c.value[i] != at(static_cast<unsigned>(Size) % block_size());
    errors += d.value[i] != at(warp_base + static_cast<unsigned>(Size) % 32);
  }
  return errors;
}

template <std::size_t... Sizes>
GPUFS_DEVICE unsigned all_exchange_errors(std::index_sequence<Sizes...>) {
  unsigned errors = 0;
  ((errors += exchange_errors<Sizes + 1>()), ...);
  return errors;
}

struct exchange_kernel {
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    atomic_ref<unsigned>(*errors).add_relaxed(all_exchange_errors(std::make_index_sequence<64>{}));
  }
};

TEST(exchange, carries_1_to_64_bytes) {
  device_array<unsigned> errors(1);
  launch({.grid = 2, .block = 64}, exchange_kernel{errors.get()});
  EXPECT_EQ(errors.read_one(), 0u);
}

// What reduce_add of floating-point numbers promises, by the host: the second half's are added to the first's, and so on.
template <class T>
T halves_sum(std::vector<T> values) {
  for (std::size_t n = values.size() / 2; n > 0; n /= 2) {
    for (std::size_t i = 0; i < n; ++i) values[i] += values[i + n];
  }
  return values[0];
}
// Of all sizes and both signs, so that another order gives another sum.
template <class T>
GPUFS_HOST_DEVICE T real(unsigned thread, unsigned round) {
  const std::uint64_t x = input(thread, round);
  const T mantissa = static_cast<T>(x % 100003) / static_cast<T>(7);
  const T scaled = (x >> 40 & 1) != 0 ? mantissa * static_cast<T>(1e6) : mantissa;
  return (x >> 41 & 1) != 0 ? -scaled : scaled;
}

struct real_results {
  float of_tile4, of_warp, of_block;
  double of_tile4_wide, of_warp_wide, of_block_wide;
  float swapped, from_below;
  std::uint64_t swapped_wide, from_below_wide;
};
struct real_kernel {
  real_results* out;
  unsigned round;
  GPUFS_DEVICE void operator()() const {
    const unsigned thread = block_rank() * block_size() + thread_rank();
    const float x = real<float>(thread, round);
    const double y = real<double>(thread, round);
    real_results r{};
    r.of_tile4 = this_tile<4>().reduce_add(x);
    r.of_warp = this_warp().reduce_add(x);
    r.of_block = this_block().reduce_add(x);
    r.of_tile4_wide = this_tile<4>().reduce_add(y);
    r.of_warp_wide = this_warp().reduce_add(y);
    r.of_block_wide = this_block().reduce_add(y);
    r.swapped = this_warp().shfl_xor(x, round * 7 % 32);
    r.swapped_wide = this_tile<8>().shfl_xor(input(thread, round), round % 8);
    r.from_below = this_warp().shfl_up(x, 1 + round * 7 % 31);
    r.from_below_wide = this_tile<8>().shfl_up(input(thread, round), 1 + round % 7);
    if (this_thread().shfl_up(x, 1) != x) r.of_warp = -1;
    if (this_thread().shfl_xor(x, 0) != x || this_thread().reduce_add(x) != x) r.of_warp = -1;
    out[thread] = r;
  }
};

template <class T>
std::vector<T> reals(unsigned first, unsigned count, unsigned round) {
  std::vector<T> values;
  for (unsigned i = 0; i < count; ++i) values.push_back(real<T>(first + i, round));
  return values;
}
template <class T>
T block_sum(unsigned first, unsigned nthreads, unsigned round) {
  std::vector<T> of_warps(32);
  for (unsigned w = 0; w < nthreads / 32; ++w) of_warps[w] = halves_sum(reals<T>(first + w * 32, 32, round));
  return halves_sum(of_warps);
}

// Bit by bit, on both machines.
TEST(reduce, sums_of_real_numbers_have_one_order) {
  for (const unsigned threads : {32u, 96u, 1024u}) {
    for (unsigned round = 0; round < 3; ++round) {
      device_array<real_results> out(2 * threads);
      launch({.grid = 2, .block = threads, .schedule = {.seed = round + 1}}, real_kernel{out.get(), round});
      const auto found = out.read();
      for (unsigned t = 0; t < 2 * threads; ++t) {
        const real_results& f = found[t];
        ASSERT_EQ(f.of_tile4, halves_sum(reals<float>(t / 4 * 4, 4, round)));
        ASSERT_EQ(f.of_warp, halves_sum(reals<float>(t / 32 * 32, 32, round)));
        ASSERT_EQ(f.of_tile4_wide, halves_sum(reals<double>(t / 4 * 4, 4, round)));
        ASSERT_EQ(f.of_warp_wide, halves_sum(reals<double>(t / 32 * 32, 32, round)));
        ASSERT_EQ(f.swapped, real<float>(t ^ (round * 7 % 32), round));
        ASSERT_EQ(f.swapped_wide, input(t ^ (round % 8), round));
        const unsigned far = 1 + round * 7 % 31, near = 1 + round % 7;
        ASSERT_EQ(f.from_below, real<float>(t % 32 >= far ? t - far : t, round));
        ASSERT_EQ(f.from_below_wide, input(t % 8 >= near ? t - near : t, round));
        if (t % threads % 37 != 0) continue;  // the host's sum of a block takes long
        ASSERT_EQ(f.of_block, block_sum<float>(t / threads * threads, threads, round));
        ASSERT_EQ(f.of_block_wide, block_sum<double>(t / threads * threads, threads, round));
      }
    }
  }
  // The order matters for these numbers: a sum from left to right is another one.
  float left_to_right = 0;
  for (const float x : reals<float>(0, 32, 0)) left_to_right += x;
  EXPECT_NE(left_to_right, halves_sum(reals<float>(0, 32, 0)));
}

struct block_reductions {
  std::int32_t add, min, max;
  std::int64_t add64, min64;
  std::uint64_t umin64, umax64;
  std::int32_t min8;
  std::uint32_t umax16;
};
struct block_reduce_kernel {
  block_reductions* out;
  unsigned nrounds;
  GPUFS_DEVICE void operator()() const {
    const block group = this_block();
    const unsigned thread = block_rank() * block_size() + thread_rank();
    for (unsigned round = 0; round < nrounds; ++round) {  // one after another through the same shared memory
      const std::uint64_t mine = input(thread, round);
      const auto few = static_cast<std::int32_t>(mine);
      block_reductions& r = out[round * grid_size() * block_size() + thread];
      r.add = group.reduce_add(few);
      r.min = group.reduce_min(few);
      r.max = group.reduce_max(few);
      r.add64 = group.reduce_add(static_cast<std::int64_t>(mine));
      r.min64 = group.reduce_min(static_cast<std::int64_t>(mine));
      r.umin64 = group.reduce_min(mine | 1);
      r.umax64 = group.reduce_max(mine);
      r.min8 = group.reduce_min(static_cast<signed char>(mine));
      r.umax16 = group.reduce_max(static_cast<std::uint16_t>(mine));
    }
  }
};

TEST(block, reductions) {
  for (const unsigned threads : {32u, 64u, 224u, 1024u}) {
    constexpr unsigned grid = 2, nrounds = 3;
    device_array<block_reductions> out(nrounds * grid * threads);
    launch({.grid = grid, .block = threads}, block_reduce_kernel{out.get(), nrounds});
    const auto found = out.read();
    for (unsigned round = 0; round < nrounds; ++round) {
      for (unsigned b = 0; b < grid; ++b) {
        block_reductions e{0, INT32_MAX, INT32_MIN, 0, INT64_MAX, UINT64_MAX, 0, 127, 0};
        std::uint64_t sum = 0;
        for (unsigned t = 0; t < threads; ++t) {
          const std::uint64_t v = input(b * threads + t, round);
          sum += v;
          e.min = std::min(e.min, static_cast<std::int32_t>(v));
          e.max = std::max(e.max, static_cast<std::int32_t>(v));
          e.min64 = std::min(e.min64, static_cast<std::int64_t>(v));
          e.umin64 = std::min(e.umin64, v | 1);
          e.umax64 = std::max(e.umax64, v);
          e.min8 = std::min<std::int32_t>(e.min8, static_cast<signed char>(v));
          e.umax16 = std::max<std::uint32_t>(e.umax16, static_cast<std::uint16_t>(v));
        }
        for (unsigned t = 0; t < threads; ++t) {
          const block_reductions& f = found[(round * grid + b) * threads + t];
          ASSERT_EQ(static_cast<std::uint32_t>(f.add), static_cast<std::uint32_t>(sum));
          ASSERT_EQ(f.min, e.min);
          ASSERT_EQ(f.max, e.max);
          ASSERT_EQ(static_cast<std::uint64_t>(f.add64), sum);
          ASSERT_EQ(f.min64, e.min64);
          ASSERT_EQ(f.umin64, e.umin64);
          ASSERT_EQ(f.umax64, e.umax64);
          ASSERT_EQ(f.min8, e.min8);
          ASSERT_EQ(f.umax16, e.umax16);
        }
      }
    }
  }
}

struct block_results {
  std::uint32_t size, rank, leader, nwarps, warp_size, any, all, last;
  std::uint64_t broadcast;
};

struct block_kernel {
  block_results* out;
  std::uint32_t* scratch;
  unsigned nrounds;
  GPUFS_DEVICE void operator()() const {
    const block group = this_block();
    const unsigned thread = block_rank() * block_size() + thread_rank();
    for (unsigned round = 0; round < nrounds; ++round) {
      const std::uint64_t mine = input(thread, round);
      block_results r{};
      r.size = group.size();
      r.rank = group.rank();
      r.leader = group.leader() && group.elect();
      r.nwarps = group.nwarps();
      r.warp_size = static_cast<std::uint32_t>(group.warp().reduce_add(1));
      r.any = group.any(mine % 61 == 0);
      r.all = group.all(mine % 61 != 0);
      r.broadcast = group.broadcast(mine, round * 13 % group.size());
      scratch[thread] = static_cast<std::uint32_t>(mine);
      group.sync();
      r.last = scratch[block_rank() * block_size() + (thread_rank() + 33) % block_size()];
      group.sync();
      out[round * grid_size() * block_size() + thread] = r;
    }
  }
};

TEST(block, operations) {
  for (const unsigned threads : {32u, 64u, 96u, 256u, 1024u}) {
    constexpr unsigned grid = 3;
    const unsigned nrounds = 2 + effort / 5;
    device_array<block_results> out(nrounds * grid * threads);
    device_array<std::uint32_t> scratch(grid * threads);
    launch({.grid = grid, .block = threads}, block_kernel{out.get(), scratch.get(), nrounds});
    const auto found = out.read();
    for (unsigned round = 0; round < nrounds; ++round) {
      for (unsigned t = 0; t < grid * threads; ++t) {
        const block_results& f = found[round * grid * threads + t];
        const unsigned base = t / threads * threads;
        bool any = false;
        for (unsigned i = 0; i < threads; ++i) any |= input(base + i, round) % 61 == 0;
        ASSERT_EQ(f.size, threads);
        ASSERT_EQ(f.rank, t - base);
        ASSERT_EQ(f.leader, t == base);
        ASSERT_EQ(f.nwarps, threads / 32);
        ASSERT_EQ(f.warp_size, 32u);
        ASSERT_EQ(f.any, any);
        ASSERT_EQ(f.all, !any);
        ASSERT_EQ(f.broadcast, input(base + round * 13 % threads, round));
        ASSERT_EQ(f.last, static_cast<std::uint32_t>(input(base + (t - base + 33) % threads, round)));
      }
    }
  }
}

// Warps of one block call warp collectives different numbers of times between block barriers.
struct uneven_kernel {
  std::uint32_t* sums;
  GPUFS_DEVICE void operator()() const {
    std::uint32_t sum = 0;
    for (unsigned round = 0; round < 4; ++round) {
      for (unsigned i = 0; i < (warp_rank() + round) % 3 + 1; ++i) sum += this_warp().reduce_add(lane_id() + i);
      sum += this_block().broadcast(sum, 0);
    }
    if (this_warp().leader()) sums[warp_rank()] = sum;
  }
};

TEST(block, warps_go_their_own_way_between_barriers) {
  device_array<std::uint32_t> sums(4);
  launch({.grid = 1, .block = 128}, uneven_kernel{sums.get()});
  std::uint32_t expected[4] = {};
  for (unsigned round = 0; round < 4; ++round) {
    for (unsigned w = 0; w < 4; ++w) {
      for (unsigned i = 0; i < (w + round) % 3 + 1; ++i) expected[w] += 496 + 32 * i;
    }
    const std::uint32_t first = expected[0];
    for (unsigned w = 0; w < 4; ++w) expected[w] += first;
  }
  const auto found = sums.read();
  for (unsigned w = 0; w < 4; ++w) EXPECT_EQ(found[w], expected[w]) << w;
}

}  // namespace
}  // namespace gpufs::simt::test
