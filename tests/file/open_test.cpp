// SPDX-License-Identifier: Apache-2.0
// Opening: repeated and concurrent opens of one path, tens of thousands of files, versions, slots that are used again and again.
#include <sys/resource.h>

#include "file/faulty_store.hpp"
#include "file/reader.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

mount_options small(store_kind kind, std::uint32_t nframes = 64) {
  mount_options o;
  o.store = kind;
  o.cache_nbytes = std::uint64_t{nframes} * 4096;
  o.max_open_files = 64;
  o.internals.request_rings = 4;
  return o;
}

class open_files : public ::testing::TestWithParam<store_kind> {};
INSTANTIATE_TEST_SUITE_P(stores, open_files, ::testing::Values(store_kind::posix, store_kind::mapped),
                         [](const auto& tested) { return std::string(tested.param == store_kind::posix ? "posix" : "mapped"); });

TEST_P(open_files, repeated_opens_cost_no_host_call) {
  temp_dir dir;
  dir.add("file", 5000, 3);
  const mount m(dir.path(), small(GetParam()));
  players keeper(m.ref(), {}), groups(m.ref(), {.grid = 4, .block = 64, .all = group_kind::tile8});
  script hold, release, again;
  hold.open(0, "file");
  release.close(0);
  for (int i = 0; i < 20; ++i) {
    again.open(1, "file");
    again.open(2, "file");
    again.pread(2, 10, 4000);
    again.close(2);
    again.close(1);
  }
  const std::int64_t number = keeper.run(hold)[0].value;
  EXPECT_EQ(m.counters().host_opens, 1u);
  for (const auto& got : groups.run_all(again)) {
    for (std::size_t i = 0; i < got.size(); i += 5) {
      EXPECT_EQ(got[i].value, number) << "one path, one number";
      EXPECT_EQ(got[i + 2].value, 10);
      EXPECT_EQ(got[i + 3].value, 0);
      EXPECT_EQ(got[i + 4].value, 0);
    }
  }
  EXPECT_EQ(m.counters().opens, 1 + 40u * groups.size());
  EXPECT_EQ(m.counters().host_opens, 1u);
  EXPECT_EQ(m.counters().host_closes, 0u);
  EXPECT_EQ(keeper.run(release)[0].value, 0);
  EXPECT_EQ(m.counters().host_closes, 1u) << "the last close";
}

TEST_P(open_files, different_spellings_are_different_paths_of_one_version) {
  temp_dir dir;
  dir.add("sub/file", 5000, 3);
  std::filesystem::create_symlink("sub/file", dir / "link");
  let_file_times_pass();
  const mount m(dir.path(), small(GetParam()));
  players warp(m.ref(), {});
  script s;
  s.open(0, "sub/file");
  s.open(1, "./sub/file");
  s.open(2, "link");
  s.open(3, "sub//file");
  for (unsigned f = 0; f < 4; ++f) s.pread(f, 5000, 0);
  const auto status = s.fstat(0);
  for (unsigned f = 1; f < 4; ++f) s.fstat(f);
  for (unsigned f = 0; f < 4; ++f) s.close(f);
  const auto got = warp.run(s);
  for (unsigned f = 0; f < 4; ++f) {
    EXPECT_GE(got[f].value, 0);
    EXPECT_EQ(got[4 + f].value, 5000);
    EXPECT_EQ(wrong_bytes(got[4 + f], 5000, 3, 0), 0u);
    EXPECT_EQ(got[status + f].status().cache_id, got[status].status().cache_id);
    EXPECT_EQ(got[status + f].status().inode, got[status].status().inode);
  }
  EXPECT_EQ(m.counters().faults, 2u) << "all find the same pages";
}

TEST_P(open_files, all_groups_open_one_path_at_once) {
  temp_dir dir;
  dir.add("file", 5000, 3);
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 5u : 30u); ++seed) {
    const mount m(dir.path(), small(GetParam()));
    const auto kind = static_cast<group_kind>(seed % 4);
    reading_run run({.path = "file",
                     .file_nbytes = 5000,
                     .seed = 3,
                     .calls = 3,
                     .kind = kind,
                     .config = {.grid = on_cuda ? 132u : 4u,
                                .block = 64,
                                .schedule = {.seed = seed, .order = simt::block_order::random, .switch_percent = 60}}});
    run(m.ref(), seed);
    run.expect_good();
    const mount_counters c = m.counters();
    EXPECT_EQ(c.opens, run.ngroups());
    EXPECT_LE(c.host_opens, run.ngroups());
    EXPECT_EQ(c.host_opens, c.host_closes);
    EXPECT_EQ(c.open_errors, 0u);
    EXPECT_TRUE(m.open_files().empty());
  }
}

TEST_P(open_files, unchanged_file_finds_its_pages_and_a_changed_one_is_read_anew) {
  temp_dir dir;
  dir.add("file", 40000, 3);
  let_file_times_pass();
  const mount m(dir.path(), small(GetParam()));
  players warp(m.ref(), {});
  script s;
  s.open(0, "file");
  const auto read = s.pread(0, 40000, 0);
  const auto status = s.fstat(0);
  s.close(0);
  auto got = warp.run(s);
  EXPECT_EQ(got[read].value, 40000);
  const std::uint32_t first_id = got[status].status().cache_id;
  EXPECT_EQ(m.counters().faults, 10u);
  for (int i = 0; i < 3; ++i) {
    got = warp.run(s);
    EXPECT_EQ(got[status].status().cache_id, first_id);
    EXPECT_EQ(wrong_bytes(got[read], 40000, 3, 0), 0u);
  }
  EXPECT_EQ(m.counters().faults, 10u) << "reopening finds the pages";
  EXPECT_EQ(m.counters().host_opens, 4u);

  dir.overwrite("file", 0, 40000, 4);  // same size, other bytes
  got = warp.run(s);
  EXPECT_NE(got[status].status().cache_id, first_id);
  EXPECT_EQ(wrong_bytes(got[read], 40000, 4, 0), 0u) << "the changed file is read anew";
  EXPECT_EQ(m.counters().faults, 20u);

  dir.resize("file", 30000);
  got = warp.run(s);
  EXPECT_EQ(got[read].value, 30000);
  EXPECT_EQ(got[status].value, 30000);
  dir.add("file", 50000, 5);
  got = warp.run(s);
  EXPECT_EQ(got[read].value, 40000);
  EXPECT_EQ(got[status].value, 50000);
  EXPECT_EQ(wrong_bytes(got[read], 40000, 5, 0), 0u);
  std::filesystem::remove(dir / "file");
  EXPECT_EQ(warp.run(s)[0].value, -ENOENT);
}

// Changes so quick that the file's times may not show them.
TEST_P(open_files, quick_changes_are_seen) {
  temp_dir dir;
  const mount m(dir.path(), small(GetParam()));
  players warp(m.ref(), {});
  script s;
  s.open(0, "file");
  const auto read = s.pread(0, 3000, 0);
  s.close(0);
  dir.add("file", 3000, 100);
  for (std::uint64_t i = 0; i < 30; ++i) {
    dir.overwrite("file", 0, 3000, i);
    const auto got = warp.run(s);
    EXPECT_EQ(got[read].value, 3000);
    EXPECT_EQ(wrong_bytes(got[read], 3000, i, 0), 0u) << "change " << i;
  }
}

TEST(open_file, status_says_what_is_known) {
  temp_dir dir;
  dir.add("file", 12345, 3);
  ASSERT_EQ(chmod((dir / "file").c_str(), 0640), 0);
  struct stat real {};
  ASSERT_EQ(stat((dir / "file").c_str(), &real), 0);
  for (const store_kind kind : {store_kind::posix, store_kind::mapped}) {
    const mount m(dir.path(), small(kind));
    players groups(m.ref(), {.grid = 1, .block = 64, .all = group_kind::block});
    script s;
    s.open(0, "file");
    const auto status = s.fstat(0);
    s.close(0);
    const file_status got = groups.run(s)[status].status();
    EXPECT_EQ(got.nbytes, 12345);
    EXPECT_EQ(got.inode, real.st_ino);
    EXPECT_EQ(got.mode, real.st_mode);
    EXPECT_EQ(got.mtime_ns,
              static_cast<std::uint64_t>(real.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(real.st_mtim.tv_nsec));
    EXPECT_EQ(got.source, kind == store_kind::posix ? source_kind::staged : source_kind::pull);
    EXPECT_EQ(m.counters().host_opens, 1u);
  }
}

// One slot, opened and closed until its 11-bit generation has come round: old numbers stay invalid until then.
struct wear_a_slot {
  mount_ref fs;
  const char* path;
  std::uint32_t rounds;
  std::uint32_t* bad;
  std::int32_t* first_and_last;
  std::byte* byte;  // the file's

  GPUFS_DEVICE void operator()() const {
    std::int32_t before = -1;
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const file f = open(this_warp(), fs, path);
      const auto number = static_cast<std::int32_t>(f.number());
      bool good = number >= 0 && number != before && pread(this_warp(), f, byte, 1, 100) == 1;
      if (before >= 0) good = pread(this_warp(), file(fs, file_number{before}), byte, 1, 100) == -EBADF && good;
      good = close(this_warp(), f) == 0 && good;
      good = close(this_warp(), f) == -EBADF && good;
      if (!good && this_warp().leader()) ++*bad;
      before = number;
      if (this_warp().leader()) first_and_last[i == 0 ? 0 : 1] = number;
    }
  }
};

TEST(open_file, slot_is_used_more_often_than_it_has_generations) {
  temp_dir dir;
  dir.add("file", 5000, 3);
  mount_options options = small(store_kind::posix);
  options.max_open_files = 1;
  const mount m(dir.path(), options);
  const device_buffer<char> path(std::vector<char>{'f', 'i', 'l', 'e', '\0'});
  const device_buffer<std::uint32_t> bad(1);
  const device_buffer<std::int32_t> numbers(2);
  const device_buffer<std::byte> byte(1);
  const std::uint32_t rounds = under_tsan ? 300 : generation_mask + 1 + 52;
  simt::launch({.grid = 1, .block = 32}, wear_a_slot{m.ref(), path.get(), rounds, bad.get(), numbers.get(), byte.get()});
  EXPECT_EQ(bad.read_one(), 0u);
  EXPECT_EQ(m.counters().host_opens, rounds);
  EXPECT_EQ(m.counters().host_closes, rounds);
  // After 512 uses the first number comes again.
  const std::int32_t first = numbers.read_one(0), last = numbers.read_one(1);
  EXPECT_EQ((static_cast<std::uint32_t>(last - first) >> slot_bits) & generation_mask, (rounds - 1) & generation_mask);
}

// Hands a mapped page on, and unmaps it by what it was moved from and what it was moved to.
struct move_pages {
  mount_ref fs;
  const char* path;
  std::int64_t* results;

  GPUFS_DEVICE void operator()() const {
    const auto group = this_warp();
    const file f = open(group, fs, path);
    mapped_page first = map_page(group, f, 1);
    const std::byte* data = first.data();
    mapped_page<> second, third = std::move(first);
    second = std::move(third);
    const std::int64_t values[] = {first.error(),
                                   unmap_page(group, std::move(first)),
                                   unmap_page(group, std::move(third)),
                                   second.error(),
                                   second.data() == data && second.nbytes() == 99,
                                   unmap_page(group, std::move(second)),
                                   unmap_page(group, std::move(second)),
                                   unmap_page(group, map_page(group, f, 100)),
                                   close(group, f)};
    for (unsigned i = group.rank(); i < 9; i += group.size()) results[i] = values[i];
  }
};

TEST_P(open_files, mapped_pages_are_moved) {
  temp_dir dir;
  dir.add("file", 100, 4);
  const device_buffer<char> path(std::vector<char>{'f', 'i', 'l', 'e', '\0'});
  const device_buffer<std::int64_t> results(9);
  const mount m(dir.path(), small(GetParam(), 2));
  simt::launch({.grid = 1, .block = 32}, move_pages{m.ref(), path.get(), results.get()});
  EXPECT_EQ(results.read(), (std::vector<std::int64_t>{-EBADF, -EBADF, -EBADF, 0, 1, 0, -EBADF, -ENXIO, 0}));
  EXPECT_EQ(m.counters().pinned_frames, 0u);
  EXPECT_EQ(m.counters().unpin_errors, 0u);
}

// Counts the bytes that are not zero between the end of the file and the end of its last page.
struct look_beyond_the_end {
  mount_ref fs;
  const char* path;
  std::uint32_t page_nbytes;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto group = this_warp();
    const file f = open(group, fs, path);
    mapped_page mapped = map_page(group, f, 4096);
    std::int64_t dirty = mapped.error();
    if (mapped.error() == 0) {
      for (std::uint32_t i = mapped.nbytes() + group.rank(); i < page_nbytes; i += group.size())
        dirty += mapped.data()[i] != std::byte{0};
      unmap_page(group, std::move(mapped));
    }
    if (dirty != 0) simt::atomic_ref<std::int64_t>(*result).fetch_add(dirty, std::memory_order_relaxed);
    close(group, f);
  }
};

TEST_P(open_files, nothing_of_other_files_shows_beyond_the_end) {
  temp_dir dir;
  dir.add("other", 10 * 4096, 3);
  dir.add("short", 4096 + 100, 4);
  const device_buffer<char> path(std::vector<char>{'s', 'h', 'o', 'r', 't', '\0'});
  const device_buffer<std::int64_t> result(1);
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 5u : 20u) && !HasFailure(); ++seed) {
    const mount m(dir.path(), small(GetParam(), 2));
    reading_run others({.path = "other", .file_nbytes = 10 * 4096, .seed = 3, .calls = 10});
    others(m.ref());  // every frame has held other bytes
    // Warps look as soon as one of them has brought the page in.
    simt::launch({.grid = 4, .block = 64, .schedule = {.seed = seed, .switch_percent = 80}},
                 look_beyond_the_end{m.ref(), path.get(), 4096, result.get()});
    EXPECT_EQ(result.read_one(), 0) << "seed " << seed;
  }
}

// Groups open and close random files out of more than there are slots in the path table's chains.
TEST(open_file, random_opens_and_closes_leave_nothing_open) {
  temp_dir dir;
  for (std::uint64_t i = 0; i < 10; ++i) dir.add(numbered("f", i), 1000 + i, i);
  let_file_times_pass();
  const std::uint64_t count = (under_tsan || under_compute_sanitizer() ? 5 : 40) * number_from_environment("GPUFS_TEST_EFFORT", 1);
  for (std::uint64_t seed = 1; seed <= count && !::testing::Test::HasFailure(); ++seed) {
    random_source draw(seed);
    mount_options options = small(seed % 2 == 0 ? store_kind::posix : store_kind::mapped);
    options.max_open_files = 64;
    const mount m(dir.path(), options);
    for (std::uint64_t i = 0; i < 10 && options.store == store_kind::mapped; ++i) prepare_for_memcheck(m, numbered("f", i));
    players groups(m.ref(), {.grid = 3,
                             .block = 64,
                             .schedule = {.seed = seed, .resident_blocks = 3, .switch_percent = 70},
                             .all = static_cast<group_kind>(1 + seed % 2)});
    std::vector<script> scripts(groups.size());
    std::vector<std::vector<std::uint64_t>> files(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (int i = 0; i < 20; ++i) {
        const std::uint64_t f = draw.below(11);  // the last one is missing
        files[g].push_back(f);
        scripts[g].open(0, numbered("f", f));
        scripts[g].fstat(0);
        scripts[g].pread(0, 2000, 0);
        scripts[g].close(0);
      }
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t i = 0; i < files[g].size(); ++i) {
        const std::uint64_t f = files[g][i];
        const auto size = static_cast<std::int64_t>(1000 + f);
        if (f == 10) {
          EXPECT_EQ(got[g][4 * i].value, -ENOENT) << "seed " << seed;
          continue;
        }
        EXPECT_GE(got[g][4 * i].value, 0) << "seed " << seed;
        EXPECT_EQ(got[g][4 * i + 1].value, size) << "seed " << seed;
        EXPECT_EQ(got[g][4 * i + 2].value, size) << "seed " << seed;
        EXPECT_EQ(wrong_bytes(got[g][4 * i + 2], static_cast<std::size_t>(size), f, 0), 0u) << "seed " << seed;
        EXPECT_EQ(got[g][4 * i + 3].value, 0) << "seed " << seed;
      }
    }
    EXPECT_TRUE(m.open_files().empty()) << "seed " << seed;
    EXPECT_EQ(m.counters().host_opens, m.counters().host_closes) << "seed " << seed;
    EXPECT_LE(m.counters().faults, 10u) << "seed " << seed;
  }
}

// The first page of a file that host threads read comes along with its open, for every page size and kind of group.
TEST(open_file, brings_the_first_page_along) {
  temp_dir dir;
  constexpr std::uint64_t sizes[] = {0, 1, 511, 512, 4095, 4096, 4097, 65536, 200'000};
  for (const std::uint64_t n : sizes) dir.add(numbered("f", n), n, n);
  let_file_times_pass();
  for (const std::uint32_t page_nbytes : {512u, 4096u, 65536u, 131072u, 2u << 20}) {
    for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
      if ((under_tsan || under_compute_sanitizer()) && (page_nbytes != 4096 || kind == group_kind::tile8)) continue;
      mount_options options = small(store_kind::posix);
      options.page_nbytes = page_nbytes;
      options.cache_nbytes = std::uint64_t{32} * page_nbytes;
      const mount m(dir.path(), options);
      players groups(m.ref(), {.grid = 1, .block = 32, .all = kind});
      const auto run_first = [&](const script& s) {
        std::vector<script> scripts(groups.size());
        scripts[0] = s;
        return groups.run(scripts)[0];
      };
      std::uint64_t with_bytes = 0;
      for (const std::uint64_t n : sizes) {
        const std::uint64_t first = std::min<std::uint64_t>(n, page_nbytes);
        script opening, reading;
        opening.open(0, numbered("f", n));
        reading.pread(0, page_nbytes, 0);
        reading.map(0, 0, 0, 0);
        reading.unmap(0);
        reading.pread(0, 300'000, 0);
        reading.close(0);
        const mount_counters before = m.counters();
        EXPECT_GE(run_first(opening)[0].value, 0);
        const mount_counters opened = m.counters();
        const bool along = first != 0 && first <= 65536;
        with_bytes += along;
        EXPECT_EQ(opened.faults - before.faults, along ? 1u : 0u) << n << " in pages of " << page_nbytes;
        EXPECT_EQ(opened.bytes_filled - before.bytes_filled, along ? page_nbytes : 0u);
        EXPECT_EQ(opened.pinned_frames, 0u);
        EXPECT_EQ(opened.host_reads, before.host_reads);
        const auto got = run_first(reading);
        EXPECT_EQ(got[0].value, static_cast<std::int64_t>(first));
        EXPECT_EQ(wrong_bytes(got[0], first, n, 0), 0u);
        EXPECT_EQ(got[1].value, n == 0 ? -ENXIO : static_cast<std::int64_t>(first));
        EXPECT_EQ(got[3].value, static_cast<std::int64_t>(n));
        EXPECT_EQ(wrong_bytes(got[3], n, n, 0), 0u);
        const std::uint64_t npages = (n + page_nbytes - 1) / page_nbytes;
        if (npages <= 32) {
          EXPECT_EQ(m.counters().host_reads - opened.host_reads, npages - (along ? 1 : 0)) << n << " in pages of " << page_nbytes;
        }
      }
      EXPECT_GT(with_bytes, 0u);
    }
  }
}

// Bytes beyond the end of a page that came along are zero, whatever the frame held before.
TEST(open_file, a_page_that_came_along_ends_in_zeros) {
  expect_leftovers("the file stays open");
  temp_dir dir;
  dir.add("other", 10 * 4096, 3);
  dir.add("short", 100, 4);
  let_file_times_pass();
  for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
    mount_options options = small(store_kind::posix, 2);
    options.frame_timeout = std::chrono::seconds(60);
    const mount m(dir.path(), options);
    reading_run others({.path = "other", .file_nbytes = 10 * 4096, .seed = 3, .calls = 10, .kind = kind});
    others(m.ref());
    others.expect_good();
    players warp(m.ref(), {});
    script s;
    s.open(0, "short");
    warp.run(s);
    const cache::frame_storage& frames = mount_inside(m).layout().cache.frames;
    std::vector<std::byte> bytes(2 * 4096);
    simt::this_platform().copy_from_device(bytes.data(), frames.data, bytes.size());
    const auto begins = content(4, 0, 100);
    const auto found = std::search(bytes.begin(), bytes.end(), begins.begin(), begins.end());
    ASSERT_NE(found, bytes.end()) << "an open with a free frame keeps the page";
    EXPECT_TRUE(std::all_of(found + 100, found + 4096, [](std::byte b) { return b == std::byte{0}; }));
  }
}

// Every frame is pinned: opens succeed at once, without their pages.
TEST(open_file, no_frame_for_the_first_page) {
  temp_dir dir;
  for (std::uint64_t i = 0; i < 8; ++i) dir.add(numbered("f", i), 4096, i);
  let_file_times_pass();
  mount_options options = small(store_kind::posix, 2);
  options.frame_timeout = std::chrono::seconds(30);
  const mount m(dir.path(), options);
  players warp(m.ref(), {});
  script pin, open, let_go;
  for (unsigned i = 0; i < 2; ++i) {
    pin.open(i, numbered("f", i));
    pin.map(i, i, 0, 0);
  }
  for (const auto& got : warp.run(pin)) EXPECT_GE(got.value, 0);
  const mount_counters before = m.counters();
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 2; i < 8; ++i) {
    open.open(2, numbered("f", i));
    open.close(2);
  }
  for (const auto& got : warp.run(open)) EXPECT_GE(got.value, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "an open waits for no frame";
  EXPECT_EQ(m.counters().faults, before.faults);
  for (unsigned i = 0; i < 2; ++i) {
    let_go.unmap(i);
    let_go.pread(i, 4096, 0);
    let_go.close(i);
  }
  const auto got = warp.run(let_go);
  for (unsigned i = 0; i < 2; ++i) {
    EXPECT_EQ(got[3 * i + 1].value, 4096);
    EXPECT_EQ(wrong_bytes(got[3 * i + 1], 4096, i, 0), 0u);
  }
  EXPECT_EQ(m.counters().pinned_frames, 0u);
}

// Groups open, read and close the same few files at once in a cache of two frames: pages that come along meet fills, pins and
// evictions of others.
TEST(open_file, first_pages_meet_other_fills) {
  temp_dir dir;
  for (std::uint64_t i = 0; i < 5; ++i) dir.add(numbered("f", i), 1000 + 3000 * i, i);
  let_file_times_pass();
  const seed_range seeds = seeds_to_run(under_tsan ? 5 : 30);
  for (std::uint64_t seed = seeds.first; seed < seeds.end && !::testing::Test::HasFailure(); ++seed) {
    random_source draw(seed);
    mount_options options = small(store_kind::posix, static_cast<std::uint32_t>(draw.between(2, 6)));
    options.frame_timeout = std::chrono::seconds(60);
    const mount m(dir.path(), options);
    players groups(m.ref(), {.grid = 2,
                             .block = 64,
                             .schedule = {.seed = seed, .resident_blocks = 2, .switch_percent = 70},
                             .all = static_cast<group_kind>(seed % 4)});
    std::vector<script> scripts(groups.size());
    std::vector<std::vector<std::uint64_t>> files(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (int i = 0; i < (groups.size() > 32 ? 4 : 20); ++i) {
        const std::uint64_t f = draw.below(5);
        files[g].push_back(f);
        scripts[g].open(0, numbered("f", f));
        scripts[g].pread(0, 20000, 0);
        scripts[g].close(0);
      }
    }
    const auto got = groups.run(scripts);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t i = 0; i < files[g].size(); ++i) {
        const std::uint64_t f = files[g][i], size = 1000 + 3000 * f;
        EXPECT_GE(got[g][3 * i].value, 0) << "seed " << seed;
        EXPECT_EQ(got[g][3 * i + 1].value, static_cast<std::int64_t>(size)) << "seed " << seed;
        EXPECT_EQ(wrong_bytes(got[g][3 * i + 1], size, f, 0), 0u) << "seed " << seed;
        EXPECT_EQ(got[g][3 * i + 2].value, 0) << "seed " << seed;
      }
    }
    const mount_counters c = m.counters();
    EXPECT_EQ(c.pinned_frames, 0u) << "seed " << seed;
    EXPECT_EQ(c.allocations, c.faults) << "seed " << seed;
    EXPECT_EQ(c.host_opens, c.host_closes) << "seed " << seed;
    EXPECT_EQ(c.io_timeouts, 0u) << "seed " << seed;
  }
}

TEST(open_file, two_mounts_with_different_pages_do_not_meet) {
  temp_dir one, two;
  one.add("file", 50000, 3);
  two.add("file", 50000, 4);
  let_file_times_pass();  // else an open after a last close finds no pages
  mount_options small_pages = small(store_kind::posix), large_pages = small(store_kind::posix);
  small_pages.page_nbytes = 512;
  large_pages.page_nbytes = 65536;
  large_pages.cache_nbytes = 4 * 65536;
  mount a(one.path(), small_pages);
  const mount b(two.path(), large_pages);
  reading_run from_a({.path = "file", .file_nbytes = 50000, .seed = 3, .calls = 20}),
      from_b({.path = "file", .file_nbytes = 50000, .seed = 4, .calls = 20});
  {
    const std::jthread first([&] { from_a(a.ref(), 1); }), second([&] { from_b(b.ref(), 2); });
  }
  from_a.expect_good();
  from_b.expect_good();
  EXPECT_EQ(b.counters().faults, 1u);
  EXPECT_GT(a.counters().faults, 20u);
  mount moved(std::move(a));  // kernels' refs stay good
  from_a(moved.ref(), 3);
  EXPECT_EQ(from_a.result().wrong, 0u);
  EXPECT_EQ(from_a.result().failed, 0u);
}

TEST(open_file, impossible_mounts_are_refused) {
  temp_dir dir;
  const auto refused = [&](const mount_options& options, const std::string& root) {
    try {
      const mount m(root, options);
      return std::string();
    } catch (const error& e) {
      return std::string(e.what());
    }
  };
  mount_options o = small(store_kind::posix);
  EXPECT_EQ(refused(o, dir.path()), "");
  EXPECT_NE(refused(o, dir / "missing"), "");
  for (const std::uint32_t page_nbytes : {0u, 1u, 256u, 1000u, 4097u, 4u << 20}) {
    o = small(store_kind::posix);
    o.page_nbytes = page_nbytes;
    EXPECT_NE(refused(o, dir.path()), "") << page_nbytes;
  }
  o = small(store_kind::posix);
  o.cache_nbytes = 4095;
  EXPECT_NE(refused(o, dir.path()), "");
  o = small(store_kind::posix);
  o.max_open_files = (1u << 20) + 1;
  EXPECT_NE(refused(o, dir.path()), "");
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
