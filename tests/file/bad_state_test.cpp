// SPDX-License-Identifier: Apache-2.0
// What files that change under a mount get, and what one gets that runs out of frames or open files, or gives back twice.
#include "file/bad_input.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

class bad_state : public bad_input {};
INSTANTIATE_TEST_SUITE_P(stores, bad_state, every_store(), store_name);

TEST_P(bad_state, truncated_while_open) {
  constexpr std::uint64_t nbytes = 16 * 4096;
  dir.add("shrinks", nbytes, 5);
  let_file_times_pass();
  players warp(fs().ref(), {});
  script first, later;
  first.open(0, "shrinks");
  first.pread(0, 4096, 0);
  later.pread(0, 4096, 0);                          // cached
  const auto cut = later.pread(0, 4096, 8 * 4096);  // gone
  const auto stays = later.pread(0, 4096, 4096);    // still in the file, but of a version that is no more
  later.map(0, 0, 12 * 4096, 0);
  const auto end = later.close(0);
  ASSERT_EQ(warp.run(first)[1].value, 4096);
  dir.resize("shrinks", 2 * 4096);
  const auto begin = std::chrono::steady_clock::now();
  const auto got = warp.run(later);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(got[0].value, 4096) << "pages that are in the cache stay readable";
  if (GetParam() != store_kind::mapped) {  // automatic: small files are staged
    EXPECT_EQ(got[cut].value, -ESTALE);
    EXPECT_EQ(got[stays].value, -ESTALE);
  } else if (!on_cuda) {
    EXPECT_LT(got[cut].value, 0) << "the mapping has no page there";
  }
  EXPECT_EQ(got[end].value, 0);
  if (got[end - 1].value > 0) {  // CUDA: the mapping's pages are still there
    script unmap;
    unmap.unmap(0);
    warp.run(unmap);
  }
}

TEST_P(bad_state, renamed_over_while_open_keeps_its_bytes) {
  dir.add("file", 20000, 5);
  let_file_times_pass();
  players old_reader(fs().ref(), {}), new_reader(fs().ref(), {});
  script first, later, anew;
  first.open(0, "file");
  first.pread(0, 1000, 0);
  const auto cached = later.pread(0, 1000, 0);
  const auto missed = later.pread(0, 5000, 10000);
  later.close(0);
  anew.open(0, "file");
  const auto read = anew.pread(0, 15000, 0);
  anew.close(0);
  ASSERT_EQ(old_reader.run(first)[1].value, 1000);
  dir.add("next", 15000, 6);
  std::filesystem::rename(dir / "next", dir / "file");
  auto got = old_reader.run(later);
  EXPECT_EQ(got[cached].value, 1000);
  EXPECT_EQ(wrong_bytes(got[cached], 1000, 5, 0), 0u);
  EXPECT_EQ(got[missed].value, 5000);
  EXPECT_EQ(wrong_bytes(got[missed], 5000, 5, 10000), 0u);
  got = new_reader.run(anew);
  EXPECT_EQ(got[read].value, 15000);
  EXPECT_EQ(wrong_bytes(got[read], 15000, 6, 0), 0u);
}

TEST_P(bad_state, rewritten_in_place_while_open) {
  dir.add("file", 20000, 5);
  let_file_times_pass();
  players warp(fs().ref(), {});
  script first, later;
  first.open(0, "file");
  first.pread(0, 1000, 0);
  later.pread(0, 5000, 8192);
  later.close(0);
  ASSERT_EQ(warp.run(first)[1].value, 1000);
  dir.overwrite("file", 0, 20000, 6);
  if (GetParam() == store_kind::mapped) std::this_thread::sleep_for(std::chrono::milliseconds(400));  // the watch over pull files
  const auto got = warp.run(later);
  EXPECT_EQ(got[0].value, -ESTALE);
  EXPECT_EQ(got[1].value, 0);
  script anew;
  anew.open(0, "file");
  const auto read = anew.pread(0, 20000, 0);
  anew.close(0);
  const auto fresh = warp.run(anew);
  EXPECT_EQ(fresh[read].value, 20000);
  EXPECT_EQ(wrong_bytes(fresh[read], 20000, 6, 0), 0u);
}

TEST_P(bad_state, every_frame_pinned) {
  dir.add("big", 64 * 4096, 5);
  options.cache_nbytes = 4 * 4096;
  players warp(fs().ref(), {});
  script s;
  s.open(0, "big");
  for (unsigned p = 0; p < 4; ++p) s.map(0, p, p * 4096, 4096);
  const auto fifth = s.map(0, 4, 4 * 4096, 0);
  const auto read = s.pread(0, 100, 5 * 4096);
  const auto partly = s.pread(0, 8192, 3 * 4096);  // the first page is there
  const auto look = s.look(2, 4096);
  s.unmap(1);
  const auto again = s.map(0, 4, 4 * 4096, 4096);
  s.unmap(4);
  for (const unsigned p : {0u, 2u, 3u}) s.unmap(p);
  const auto after = s.pread(0, 100, 9 * 4096);
  s.close(0);
  const std::uint64_t before = fs().counters().errors;
  const auto begin = std::chrono::steady_clock::now();
  const auto got = warp.run(s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(got[fifth].value, -ENOMEM);
  EXPECT_EQ(got[read].value, -ENOMEM);
  EXPECT_EQ(got[partly].value, -ENOMEM) << "no count that looks like the end of the file";
  EXPECT_EQ(wrong_bytes(got[look], 4096, 5, 2 * 4096), 0u) << "a pinned page moved";
  EXPECT_EQ(got[again].value, 4096);
  EXPECT_EQ(wrong_bytes(got[again], 4096, 5, 4 * 4096), 0u);
  EXPECT_EQ(got[after].value, 100);
  EXPECT_EQ(fs().counters().errors - before, 3u);
}

TEST_P(bad_state, more_pinning_groups_than_frames) {
  dir.add("big", 256 * 4096, 5);
  options.cache_nbytes = 8 * 4096;
  players groups(fs().ref(), {.grid = 4, .block = 64, .schedule = {.resident_blocks = 4}, .all = group_kind::tile8});
  ASSERT_EQ(groups.size(), 32u);
  std::vector<script> scripts(groups.size());
  for (unsigned g = 0; g < groups.size(); ++g) {
    scripts[g].open(0, "big");
    scripts[g].map(0, 0, (2 * g) * 4096, 4096);
    scripts[g].map(0, 1, (2 * g + 1) * 4096, 4096);
    scripts[g].look(0, 4096);
    scripts[g].unmap(0);
    scripts[g].unmap(1);
    scripts[g].close(0);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto got = groups.run(scripts);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  unsigned mapped = 0;
  for (unsigned g = 0; g < groups.size(); ++g) {
    for (const unsigned p : {0u, 1u}) {
      const outcome& map = got[g][1 + p];
      ASSERT_TRUE(map.value == 4096 || map.value == -ENOMEM) << map.value;
      EXPECT_EQ(got[g][4 + p].value, map.value == 4096 ? 0 : -ENOMEM);
      mapped += map.value == 4096;
      EXPECT_EQ(map.value == 4096 ? wrong_bytes(map, 4096, 5, (2 * g + p) * 4096) : 0, 0u);
    }
  }
  EXPECT_GE(mapped, 8u) << "somebody must get on";
}

TEST_P(bad_state, too_many_open_files) {
  options.max_open_files = 8;
  for (int i = 0; i < 12; ++i) dir.add(numbered("f", static_cast<std::uint64_t>(i)), 5000, static_cast<std::uint64_t>(i));
  players groups(fs().ref(), {.grid = 3, .block = 128});
  ASSERT_EQ(groups.size(), 12u);
  std::vector<script> opening(12), closing(12), again(12);
  for (unsigned g = 0; g < 12; ++g) {
    opening[g].open(0, numbered("f", g));
    closing[g].close(0);
    again[g].open(0, numbered("f", g));
    again[g].pread(0, 5000, 0);
    again[g].close(0);
  }
  const auto first = groups.run(opening);
  unsigned open_now = 0;
  for (const auto& got : first) {
    EXPECT_TRUE(got[0].value >= 0 || got[0].value == -ENFILE) << got[0].value;
    open_now += got[0].value >= 0;
  }
  EXPECT_EQ(open_now, 8u);
  EXPECT_EQ(fs().counters().open_errors, 4u);
  const auto closed = groups.run(closing);
  for (unsigned g = 0; g < 12; ++g) EXPECT_EQ(closed[g][0].value, first[g][0].value >= 0 ? 0 : first[g][0].value);
}

TEST_P(bad_state, too_many_open_files_while_others_come_and_go) {
  options.max_open_files = 4;
  for (int i = 0; i < 12; ++i) dir.add(numbered("f", static_cast<std::uint64_t>(i)), 5000, static_cast<std::uint64_t>(i));
  std::vector<script> scripts(12);
  for (unsigned g = 0; g < 12; ++g) {
    for (unsigned i = 0; i < 20; ++i) {
      scripts[g].open(0, numbered("f", (g + i) % 12));
      scripts[g].pread(0, 5000, 0);
      scripts[g].close(0);
    }
  }
  for (std::uint64_t seed = 1; seed <= fewer(10) * number_from_environment("GPUFS_TEST_EFFORT", 1); ++seed) {
    players groups(
        fs().ref(),
        {.grid = 3, .block = 128, .schedule = {.seed = seed, .resident_blocks = 3, .switch_percent = seed % 2 == 0 ? 25u : 100u}});
    unsigned good = 0;
    for (const auto& got : groups.run(scripts)) {
      for (std::size_t i = 0; i < got.size(); i += 3) {
        const std::int64_t opened = got[i].value;
        EXPECT_TRUE(opened >= 0 || opened == -ENFILE) << "open gave " << opened << ", seed " << seed;
        EXPECT_EQ(got[i + 1].value, opened >= 0 ? 5000 : opened);
        EXPECT_EQ(got[i + 2].value, opened >= 0 ? 0 : opened);
        good += opened >= 0;
      }
    }
    EXPECT_GE(good, 20u);
  }
}

// A slot that moves from list to list while somebody looks for one is found.
TEST_P(bad_state, as_many_slots_as_groups_are_enough) {
  for (const unsigned ngroups : {2u, 4u}) {
    options.max_open_files = ngroups;
    const unsigned nopens = 25;
    for (unsigned i = 0; i < ngroups * nopens; ++i) dir.add(numbered("f", i), 100, i);
    std::vector<script> scripts(ngroups);
    for (unsigned i = 0; i < ngroups * nopens; ++i) {
      scripts[i % ngroups].open(0, numbered("f", i));
      scripts[i % ngroups].close(0);
    }
    const mount few(dir.path(), options);
    for (std::uint64_t seed = 1; seed <= fewer(10) * number_from_environment("GPUFS_TEST_EFFORT", 1); ++seed) {
      players groups(few.ref(), {.grid = 1, .block = 32 * ngroups, .schedule = {.seed = seed, .switch_percent = 100}});
      for (const auto& got : groups.run(scripts)) {
        for (const auto& one : got) EXPECT_GE(one.value, 0) << "seed " << seed;
      }
    }
  }
}

TEST_P(bad_state, unmapped_twice) {
  players warp(fs().ref(), {});
  script s;
  s.open(0, "good");
  s.map(0, 0, 0, 100);
  s.unmap_copy(0);
  const auto twice = s.unmap_copy(0);
  const auto original = s.unmap(0);
  const auto thrice = s.unmap(0);
  s.map(0, 1, 30000, 0);
  const auto failed = s.unmap(1);
  const auto never = s.unmap(2);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[2].value, 0);
  for (const auto i : {twice, original, thrice, never}) EXPECT_EQ(got[i].value, -EBADF) << "call " << i;
  EXPECT_EQ(got[failed].value, -ENXIO);
  EXPECT_EQ(fs().counters().unpin_errors, 2u) << "those that named a page";
}

TEST_P(bad_state, closed_twice) {
  players warp(fs().ref(), {});
  script s;
  s.open(0, "good");
  s.close(0);
  const auto twice = s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[1].value, 0);
  EXPECT_EQ(got[twice].value, -EBADF);
}

struct open_one {
  mount_ref fs;
  const char* path;
  std::int32_t* number;

  GPUFS_DEVICE void operator()() const {
    const file opened = gpufs::open(this_warp(), fs, path);
    if (this_warp().leader()) *number = static_cast<std::int32_t>(opened.number());
  }
};
struct close_by_all {
  mount_ref fs;
  const std::int32_t* number;
  int* errors;  // one a block

  GPUFS_DEVICE void operator()() const {
    const int error = gpufs::close(this_warp(), file(fs, file_number{*number}));
    if (this_warp().leader()) errors[simt::block_rank()] = error;
  }
};

// One group opens, and each closes: a likely mistake.
TEST_P(bad_state, closed_by_many_at_once) {
  dir.add("one", 5000, 5);
  const device_buffer<char> path(std::vector<char>{'o', 'n', 'e', '\0'});
  for (const unsigned n : {2u, 3u, 4u, 16u}) {
    for (std::uint64_t seed = 1; seed <= fewer(20) * number_from_environment("GPUFS_TEST_EFFORT", 1); ++seed) {
      const std::uint64_t bad_numbers = fs().counters().bad_file_numbers;
      const device_buffer<std::int32_t> number(1);
      const device_buffer<int> errors(n);
      simt::launch({.grid = 1, .block = 32}, open_one{fs().ref(), path.get(), number.get()});
      simt::launch({.grid = n, .block = 32, .schedule = {.seed = seed, .resident_blocks = n, .nthreads = 1, .switch_percent = 100}},
                   close_by_all{fs().ref(), number.get(), errors.get()});
      const std::vector<int> got = errors.read();
      EXPECT_EQ(std::count(got.begin(), got.end(), 0), 1) << n << " closes, seed " << seed;
      EXPECT_EQ(std::count(got.begin(), got.end(), -EBADF), n - 1);
      EXPECT_EQ(fs().counters().bad_file_numbers - bad_numbers, n - 1);
      ASSERT_TRUE(fs().open_files().empty()) << n << " closes, seed " << seed;
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
