// SPDX-License-Identifier: Apache-2.0
// Pages mapped for writing: what is stored into them is noted, shared, and written back.
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Each mapped page takes a second frame; without one there is an error, in time.
TEST(mapped_writes, need_frames) {
  temp_dir dir;
  dir.add("file", 10 * page, 1);
  mount_options o = writing(4);
  o.frame_timeout = std::chrono::milliseconds(50);
  const mount m(dir.path(), o);
  players groups(m.ref(), {});
  script s;
  s.open(0, "file", O_RDWR);
  for (unsigned i = 0; i < 3; ++i) s.map_write(0, i, i * page);
  s.unmap_write(0);
  s.unmap_write(1);
  s.map_write(0, 2, 9 * page);
  s.unmap_write(2);
  s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[1].value, page);
  EXPECT_EQ(got[2].value, page);
  EXPECT_EQ(got[3].value, -ENOMEM);
  EXPECT_EQ(got[6].value, page);
  EXPECT_EQ(got[7].value, 0);
  EXPECT_EQ(got[8].value, 0);
  expect_all_written(m);
}

// Groups map one page at once and store to bytes of their own, beside another mount's.
TEST(mapped_writes, of_many_groups_in_one_page) {
  temp_dir dir;
  dir.add("file", 2 * page, 1);
  auto wanted = content(1, 0, 2 * page);
  const mount a(dir.path(), writing(48)), b(dir.path(), writing(48));
  const formation how{.grid = 2, .block = 64, .all = group_kind::tile8};
  players of_a(a.ref(), how), of_b(b.ref(), how);
  std::vector<script> scripts(2 * of_a.size());
  for (script& s : scripts) {
    s.open(0, "file", O_RDWR);
    s.map_write(0, 0, 0);
  }
  for (std::size_t at = 0; at < page; ++at) {
    const std::size_t g = content_word(9, at) % (scripts.size() + 1);
    if (g == scripts.size()) continue;  // nobody's
    scripts[g].store(0, content(g + 2, at, 1), static_cast<std::int64_t>(at));
    put(wanted, content(g + 2, at, 1), at);
  }
  for (script& s : scripts) {
    s.unmap_write(0);
    s.close(0);
  }
  const auto middle = scripts.begin() + of_a.size();
  of_a.run({scripts.begin(), middle});
  for (const auto& got : of_b.run({middle, scripts.end()})) EXPECT_EQ(got.back().value, 0);
  EXPECT_EQ(dir.read("file"), wanted);
  expect_all_written(a);
  expect_all_written(b);
}

// All who have a page mapped share one more frame, and store, sync, unmap and map it again in any order. Bytes go back and forth
// between few values, so that what somebody noted may be what another stores later.
TEST(mapped_writes, share_a_twin) {
  for (std::uint64_t seed = 1; seed <= schedules(30, 4); ++seed) {
    random_source draw(seed);
    temp_dir dir;
    dir.add("file", page, 1);
    auto wanted = content(1, 0, page);
    mount_options o = writing(2);
    o.frame_timeout = std::chrono::seconds(20);
    const mount m(dir.path(), o);
    players groups(m.ref(), {.grid = 2,
                             .block = 64,
                             .schedule = {.seed = seed, .resident_blocks = 2, .switch_percent = seed % 2 == 0 ? 25u : 100u},
                             .all = group_kind::tile8});
    std::vector<script> scripts(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      script& s = scripts[g];
      s.open(0, "file", O_RDWR);
      for (unsigned round = 0; round < 6; ++round) {
        s.map_write(0, 0, 0);
        for (std::uint64_t n = draw.between(1, 4); n > 0; --n) {
          // Bytes g, g + 16, ... are this group's, so that words are shared.
          const std::size_t at = g + groups.size() * draw.below(page / groups.size());
          const std::vector<std::byte> bytes{static_cast<std::byte>(draw.below(2))};
          s.store(0, bytes, static_cast<std::int64_t>(at));
          put(wanted, bytes, at);
          if (draw.percent(30)) s.msync(0, durability::page_cache);
        }
        s.unmap_write(0);
      }
      s.close(0);
    }
    for (const auto& got : groups.run(scripts)) {
      for (std::size_t i = 1; i < got.size(); ++i) ASSERT_TRUE(got[i].value == 0 || got[i].value == page) << got[i].value;
    }
    ASSERT_EQ(dir.read("file"), wanted) << "seed " << seed;
    expect_all_written(m);
  }
}

// A byte is noted, stored to anew, and then written back for the sake of the first: the file has a value that nobody noted. So it
// must get the noted one, should that be stored again; or the one that it had before all this.
TEST(mapped_writes, go_back_to_what_was_noted) {
  temp_dir dir;
  dir.add("file", page, 1);
  const mount m(dir.path(), writing(8));
  players groups(m.ref(), {});
  const auto first = content(2, 0, 100), second = content(3, 0, 100);
  script s;
  s.open(0, "file", O_RDWR);
  s.map_write(0, 0, 0);
  s.map_write(0, 1, 0);
  s.store(0, first, 100);
  s.unmap_write(1);  // notes them
  s.store(0, second, 100);
  s.fsync(0, durability::page_cache);
  s.store(0, first, 100);
  s.pwrite(0, second, 300);
  s.fsync(0, durability::page_cache);
  s.store(0, content(1, 300, 100), 300);  // as when it was mapped
  s.unmap_write(0);
  s.close(0);
  for (const auto& r : groups.run(s)) EXPECT_GE(r.value, 0);
  auto wanted = content(1, 0, page);
  put(wanted, first, 100);
  EXPECT_EQ(dir.read("file"), wanted);
  expect_all_written(m);
}

// A mapped page that was cut and has grown again: what it held before counts as stored anew.
TEST(mapped_writes, after_a_truncation) {
  temp_dir dir;
  dir.add("file", page, 1);
  const mount m(dir.path(), writing(4));
  players groups(m.ref(), {});
  script s;
  s.open(0, "file", O_RDWR);
  s.map_write(0, 0, 0);
  s.ftruncate(0, 10);
  s.ftruncate(0, page);
  s.store(0, content(1, 100, 50), 100);
  const auto unmap = s.unmap_write(0);
  const auto close = s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[unmap].value, 0);
  EXPECT_EQ(got[close].value, 0);
  std::vector<std::byte> wanted(page);
  put(wanted, content(1, 0, 10), 0);
  put(wanted, content(1, 100, 50), 100);
  EXPECT_EQ(dir.read("file"), wanted);
  EXPECT_EQ(m.counters().bytes_written_back, 50u);
  expect_all_written(m);
}

// The same with a write-back by the host, between kernels.
TEST(mapped_writes, go_back_over_a_sync_of_the_mount) {
  temp_dir dir;
  dir.add("file", page, 1);
  mount m(dir.path(), writing(8));
  players groups(m.ref(), {});
  const auto first = content(2, 0, 100), second = content(3, 0, 100);
  script s, t;
  s.open(0, "file", O_RDWR);
  s.map_write(0, 0, 0);
  s.map_write(0, 1, 0);
  s.store(0, first, 100);
  s.unmap_write(1);
  s.store(0, second, 100);
  for (const auto& r : groups.run(s)) EXPECT_GE(r.value, 0);
  EXPECT_EQ(m.sync(), 0u);
  t.store(0, first, 100);
  t.unmap_write(0);
  t.close(0);
  for (const auto& r : groups.run(t)) EXPECT_GE(r.value, 0);
  auto wanted = content(1, 0, page);
  put(wanted, first, 100);
  EXPECT_EQ(dir.read("file"), wanted);
  expect_all_written(m);
}

// Stored beyond the end after a truncation, looked at by another who unmaps it, and in the file again when it is unmapped.
TEST(mapped_writes, beyond_the_end_are_not_noted_before_it_grows) {
  temp_dir dir;
  dir.add("file", page, 1);
  const mount m(dir.path(), writing(4));
  players groups(m.ref(), {});
  script s;
  s.open(0, "file", O_RDWR);
  s.map_write(0, 0, 0);
  s.map_write(0, 1, 0);
  s.ftruncate(0, 10);
  s.store(0, content(2, 0, 50), 14);
  s.unmap_write(1);
  s.ftruncate(0, page);
  s.unmap_write(0);
  s.close(0);
  for (const auto& r : groups.run(s)) EXPECT_GE(r.value, 0);
  std::vector<std::byte> wanted(page);
  put(wanted, content(1, 0, 10), 0);
  put(wanted, content(2, 0, 50), 14);
  EXPECT_EQ(dir.read("file"), wanted);
  expect_all_written(m);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
