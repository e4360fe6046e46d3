// SPDX-License-Identifier: Apache-2.0
// Walks: how many pages a pointer links to once it is seen to go from page to page, that it gives all of them back, and for_each_n.
#include "pointer/pointer_fixture.hpp"
#include "pointer/sequential_access.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct walk : pointer_fixture {
  walk() { options.cache_nbytes = 4096 * page; }  // an eighth of it is more than the file for each warp
};

// One warp reads an element a lane of each page, and says after each how many pages the pointers hold (pins are 32 each); `bytes`
// of the file are mapped.
struct hold_more : pointer_job {
  std::int64_t bytes, stride;  // stride: pages
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      auto p = map<const std::uint32_t>(warp, f, 0, bytes / 4) + warp.rank();
      std::int64_t wrong = 0;
      for (unsigned i = 0; i < outs - 1; ++i, p += stride * per_page) {
        if (p.left() <= 0) break;
        warp.sync();
        wrong += *p != word_at(p.offset() / 4);
        mine()[i] = pins_at_rest();
      }
      mine()[outs - 1] = wrong;
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(walk, who_goes_from_page_to_page_links_to_eight_times_as_many) {
  run<bring_in>(1, 32);
  for (std::uint64_t seed = 1; seed <= schedules(6, 3); ++seed) {
    schedule.seed = seed;
    schedule.whole_warps = seed % 3 != 0;
    const auto held = run<hold_more>(1, 32, static_cast<std::int64_t>(npages * page), std::int64_t{1});
    EXPECT_EQ(held[outs - 1], 0);
    for (unsigned i = 0; i < outs - 1; ++i) ASSERT_GE(held[i], 32) << "step " << i;
    if (!on_cuda && !schedule.whole_warps) continue;
    EXPECT_EQ(held[0], 32) << "one page, as nobody walks yet";
    for (unsigned i = 1; i < 9; ++i) EXPECT_EQ(held[i], 8 * 32) << "nothing is asked for on the way";
    EXPECT_EQ(held[9], 31 * 32) << "all that are left: fewer than 64";
  }
}

TEST_F(walk, links_to_no_page_that_is_not_in_the_cache_or_in_the_mapping) {
  for (const std::int64_t in_cache : {3, 4, 12}) {
    end_mount();
    run<bring_in>(1, 32, 0u, static_cast<std::uint64_t>(in_cache));
    for (std::uint64_t seed = 1; seed <= fewer(6); ++seed) {
      schedule.seed = seed;
      // Two pages and a half more, which are brought in one by one.
      const std::int64_t nbytes = (in_cache + 2) * static_cast<std::int64_t>(page) + static_cast<std::int64_t>(page) / 2;
      const auto held = run<hold_more>(1, 32, nbytes, std::int64_t{1});
      EXPECT_EQ(held[outs - 1], 0);
      for (std::int64_t i = 0; i < in_cache + 3; ++i) {
        ASSERT_GE(held[static_cast<std::size_t>(i)], 32);
        ASSERT_LE(held[static_cast<std::size_t>(i)], 32 * (in_cache + 2)) << "step " << i;
      }
    }
    EXPECT_EQ(fs().counters().fault_errors, 0u);
  }
}

TEST_F(walk, links_to_no_page_behind_one_that_is_missing_or_behind_the_mapping) {
  // Pages 4 and 5 are missing, and those behind them are given back.
  run<bring_in>(1, 32, 0u, 4u);
  run<bring_in>(1, 32, 6u, npages);
  const auto held = run<hold_more>(1, 32, static_cast<std::int64_t>(npages * page), std::int64_t{1});
  EXPECT_EQ(held[outs - 1], 0);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_LE(held[i], 3 * 32) << "step " << i;
  for (const std::int64_t last : {1, 5, 8}) {
    const std::int64_t nbytes = last * static_cast<std::int64_t>(page) + 64 * 4;
    for (std::uint64_t seed = 1; seed <= fewer(4); ++seed) {
      schedule.seed = seed;
      const auto in_mapping = run<hold_more>(1, 32, nbytes, std::int64_t{1});
      for (std::size_t i = 0; i <= static_cast<std::size_t>(last); ++i) EXPECT_LE(in_mapping[i], (last + 1) * 32) << "step " << i;
    }
  }
}

TEST_F(walk, who_goes_elsewhere_links_to_one_page) {
  run<bring_in>(1, 32);
  for (const std::int64_t stride : {2, 3, 7}) {
    const auto held = run<hold_more>(1, 32, static_cast<std::int64_t>(npages * page), stride);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(npages) / stride; ++i) {
      EXPECT_EQ(held[static_cast<std::size_t>(i)], 32) << "stride " << stride << ", step " << i;
    }
  }
}

// Lanes that hold several pages part: some stop, some go back into pages that they hold, some go on by themselves.
struct part_ways : pointer_job {
  std::uint32_t stays, goes_on;  // lanes
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = 0;
    const auto check = [&](const ptr<const std::uint32_t>& p) { wrong += *p != word_at(p.offset() / 4); };
    {
      auto p = map<const std::uint32_t>(warp, f) + warp.rank();
      for (int i = 0; i < 4; ++i, p += per_page) check(p);
      const bool on = (goes_on >> warp.rank() & 1) != 0;
      if ((stays >> warp.rank() & 1) != 0) {
        p.unlink();
      } else if (on) {
        for (int i = 0; i < 20; ++i, p += per_page) check(p);
      } else {
        for (int i = 0; i < 6; ++i, p -= per_page / 2) check(p);
      }
      warp.sync();
      // Together again, from pages that are not the same.
      for (int i = 0; i < 3; ++i, p += per_page) check(p);
      auto q = static_cast<ptr<const std::uint32_t>&&>(p);
      for (int i = 0; i < 3; ++i, q += per_page) check(q);
    }
    mine()[0] = wrong;
    warp.sync();
    close(warp, f);
  }
};

TEST_F(walk, lanes_that_part_give_their_own_pages_back) {
  run<bring_in>(1, 32);
  for (std::uint64_t seed = 1; seed <= fewer(60); ++seed) {
    schedule.seed = seed;
    const std::uint64_t drawn = content_word(seed, 3);
    run<part_ways>(2, 64, static_cast<std::uint32_t>(drawn & drawn >> 11), static_cast<std::uint32_t>(drawn >> 32));
    for (unsigned t = 0; t < 128; ++t) ASSERT_EQ(result(t, 0), 0) << "seed " << seed << ", thread " << t;
    ASSERT_EQ(fs().counters().pins, 0u) << "seed " << seed;
  }
}

// Small caches: nobody is kept from a frame by pages that somebody only walks through.
struct walk_through : pointer_job {
  std::int64_t begin;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::uint64_t sum = 0;
    {
      auto p = map<const std::uint32_t>(warp, f) + (begin + warp.rank());
      for (std::int64_t i = begin + warp.rank(); i < nwords; i += 32, p += 32) sum += static_cast<std::uint64_t>(i) * *p;
    }
    mine()[0] = static_cast<std::int64_t>(sum);
    warp.sync();
    close(warp, f);
  }
  static std::int64_t expected(std::int64_t begin, unsigned lane) {
    std::uint64_t sum = 0;
    for (std::int64_t i = begin + lane; i < nwords; i += 32) sum += static_cast<std::uint64_t>(i) * word_at(i);
    return static_cast<std::int64_t>(sum);
  }
};

TEST_F(walk, reads_what_is_there_in_caches_of_every_size) {
  constexpr unsigned threads = under_tsan ? 32 : 96;
  for (const std::uint32_t frames : {16u, 24u, 64u, 300u}) {
    end_mount();
    options.cache_nbytes = frames * page;
    for (std::uint64_t seed = 1; seed <= (under_tsan ? 2 : 3); ++seed) {
      schedule.seed = seed;
      const std::int64_t begin = seed == 1 ? 0 : 37;  // lanes on two pages at each crossing
      run<walk_through>(1, threads, begin);
      for (unsigned t = 0; t < threads; ++t) {
        ASSERT_EQ(result(t, 0), walk_through::expected(begin, t % 32)) << frames << " frames, seed " << seed;
      }
    }
    EXPECT_EQ(fs().counters().fault_errors, 0u);
  }
}

struct for_each : walk {};

// Each warp goes through its part; `apart` elements are between two steps of a lane. What `call` does, T by T.
struct visit_parts : pointer_job {
  std::int64_t begin, per_lane, apart;
  bool twice;  // in two calls, which go on where the first has ended

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const std::int64_t first = begin + thread() % 32 + thread() / 32 * 911;
      auto p = map<const std::uint32_t>(warp, f) + first;
      std::uint64_t sum = 0, k = 0;
      const auto add = [&](std::uint32_t x) { sum += ++k * x; };
      const std::int64_t n = twice ? per_lane / 3 : per_lane;
      for_each_n(n, apart, add, p);
      if (twice) for_each_n(per_lane - n, apart, add, p);
      mine()[0] = static_cast<std::int64_t>(sum);
      mine()[1] = p.offset() / 4 - first;
      mine()[2] = static_cast<std::int64_t>(k);
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(for_each, gives_each_element_once_in_order) {
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 6 : 16); ++seed) {
    schedule.seed = seed;
    if (seed == 5) run<bring_in>(1, 32);
    const std::int64_t apart = seed % 4 == 0 ? 57 : seed % 4 == 3 ? 1 : 32;
    const std::int64_t begin = seed % 2 == 0 ? 0 : 21, per_lane = 560;
    run<visit_parts>(2, 96, begin, per_lane, apart, seed % 3 == 0);
    for (unsigned t = 0; t < 192; ++t) {
      std::uint64_t sum = 0;
      for (std::int64_t k = 0; k < per_lane; ++k) {
        sum += static_cast<std::uint64_t>(k + 1) * word_at(begin + t % 32 + t / 32 * 911 + k * apart);
      }
      ASSERT_EQ(result(t, 0), static_cast<std::int64_t>(sum)) << "seed " << seed << ", thread " << t;
      EXPECT_EQ(result(t, 1), per_lane * apart);
      EXPECT_EQ(result(t, 2), per_lane);
    }
  }
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

// A warp whose lanes are side by side across a page's end goes on together, and links to runs as one that is aligned.
struct cross_together : pointer_job {
  std::int64_t begin;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      auto p = map<const std::uint32_t>(warp, f) + (begin + warp.rank());
      std::int64_t wrong = 0, at = begin + warp.rank();
      for (unsigned i = 0; i < 12; ++i) {
        for_each_n(
            32, 32,
            [&](std::uint32_t x) {
              wrong += x != word_at(at);
              at += 32;
            },
            p);
        mine()[i] = pins_at_rest();
      }
      mine()[outs - 1] = wrong;
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(for_each, lanes_on_both_sides_of_a_page_end_walk_together) {
  run<bring_in>(1, 32);
  for (std::uint64_t seed = 1; seed <= schedules(10, 4); ++seed) {
    schedule.seed = seed;
    schedule.whole_warps = seed % 2 != 0;
    for (const std::int64_t begin : {0, 16, 1000}) {
      const auto held = run<cross_together>(1, 32, begin);
      EXPECT_EQ(held[outs - 1], 0);
      if (on_cuda || schedule.whole_warps) {
        EXPECT_GE(held[11], 8 * 32) << "seed " << seed << ", from " << begin;
      }
    }
  }
}

// Two files' worth of pointers at once, lanes with other counts, nothing to do, and what is not to be had.
struct visit_pairs : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t* r = mine();
    {
      auto p = map<const std::uint32_t>(warp, f) + warp.rank();
      auto q = map_sequential<const std::uint32_t>(warp, f) + (7 * per_page + 3 + warp.rank());
      std::uint64_t sum = 0;
      for_each_n(
          300 + warp.rank(), 32, [&](std::uint32_t x, std::uint32_t y) { sum = sum * 31 + (x ^ y); }, p, q);
      r[0] = static_cast<std::int64_t>(sum);
      for_each_n(
          0, 32, [&](std::uint32_t, std::uint32_t) { ++r[1]; }, p, q);
      for_each_n(
          -5, 32, [&](std::uint32_t, std::uint32_t) { ++r[1]; }, p, q);
      r[2] = p.offset();
      // The last three elements, and five that are not there.
      auto end = map<const std::uint32_t>(warp, f) + (nwords - 3);
      sum = 0;
      for_each_n(
          8, 1, [&](std::uint32_t x) { sum = sum * 31 + x; }, end);
      r[3] = static_cast<std::int64_t>(sum);
      // Backwards, and on the spot.
      auto back = map<const std::uint32_t>(warp, f) + (2 * per_page + 1);
      sum = 0;
      for_each_n(
          5, -1, [&](std::uint32_t x) { sum = sum * 31 + x; }, back);
      for_each_n(
          2, 0, [&](std::uint32_t x) { sum = sum * 31 + x; }, back);
      r[4] = static_cast<std::int64_t>(sum);
      // A null pointer.
      ptr<const std::uint32_t> none;
      for_each_n(
          2, 1, [&](std::uint32_t x) { r[5] += 1 + x; }, none);
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(for_each, walks_several_pointers_any_number_of_steps_and_says_what_is_not_there) {
  for (std::uint64_t seed = 1; seed <= fewer(12); ++seed) {
    schedule.seed = seed;
    const std::uint64_t before = fs().counters().fault_errors;
    run<visit_pairs>(1, 32);
    for (unsigned t = 0; t < 32; ++t) {
      std::uint64_t sum = 0;
      for (std::int64_t k = 0; k < 300 + t; ++k) sum = sum * 31 + (word_at(t + k * 32) ^ word_at(7 * per_page + 3 + t + k * 32));
      EXPECT_EQ(result(t, 0), static_cast<std::int64_t>(sum)) << "lane " << t;
      EXPECT_EQ(result(t, 1), 0);
      EXPECT_EQ(result(t, 2), 4 * (t + (300 + static_cast<std::int64_t>(t)) * 32));
      sum = 0;
      for (std::int64_t k = 0; k < 8; ++k) sum = sum * 31 + (k < 3 ? word_at(nwords - 3 + k) : 0);
      EXPECT_EQ(result(t, 3), static_cast<std::int64_t>(sum));
      sum = 0;
      for (std::int64_t k = 0; k < 5; ++k) sum = sum * 31 + word_at(2 * per_page + 1 - k);
      for (int k = 0; k < 2; ++k) sum = sum * 31 + word_at(2 * per_page - 4);
      EXPECT_EQ(result(t, 4), static_cast<std::int64_t>(sum));
      EXPECT_EQ(result(t, 5), 2) << "zeros";
    }
    EXPECT_EQ(fs().counters().fault_errors - before, 32u * 5);
  }
}

// Elements that straddle pages, a pointer that may write, and plain memory: one algorithm.
struct twelve_bytes {
  std::uint32_t word[3];
};
struct visit_kinds : pointer_job {
  const std::uint32_t* memory;  // the file's first words

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::uint64_t sum[3] = {};
    {
      auto p = map<const twelve_bytes>(warp, f) + warp.rank();
      for_each_n(
          100, 32, [&](const twelve_bytes& x) { sum[0] = sum[0] * 31 + x.word[0] + x.word[1] + x.word[2]; }, p);
      auto changed = map<std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes) + warp.rank();
      *changed = 5;
      for_each_n(
          100, 32, [&](std::uint32_t x) { sum[1] = sum[1] * 31 + x; }, changed);
      const std::uint32_t* raw = memory + warp.rank();
      for_each_n(
          100, 32, [&](std::uint32_t x) { sum[2] = sum[2] * 31 + x; }, raw);
      mine()[3] = raw - memory;
    }
    for (int i = 0; i < 3; ++i) mine()[i] = static_cast<std::int64_t>(sum[i]);
    warp.sync();
    auto changed = map<std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
    mine()[4] = discard(warp, changed);
    close(warp, f);
  }
};

TEST_F(for_each, walks_what_straddles_what_is_written_and_plain_memory) {
  std::vector<std::uint32_t> words(4096);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_at(static_cast<std::int64_t>(i));
  const device_buffer<std::uint32_t> memory(words);
  for (std::uint64_t seed = 1; seed <= fewer(6); ++seed) {
    schedule.seed = seed;
    run<visit_kinds>(1, 32, static_cast<const std::uint32_t*>(memory.get()));
    for (unsigned t = 0; t < 32; ++t) {
      std::uint64_t sum[3] = {};
      for (std::int64_t k = 0; k < 100; ++k) {
        const std::int64_t i = t + 32 * k;
        sum[0] = sum[0] * 31 + word_at(3 * i) + word_at(3 * i + 1) + word_at(3 * i + 2);
        sum[1] = sum[1] * 31 + (k == 0 ? 5 : word_at(i));
        sum[2] = sum[2] * 31 + word_at(i);
      }
      for (unsigned i = 0; i < 3; ++i) EXPECT_EQ(result(t, i), static_cast<std::int64_t>(sum[i])) << "lane " << t << ", sum " << i;
      EXPECT_EQ(result(t, 3), 100 * 32 + t);
      EXPECT_EQ(result(t, 4), 0);
    }
  }
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
