// SPDX-License-Identifier: Apache-2.0
// A pread of many pages of a staged file has several under way at once: how many, what becomes of them when one fails or hangs, and
// what groups do to each other that read the same pages with fewer frames or request slots than they would like.
#include "file/staged_file.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using read_windows = staged_file;

// All reads wait at a gate until several have come: with one page at a time, one would. (Not all of the host's threads go into
// reads of one file, and once one of these has waited for 100 ms, no other does.)
TEST_F(read_windows, keep_many_pages_under_way) {
  for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
    const mount m = make(128, 1024);
    players groups(m.ref(), {.grid = 1, .block = 32, .all = kind});
    script s;
    s.open(0, "file");
    const auto read = s.pread(0, 128 * page, 0);
    s.close(0);
    wrong().read_gate.close();
    std::vector<outcome> got;
    std::thread kernel([&] { got = groups.run(s); });
    EXPECT_TRUE(wait_until([&] { return wrong().read_gate.waiting() >= 3; })) << "group kind " << static_cast<int>(kind);
    wrong().read_gate.open();
    kernel.join();
    EXPECT_EQ(got[read].value, 128 * page);
    EXPECT_EQ(wrong_bytes(got[read], page * 128, seed, 0), 0u);
    const mount_counters c = m.counters();
    EXPECT_EQ(c.faults, 128u);
    EXPECT_EQ(c.pins, 0u);
  }
}

// Of the pages that cannot be read the first decides, the others are in the cache, and nothing stays pinned or filling.
TEST_F(read_windows, end_with_the_first_page_that_fails) {
  const mount m = make(64, 256);
  wrong().fail_at(20 * page, 21 * page);
  wrong().fail_at(7 * page, 8 * page);
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s;
  s.open(0, "file");
  const auto bad = s.pread(0, 64 * page, 0);
  const auto before = s.pread(0, 7 * page, 0);
  const auto between = s.pread(0, 12 * page, 8 * page);
  const auto again = s.pread(0, page, 20 * page);
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[bad].value, -EIO);
  EXPECT_EQ(got[before].value, 7 * page);
  EXPECT_EQ(wrong_bytes(got[before], 7 * page, seed, 0), 0u);
  EXPECT_EQ(got[between].value, 12 * page);
  EXPECT_EQ(wrong_bytes(got[between], 12 * page, seed, 8 * page), 0u);
  EXPECT_EQ(got[again].value, -EIO);
  EXPECT_EQ(m.counters().pins, 0u);
  wrong().heal();
  const auto healed = groups.run(s);
  EXPECT_EQ(healed[bad].value, 64 * page);
  EXPECT_EQ(wrong_bytes(healed[bad], 64 * page, seed, 0), 0u);
}

// A page whose read hangs ends the call in time, and is there when the store has answered.
TEST_F(read_windows, end_in_time_when_a_read_hangs) {
  const mount m = make(64, 256, std::chrono::milliseconds(300));
  wrong().stall_at(5 * page, 6 * page);
  wrong().stall_gate.close();
  players groups(m.ref(), {.grid = 1, .block = 32});
  script s;
  s.open(0, "file");
  const auto hung = s.pread(0, 40 * page, 0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[hung].value, -ETIMEDOUT);
  wrong().stall_gate.open();
  script rest;
  const auto all = rest.pread(0, 64 * page, 0);
  rest.close(0);
  EXPECT_TRUE(wait_until([&] { return wrong().stall_gate.waiting() == 0; }));
  const auto later = groups.run(rest);
  EXPECT_EQ(later[all].value, 64 * page);
  EXPECT_EQ(wrong_bytes(later[all], 64 * page, seed, 0), 0u);
}

// Groups of all kinds read overlapping parts: all get all, in bounded time.
TEST_F(read_windows, of_many_groups_never_wait_in_a_circle) {
  const seed_range seeds = seeds_to_run(under_tsan ? 6 : 40);
  for (std::uint64_t trial = seeds.first; trial < seeds.end && !HasFailure(); ++trial) {
    let_many_groups(trial, false, [](random_source& draw, script& s) {
      std::vector<wanted> reads;
      for (int r = 0; r < 3; ++r) {
        const std::uint64_t first = draw.below(60), n = draw.between(2, 36);
        const std::size_t read = s.pread(0, n * page, static_cast<std::int64_t>(first * page));
        reads.push_back({read, read, n * page, first * page});
      }
      return reads;
    });
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
