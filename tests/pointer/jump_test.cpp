// SPDX-License-Identifier: Apache-2.0
// Reads that jump from page to page: by which a pointer holds no page, when it links again, and that they give what is there.
#include "pointer/pointer_fixture.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct jump : pointer_test {};

// Each lane reads an element of page `rank`, then one of page rank + 7, another of that page, and one of the page behind it. After
// each it says whether its pointer is linked.
struct lanes_jump : pointer_job {
  bool together;  // all lanes to the pages of lane 0

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    {
      const auto p = map<const std::uint32_t>(warp, f);
      const std::int64_t first = together ? 0 : warp.rank();
      const std::int64_t at[] = {first * per_page, (first + 7) * per_page + 5, (first + 7) * per_page + 9, (first + 8) * per_page};
      for (unsigned i = 0; i < 4; ++i) {
        warp.sync();
        mine()[2 * i] = p[at[i]] == word_at(at[i]) ? 0 : 1;
        mine()[2 * i + 1] = p.linked();
      }
      mine()[8] = p.error();
    }
    warp.sync();
    close(warp, f);
  }
};

TEST_F(jump, lanes_that_go_apart_hold_no_page_until_they_stay) {
  run<bring_in>(1, 32);
  for (std::uint64_t seed = 1; seed <= fewer(10); ++seed) {
    schedule.seed = seed;
    schedule.whole_warps = seed % 2 == 0;
    run<lanes_jump>(1, 32, false);
    for (unsigned t = 0; t < 32; ++t) {
      for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(result(t, 2 * i), 0) << "lane " << t << ", read " << i;
      EXPECT_EQ(result(t, 1), 1) << "the first read links";
      EXPECT_EQ(result(t, 3), 0) << "a jump does not";
      EXPECT_EQ(result(t, 5), 1) << "a second read of that page does";
      EXPECT_EQ(result(t, 7), 1) << "the next page is no jump";
      EXPECT_EQ(result(t, 8), 0);
    }
  }
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

TEST_F(jump, lanes_that_go_to_one_page_link_to_it) {
  run<bring_in>(1, 32);
  schedule.whole_warps = true;
  run<lanes_jump>(1, 32, true);
  for (unsigned t = 0; t < 32; ++t) {
    for (unsigned i = 0; i < 4; ++i) {
      EXPECT_EQ(result(t, 2 * i), 0);
      EXPECT_EQ(result(t, 2 * i + 1), 1) << "read " << i;
    }
  }
}

// Each lane reads elements anywhere in the file by one pointer, each a second time if `twice`.
struct read_anywhere : pointer_job {
  std::uint32_t rounds, lanes;
  bool twice;
  advice said = advice::normal;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file f = open(warp, fs, path);
    std::int64_t wrong = advise(warp, f, 0, 0, said);
    {
      const auto p = map<const std::uint64_t>(warp, f);
      std::uint64_t random = thread() * 77u + 1;
      for (std::uint32_t round = 0; round < rounds && warp.rank() < lanes; ++round) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const auto at = static_cast<std::int64_t>((random >> 33) % (npages * page / 8 - 1));
        for (std::int64_t i = at; i <= at + (twice ? 1 : 0); ++i)
          wrong += p[i] != content_word(file_seed, static_cast<std::uint64_t>(i));
      }
      if (p.error() != 0) wrong += 1000;
    }
    warp.sync();
    close(warp, f);
    mine()[0] = wrong;
  }
};

TEST_F(jump, reads_what_is_there_beside_evictions) {
  options.cache_nbytes = 16 * page;
  const bool few = under_tsan || under_compute_sanitizer();
  for (std::uint64_t seed = 1; seed <= (few ? 4 : fewer(40)); ++seed) {
    schedule.seed = seed;
    run<read_anywhere>(4, 32, few ? 20u : 80u, 3u, seed % 2 == 0);
    for (unsigned t = 0; t < 128; ++t) ASSERT_EQ(result(t, 0), 0) << "thread " << t << ", seed " << seed;
  }
  EXPECT_GT(fs().counters().evictions, 100u);
  EXPECT_EQ(fs().counters().fault_errors, 0u);
}

TEST_F(jump, reads_sectors_that_are_there_without_a_pin) {
  options.store = store_kind::mapped;
  const bool few = under_tsan || under_compute_sanitizer();
  for (std::uint64_t seed = 1; seed <= (few ? 4 : fewer(20)); ++seed) {
    schedule.seed = seed;
    options.cache_nbytes = seed % 2 == 0 ? 16 * page : 64 * page;
    end_mount();
    run<read_anywhere>(2, 32, few ? 20u : 60u, 4u, true, advice::random);
    for (unsigned t = 0; t < 64; ++t) ASSERT_EQ(result(t, 0), 0) << "thread " << t << ", seed " << seed;
  }
  const auto counted = fs().counters();
  EXPECT_LT(counted.bytes_filled, counted.faults * page) << "no page came in part";
  EXPECT_EQ(counted.fault_errors, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
