// SPDX-License-Identifier: Apache-2.0
// Pointers of map_sequential, which link to runs of pages from the first fault on: what they read, what they hold, and that it is
// all given back, however lanes leave.
#include "pointer/pointer_fixture.hpp"
#include "pointer/sequential_access.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using walker = sequential_ptr<const std::uint32_t>;

struct sequential : pointer_fixture {};

// Each warp walks through its part, lanes side by side, from `begin` elements on.
struct walk_parts : pointer_job {
  std::int64_t begin, per_warp;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::int64_t part = begin + thread() / 32 * per_warp;
    const file f = open(warp, fs, path);
    std::uint64_t sum = 0;
    std::int64_t most = 0;
    {
      auto p = map_sequential<const std::uint32_t>(warp, f, part * 4, per_warp);
      mine()[2] = p.error();
      p += warp.rank();
      for (std::int64_t i = warp.rank(); i < per_warp; i += 32, p += 32) {
        sum += static_cast<std::uint64_t>(i + 1) * *p;
        // By all lanes, in the same round: a compiler gives a lane that alone counts a loop of its own, where it links alone.
        if (i / per_page == 2 && i % per_page < 32) most = pins_at_rest();
      }
    }
    mine()[0] = static_cast<std::int64_t>(sum);
    mine()[1] = most;
    warp.sync();
    close(warp, f);
  }
  static std::int64_t expected(std::int64_t part, std::int64_t per_warp, unsigned lane) {
    std::uint64_t sum = 0;
    for (std::int64_t i = lane; i < per_warp; i += 32) sum += static_cast<std::uint64_t>(i + 1) * word_at(part + i);
    return static_cast<std::int64_t>(sum);
  }
};

TEST_F(sequential, walks_in_parts_read_what_is_there) {
  options.cache_nbytes = 4096 * page;  // an eighth of it is more than 32 pages for each warp
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 5 : 12); ++seed) {
    schedule.seed = seed;
    if (seed == 4) run<bring_in>(1, 32);
    // Parts that begin and end in the middle of pages and of lines, too.
    const std::int64_t begin = seed % 3 == 0 ? 37 : 0, per_warp = seed % 2 == 0 ? 5 * per_page : 4 * per_page + 77;
    run<walk_parts>(2, 96, begin, per_warp);
    for (unsigned t = 0; t < 192; ++t) {
      ASSERT_EQ(result(t, 2), 0);
      ASSERT_EQ(result(t, 0), walk_parts::expected(begin + t / 32 * per_warp, per_warp, t % 32))
          << "thread " << t << ", seed " << seed;
    }
  }
  // Where no other warp comes and goes: more than the page that each lane reads.
  run<walk_parts>(1, 32, std::int64_t{0}, std::int64_t{5 * per_page});
  EXPECT_GT(result(0, 1), 32);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

// A warm cache, one warp: what is pinned after each step.
struct hold_pages : pointer_job {
  unsigned leaving;  // a lane that ends its pointer by itself

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t* r = mine();
    unsigned n = 0;
    const auto tell = [&](bool linked) { r[n++] = pins_at_rest() * 10 + linked; };
    {
      auto p = map_sequential<const std::uint32_t>(warp, f);
      p += warp.rank();
      tell(p.linked());
      r[n++] = *p;
      tell(p.linked());
      p += per_page;
      r[n++] = *p;
      tell(p.linked());
      const walker copied(p);
      walker moved(static_cast<walker&&>(p));
      tell(p.linked() || copied.linked());
      if (warp.rank() == leaving) moved.unlink();
      tell(false);
      moved += per_page;
      r[n++] = *moved;  // that lane is by itself, and so are the others
      tell(moved.linked());
      moved = copied;
      tell(moved.linked());
      moved += 39 * per_page;
      r[n++] = *moved;  // beyond the end
      tell(moved.linked());
    }
    tell(false);
    close(warp, f);
  }
};

TEST_F(sequential, links_to_runs_and_gives_them_back) {
  options.cache_nbytes = 4096 * page;
  run<bring_in>(1, 32);
  const std::uint64_t nseeds = schedules(20, 6);
  for (std::uint64_t seed = 1; seed <= nseeds; ++seed) {
    schedule.seed = seed;
    schedule.whole_warps = seed % 3 == 0;
    run<hold_pages>(1, 32, static_cast<unsigned>(seed) % 32);
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(result(t, 0), 0);
      EXPECT_EQ(result(t, 1), word_at(t));
      EXPECT_EQ(result(t, 3), word_at(per_page + t));
      EXPECT_EQ(result(t, 5) % 10, 0) << "handed over";
      EXPECT_EQ(result(t, 7), word_at(2 * per_page + t));
      EXPECT_EQ(result(t, 9), 0) << "copies hold none";
      EXPECT_EQ(result(t, 10), 0) << "zeros";
      EXPECT_EQ(result(t, 11), 0);
      EXPECT_EQ(result(t, 12), 0);
    }
    const std::int64_t pins = result(0, 2) / 10;
    EXPECT_GE(pins, 32);
    constexpr auto all = static_cast<std::int64_t>(npages);
    if (on_cuda || schedule.whole_warps) {
      EXPECT_EQ(pins, 32 * all);
      EXPECT_EQ(result(0, 4) / 10, 32 * all) << "the next page is one of them";
      EXPECT_EQ(result(0, 5) / 10, 32 * all);
      EXPECT_EQ(result(0, 6) / 10, 31 * all) << "a lane gives its own pins back";
    }
  }
  EXPECT_EQ(fs().counters().fault_errors, nseeds * 32);
}

TEST_F(sequential, a_run_ends_before_a_page_that_is_missing_behind_its_first_32) {
  options.cache_nbytes = 4096 * page;
  run<bring_in>(1, 32, 0u, 36u);
  run<bring_in>(1, 32, 37u, npages);
  for (std::uint64_t seed = 1; seed <= schedules(20, 6); ++seed) {
    schedule.seed = seed;
    schedule.whole_warps = seed % 3 == 0;
    run<hold_pages>(1, 32, 1u);
    const std::int64_t pins = result(0, 2) / 10;
    if (on_cuda || schedule.whole_warps) {
      EXPECT_EQ(pins, 36 * 32);
    } else {
      EXPECT_LE(pins, 36 * 32);
    }
    EXPECT_EQ(result(0, 12), 0) << "those behind it are given back";
  }
}

// Pointers that are linked to different runs, of which each lane uses another one, and swaps some.
struct use_several : pointer_job {
  std::uint64_t seed;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    constexpr std::int64_t apart = 9 * per_page;
    std::int64_t wrong = 0;
    {
      walker p[4];
      std::int64_t at[4];
      for (int k = 0; k < 4; ++k) {
        p[k] = map_sequential<const std::uint32_t>(warp, f) + (at[k] = k * apart + warp.rank());
        wrong += *p[k] != word_at(at[k]);
      }
      for (std::uint64_t i = 0; i < 24; ++i) {
        const std::uint64_t drawn = content_word(seed, i * 32 + warp.rank() * (i % 3));
        const auto k = static_cast<unsigned>(drawn % 4), l = static_cast<unsigned>(drawn / 4 % 4);
        if (drawn / 16 % 8 == 0) {
          walker kept(static_cast<walker&&>(p[k]));
          p[k] = static_cast<walker&&>(p[l]);
          p[l] = static_cast<walker&&>(kept);
          const std::int64_t was = at[k];
          at[k] = at[l];
          at[l] = was;
        }
        if (at[k] + per_page / 2 < nwords) {
          p[k] += per_page / 2;
          at[k] += per_page / 2;
        }
        wrong += *p[k] != word_at(at[k]);
      }
    }
    mine()[0] = wrong;
    warp.sync();
    close(warp, f);
  }
};

TEST_F(sequential, pointers_linked_to_other_runs_do_not_mix) {
  options.cache_nbytes = 4096 * page;
  run<bring_in>(1, 32);
  for (std::uint64_t seed = 1; seed <= fewer(40); ++seed) {
    schedule.seed = seed;
    run<use_several>(1, 32, seed);
    for (unsigned t = 0; t < 32; ++t) ASSERT_EQ(result(t, 0), 0) << "seed " << seed << ", lane " << t;
    ASSERT_EQ(fs().counters().pins, 0u);
  }
}

// Each lane leaves its pointer in memory, and another lane takes it over.
struct take_over : pointer_job {
  walker* shared;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      walker p = map_sequential<const std::uint32_t>(warp, f) + warp.rank();
      mine()[0] = *p;
      shared[warp.rank()] = static_cast<walker&&>(p);
      warp.sync();
      walker q(static_cast<walker&&>(shared[31 - warp.rank()]));
      warp.sync();
      for (int i = 1; i < 8; ++i) {
        q += per_page;
        mine()[i] = *q;
      }
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(sequential, another_lane_may_take_a_pointer_over) {
  options.cache_nbytes = 4096 * page;
  run<bring_in>(1, 32);
  const device_buffer<std::byte> memory(32 * sizeof(walker));  // zeroed: null pointers
  for (std::uint64_t seed = 1; seed <= fewer(20); ++seed) {
    schedule.seed = seed;
    run<take_over>(1, 32, reinterpret_cast<walker*>(memory.get()));
    for (unsigned t = 0; t < 32; ++t) {
      EXPECT_EQ(result(t, 0), word_at(t));
      for (unsigned i = 1; i < 8; ++i) EXPECT_EQ(result(t, i), word_at(i * per_page + 31 - t)) << "seed " << seed;
    }
    ASSERT_EQ(fs().counters().pins, 0u);
  }
}

// Small caches, where runs have two pages at most: they keep nobody from a frame.
TEST_F(sequential, reads_what_is_there_in_small_caches) {
  for (const std::uint32_t frames : {8u, 24u, 64u}) {
    end_mount();
    options.cache_nbytes = frames * page;
    for (std::uint64_t seed = 1; seed <= fewer(4); ++seed) {
      schedule.seed = seed;
      run<walk_parts>(1, 96, 0, 8 * per_page);
      for (unsigned t = 0; t < 96; ++t) {
        ASSERT_EQ(result(t, 0), walk_parts::expected(t / 32 * 8 * per_page, 8 * per_page, t % 32)) << frames << " frames";
      }
    }
    EXPECT_EQ(fs().counters().fault_errors, 0u);
  }
}

// Writing into private copies while walking, and reading them again.
struct write_in_order : pointer_job {
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = 0;
    {
      auto p = map_sequential<std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
      p += warp.rank();
      for (std::int64_t i = warp.rank(); i < nwords; i += 32, p += 32) *p = static_cast<std::uint32_t>(i * 3);
      auto q = map_sequential<const std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
      q += warp.rank();
      for (std::int64_t i = warp.rank(); i < nwords; i += 32, q += 32) wrong += *q != static_cast<std::uint32_t>(i * 3);
      wrong += 1000 * (discard(warp, p) != 0 ? 0 : 1);  // q is linked still
    }
    warp.sync();
    auto p = map_sequential<std::uint32_t>(warp, f, 0, to_the_end, map_flags::private_changes);
    if (discard(warp, p) != 0) wrong += 100000;
    mine()[0] = wrong;
    warp.sync();
    close(warp, f);
  }
};

TEST_F(sequential, writes_private_copies) {
  options.cache_nbytes = 4096 * page;
  for (std::uint64_t seed = 1; seed <= fewer(6); ++seed) {
    schedule.seed = seed;
    run<write_in_order>(1, 32);
    for (unsigned t = 0; t < 32; ++t) EXPECT_EQ(result(t, 0), 0) << "seed " << seed;
  }
  EXPECT_EQ(fs().counters().dirty_frames, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
