// SPDX-License-Identifier: Apache-2.0
// Lanes that arrive together: whatever set it is, its lanes agree on it and can work as a group, in any divergence.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <set>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

struct seen {
  std::uint32_t mask, size, rank, leader, ballot, same, from_leader, from_last;
};

// Each lane takes one of `nways` branches by its bits, and one in eight lanes none.
struct meet {
  std::uint64_t seed;
  unsigned nways;
  seen* out;

  template <unsigned Way>
  struct place {};

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t drawn = scramble(seed * 4096 + thread_rank());
    seen& mine = out[block_rank() * block_size() + thread_rank()];
    mine = {};
    if (drawn % 8 == 7) return;
    switch ((drawn >> 8) % nways) {
      case 0:
        return visit<0>(drawn, mine);
      case 1:
        return visit<1>(drawn, mine);
      case 2:
        return visit<2>(drawn, mine);
      default:
        return visit<3>(drawn, mine);
    }
  }

  template <unsigned Way>
  GPUFS_DEVICE static void visit(std::uint64_t drawn, seen& mine) {
    const some_lanes lanes = lanes_together<place<Way>>();
    seen s{};
    s.mask = lanes.mask();
    s.size = lanes.size();
    s.rank = lanes.rank();
    s.leader = lanes.leader();
    s.ballot = lanes.ballot_lanes((drawn >> 20 & 1) != 0);
    s.same = lanes.match_any_lanes(static_cast<std::uint32_t>(drawn >> 30 & 3));
    s.from_leader = lanes.broadcast(lane_id());
    s.from_last = lanes.shfl_from_lane(lane_id(), 31 - static_cast<unsigned>(count_leading_zeros(lanes.mask())));
    lanes.sync();
    mine = s;
  }

  GPUFS_DEVICE static int count_leading_zeros(std::uint32_t x) {
    int n = 0;
    for (; (x & 0x80000000u) == 0; x <<= 1) ++n;
    return n;
  }
};

TEST(some_lanes, agree_on_who_they_are) {
  constexpr unsigned threads = 128;
  std::set<std::uint32_t> sizes;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const unsigned nways = 1 + seed % 4;
    const device_array<seen> out(threads);
    launch({.grid = 1, .block = threads, .schedule = {.seed = seed}}, meet{seed, nways, out.get()});
    const auto got = out.read();
    const auto drawn = [&](unsigned t) { return scramble(seed * 4096 + t); };
    for (unsigned t = 0; t < threads; ++t) {
      const seen& s = got[t];
      if (drawn(t) % 8 == 7) continue;
      const unsigned lane = t % 32, first = t - lane;
      ASSERT_NE(s.mask >> lane & 1, 0u);
      sizes.insert(s.size);
      EXPECT_EQ(s.size, static_cast<unsigned>(std::popcount(s.mask)));
      EXPECT_EQ(s.rank, static_cast<unsigned>(std::popcount(s.mask & ((1u << lane) - 1))));
      EXPECT_EQ(s.leader, s.rank == 0);
      EXPECT_EQ(s.from_leader, static_cast<unsigned>(std::countr_zero(s.mask)));
      EXPECT_EQ(s.from_last, 31u - static_cast<unsigned>(std::countl_zero(s.mask)));
      std::uint32_t votes = 0, same = 0;
      for (unsigned i = 0; i < 32; ++i) {
        if ((s.mask >> i & 1) == 0) continue;
        ASSERT_EQ(got[first + i].mask, s.mask) << "lanes " << lane << " and " << i << " of seed " << seed;
        EXPECT_EQ((drawn(first + i) >> 8) % nways, (drawn(t) >> 8) % nways) << "came from another branch";
        votes |= static_cast<std::uint32_t>(drawn(first + i) >> 20 & 1) << i;
        same |= static_cast<std::uint32_t>((drawn(first + i) >> 30 & 3) == (drawn(t) >> 30 & 3)) << i;
      }
      EXPECT_EQ(s.ballot, votes);
      EXPECT_EQ(s.same, same);
    }
  }
#if GPUFS_ON_CUDA
  EXPECT_EQ(sizes, (std::set<std::uint32_t>{1, 32}));
#else
  EXPECT_GT(sizes.size(), 3u) << "the sets differ";
#endif
  EXPECT_GT(*sizes.rbegin(), 4u) << "lanes do meet";
}

// Lanes of two tiles arrive together and work as a group, while the others of their tiles wait for them already.
struct across_tiles {
  unsigned rounds;
  std::uint32_t* wrong;

  GPUFS_DEVICE void operator()() const {
    const auto tile = this_tile<8>();
    for (unsigned i = 0; i < rounds; ++i) {
      const std::uint64_t drawn = scramble(i * 4096 + thread_rank());
      if (drawn % 4 != 0) {
        const some_lanes lanes = lanes_together<across_tiles>();
        for (unsigned k = 0; k < 3; ++k) {
          if ((lanes.ballot_lanes(true) & lanes.mask()) != lanes.mask())
            atomic_ref<std::uint32_t>(*wrong).fetch_add(1, std::memory_order_relaxed);
        }
      }
      if (tile.reduce_add(1u) != 8) atomic_ref<std::uint32_t>(*wrong).fetch_add(1, std::memory_order_relaxed);
    }
  }
};

TEST(some_lanes, of_several_tiles) {
  const device_array<std::uint32_t> wrong(1);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    launch({.grid = 1, .block = 64, .schedule = {.seed = seed, .nthreads = 1}}, across_tiles{20, wrong.get()});
  }
  EXPECT_EQ(wrong.read()[0], 0u);
}

struct count_whole_warps {
  unsigned times;
  std::uint32_t* out;

  GPUFS_DEVICE void operator()() const {
    std::uint32_t whole = 0;
    for (unsigned i = 0; i < times; ++i) {
      whole += lanes_together<count_whole_warps>().mask() == ~0u;
      this_warp().sync();
    }
    out[thread_rank()] = whole;
  }
};

// The fast paths are for whole warps, and the others for the rest: tests must see both.
TEST(some_lanes, are_often_a_whole_warp) {
  constexpr unsigned times = 200;
  const device_array<std::uint32_t> out(32);
  launch({.grid = 1, .block = 32, .schedule = {.seed = 1, .nthreads = 1}}, count_whole_warps{times, out.get()});
  for (const std::uint32_t whole : out.read()) {
    EXPECT_GE(whole, times / 4);
#if !GPUFS_ON_CUDA
    EXPECT_LE(whole, times * 3 / 4);
#endif
  }
}

TEST(some_lanes, are_a_whole_warp_where_the_schedule_says_so) {
  constexpr unsigned times = 50;
  const device_array<std::uint32_t> out(64);
  for (const unsigned percent : {0u, 25u, 100u}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      launch({.grid = 1, .block = 64, .schedule = {.seed = seed, .switch_percent = percent, .whole_warps = true}},
             count_whole_warps{times, out.get()});
      EXPECT_EQ(out.read(), std::vector<std::uint32_t>(64, times)) << "seed " << seed << ", switches " << percent << " %";
    }
  }
}

// A leader waits for a while, out of line as slow paths do and in a loop of its own, and the warp comes together again.
GPUFS_DEVICE_COLD std::uint32_t wait_a_little(std::uint32_t ns) {
  backoff pause;
  for (const deadline until(ns); !until.expired();) pause();
  return ns;
}
struct rejoin_after_a_leader {
  std::uint32_t* out;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    std::uint32_t apart = 0;
    for (unsigned i = 0; i < 8; ++i) {
      if (warp.leader()) apart += call_cold(&wait_a_little, 2000 + i) == 0;
      rejoin(warp);
      apart += lanes_together<rejoin_after_a_leader>().mask() != ~0u;
      if (warp.leader()) apart += wait_a_little(2000 + i) == 0;
      rejoin(warp);
      apart += lanes_together<rejoin_after_a_leader>().mask() != ~0u;
    }
    out[thread_rank()] = apart;
  }
};

TEST(some_lanes, are_a_whole_warp_after_rejoin) {
  const device_array<std::uint32_t> out(64);
  launch({.grid = 1, .block = 64, .schedule = {.seed = 1, .whole_warps = true}}, rejoin_after_a_leader{out.get()});
  EXPECT_EQ(out.read(), std::vector<std::uint32_t>(64, 0u));
}

// One lane a warp arrives again and again, and nobody else is there.
struct arrive_alone {
  unsigned times;
  std::uint32_t* out;

  GPUFS_DEVICE void operator()() const {
    if (lane_id() != 7) return;
    std::uint32_t masks = 0;
    for (unsigned i = 0; i < times; ++i) masks |= lanes_together<arrive_alone>().mask();
    out[0] = masks;
  }
};

// The CPU machine makes lanes wait for each other by letting others run first, and sleeps where all lanes wait: not for this (it
// took 110 us an arrival).
TEST(some_lanes, that_nobody_joins_do_not_sleep) {
  constexpr unsigned times = 50'000;
  const device_array<std::uint32_t> out(1);
  const auto start = std::chrono::steady_clock::now();
  launch({.grid = 1, .block = 32, .schedule = {.seed = 1, .nthreads = 1}}, arrive_alone{times, out.get()});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(out.read()[0], 1u << 7);
  EXPECT_LT(took.count(), 2.0);
}

TEST(some_lanes, host_thread_is_one_lane) {
#if !GPUFS_ON_CUDA
  EXPECT_EQ(lanes_together<seen>().mask(), 1u);
#endif
}

}  // namespace
}  // namespace gpufs::simt::test
