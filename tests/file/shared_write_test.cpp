// SPDX-License-Identifier: Apache-2.0
// Files that many groups, mounts and processes write: all keep their bytes, and appends do not overlap.
#include <algorithm>

#include "file/writing.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Groups of all kinds share what one has opened for writing; who opened it before keeps what they had.
TEST(shared_writes, opens_share_what_is_written) {
  temp_dir dir;
  dir.add("file", 1000, 1);
  let_file_times_pass();
  const mount m(dir.path(), writing());
  players early(m.ref(), {}), writer(m.ref(), {}), late(m.ref(), {.grid = 2, .block = 64, .all = group_kind::tile8});
  script read, write, see, close;
  read.open(0, "file");
  read.pread(0, 1000, 0);
  EXPECT_EQ(wrong_bytes(early.run(read)[1], 1000, 1, 0), 0u);
  write.open(0, "file", O_WRONLY);
  write.pwrite(0, content(2, 0, 2000), 0);
  EXPECT_EQ(writer.run(write)[1].value, 2000);
  see.open(0, "file");
  see.pread(0, 3000, 0);
  see.open(1, "file", O_RDWR);
  see.close(0);
  see.close(1);
  for (const auto& got : late.run_all(see)) {
    EXPECT_EQ(got[1].value, 2000) << "the new size, before anything was written back";
    EXPECT_EQ(wrong_bytes(got[1], 2000, 2, 0), 0u);
    EXPECT_EQ(got[3].value, 0);
    EXPECT_EQ(got[4].value, 0);
  }
  script again;
  again.pread(0, 1000, 0);
  EXPECT_EQ(wrong_bytes(early.run(again)[0], 1000, 1, 0), 0u) << "its pages are cached";
  close.close(0);
  EXPECT_EQ(writer.run(close)[0].value, 0);
  EXPECT_EQ(early.run(close)[0].value, 0);
  EXPECT_EQ(dir.read("file"), content(2, 0, 2000));
  // Later opens see what was written, whoever had it open.
  script later;
  later.open(0, "file");
  later.pread(0, 3000, 0);
  later.close(0);
  const auto got = early.run(later);
  EXPECT_EQ(got[1].value, 2000);
  EXPECT_EQ(wrong_bytes(got[1], 2000, 2, 0), 0u);
  EXPECT_EQ(m.counters().host_opens, m.counters().host_closes);
  expect_all_written(m);
}

TEST(shared_writes, truncation_at_open_is_for_all) {
  temp_dir dir;
  dir.add("file", 1000, 1);
  const mount m(dir.path(), writing());
  players first(m.ref(), {}), second(m.ref(), {});
  script open, cut, look;
  open.open(0, "file", O_RDWR);
  open.pwrite(0, content(2, 900, 500), 900);
  EXPECT_EQ(first.run(open)[1].value, 500);
  cut.open(0, "file", O_RDWR | O_TRUNC);
  cut.pwrite(0, content(3, 10, 5), 10);
  cut.close(0);
  const auto cut_got = second.run(cut);
  EXPECT_GE(cut_got[0].value, 0);
  EXPECT_EQ(cut_got[2].value, 0);
  look.pread(0, 1000, 0);
  look.close(0);
  const auto got = first.run(look);
  std::vector<std::byte> wanted(10);
  put(wanted, content(3, 10, 5), 10);
  ASSERT_EQ(got[0].value, 15);
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), got[0].bytes.begin()));
  EXPECT_EQ(dir.read("file"), wanted);
  expect_all_written(m);
}

// Kernels that end without closing lose nothing as long as their device lives.
TEST(shared_writes, the_mount_writes_what_kernels_left) {
  expect_leftovers("the kernel closes nothing");
  temp_dir dir;
  dir.add("file", 5 * page, 1);
  auto wanted = content(1, 0, 5 * page);
  {
    mount m(dir.path(), writing());
    players groups(m.ref(), {});
    script s, t;
    s.open(0, "file", O_RDWR);
    s.pwrite(0, content(2, 100, 10), 100);
    s.pwrite(0, content(2, 120, 900), 120);
    groups.run(s);
    EXPECT_EQ(m.counters().unwritten_pages, 2u);
    EXPECT_EQ(m.sync(), 0u);
    expect_all_written(m);
    put(wanted, content(2, 100, 10), 100);
    put(wanted, content(2, 120, 900), 120);
    EXPECT_EQ(dir.read("file"), wanted);
    t.pwrite(0, content(3, 7, 1), 7);
    put(wanted, content(3, 7, 1), 7);
    t.pwrite(0, content(3, 1000, 1200), 1000);
    put(wanted, content(3, 1000, 1200), 1000);
    EXPECT_EQ(groups.run(t)[1].value, 1200);
    EXPECT_NE(dir.read("file"), wanted);
  }
  EXPECT_EQ(dir.read("file"), wanted);
}

// Every byte of a few pages has one of three owners: two mounts, and this process. All keep theirs, through eviction and closing in
// any order.
TEST(shared_writes, bytes_of_one_page_have_many_writers) {
  for (std::uint64_t seed = 1; seed <= (under_tsan ? 3 : 12); ++seed) {
    random_source draw(seed);
    temp_dir dir;
    constexpr std::size_t nbytes = 9 * page + 100;
    dir.add("file", nbytes, 1);
    auto wanted = content(1, 0, nbytes);
    const auto nframes = static_cast<std::uint32_t>(draw.between(1, 16));
    const mount a(dir.path(), writing(nframes)), b(dir.path(), writing(static_cast<std::uint32_t>(draw.between(1, 16))));
    const mount* mounts[] = {&a, &b};
    std::vector<std::unique_ptr<players>> groups;
    script scripts[2];
    const int flags = draw.percent(50) ? O_GWRONCE : O_RDWR;
    for (int i = 0; i < 2; ++i) {
      groups.push_back(std::make_unique<players>(mounts[i]->ref(), formation{}));
      scripts[i].open(0, "file", flags);
    }
    script ends[2];
    const int fd = ::open((dir / "file").c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    for (std::size_t at = 0; at < nbytes;) {
      const std::size_t n = std::min<std::size_t>(draw.between(1, draw.percent(10) ? 900 : 40), nbytes - at);
      const auto owner = draw.below(4);
      const auto bytes = content(owner + 10, at, n);
      if (owner == 3) {
        at += n;  // nobody's
        continue;
      }
      put(wanted, bytes, at);
      if (owner == 2) {
        ASSERT_EQ(::pwrite(fd, bytes.data(), n, static_cast<off_t>(at)), static_cast<ssize_t>(n));
      } else {
        (draw.percent(70) ? scripts[owner] : ends[owner]).pwrite(0, bytes, static_cast<std::int64_t>(at));
      }
      at += n;
    }
    ::close(fd);
    for (int i = 0; i < 2; ++i) {
      if (draw.percent(30)) scripts[i].fsync(0, durability::page_cache);
      ends[i].close(0);
    }
    for (int i = 0; i < 2; ++i) groups[i]->run(scripts[i]);
    const bool swap = draw.percent(50);
    for (int i = 0; i < 2; ++i) {
      const auto got = groups[swap ? 1 - i : i]->run(ends[swap ? 1 - i : i]);
      EXPECT_EQ(got.back().value, 0);
    }
    ASSERT_EQ(dir.read("file"), wanted) << "seed " << seed;
    expect_all_written(a);
    expect_all_written(b);
  }
}

// Every group appends records, which all end up somewhere, whole and once.
TEST(shared_writes, appends_never_overlap) {
  temp_dir dir;
  dir.add("log", 100, 1);
  const mount m(dir.path(), writing(24));
  const formation how{.grid = under_tsan ? 1u : 3u, .block = 64, .all = group_kind::tile8};
  players groups(m.ref(), how);
  constexpr unsigned nrecords = 20;
  std::vector<script> scripts(groups.size());
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    scripts[g].open(0, "log", O_WRONLY | O_APPEND);
    for (unsigned i = 0; i < nrecords; ++i)
      scripts[g].append(0, std::vector<std::byte>(64, static_cast<std::byte>(g * nrecords + i)));
    scripts[g].close(0);
  }
  std::vector<std::byte> wanted(100 + groups.size() * nrecords * 64);
  put(wanted, content(1, 0, 100), 0);
  std::vector<std::int64_t> offsets;
  const auto outcomes = groups.run(scripts);
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    for (unsigned i = 0; i < nrecords; ++i) {
      const std::int64_t offset = outcomes[g][i + 1].value;
      ASSERT_GE(offset, 100);
      offsets.push_back(offset);
      put(wanted, std::vector<std::byte>(64, static_cast<std::byte>(g * nrecords + i)), static_cast<std::size_t>(offset));
    }
    EXPECT_EQ(outcomes[g].back().value, 0);
  }
  std::sort(offsets.begin(), offsets.end());
  for (std::size_t i = 0; i < offsets.size(); ++i) ASSERT_EQ(offsets[i], 100 + 64 * static_cast<std::int64_t>(i));
  EXPECT_EQ(dir.read("log"), wanted);
  expect_all_written(m);
}

// While one block writes a file of many pages by one call, the other waits until a page in its midst has been written back and
// evicted (the first ones may stay, dirty, as long as they are few), writes a part of it, and holds the page until the long write
// has ended.
struct write_and_look {
  mount_ref fs, beside;  // of one directory
  const char* path;
  const std::byte* bytes;
  std::uint64_t nbytes;
  std::int64_t midst, gone;  // where that page begins; the size that the file has then
  std::byte* seen;
  std::int64_t* results;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const bool writer = simt::block_rank() == 0;
    const auto note = [&](unsigned i, std::int64_t result) {
      if (warp.leader()) results[i] = result;
    };
    const simt::deadline until(60'000'000'000);
    const auto early = [&] { return !warp.broadcast(until.expired()); };
    const file f = open(warp, fs, path, O_RDWR | O_CREAT);
    if (writer) {
      note(0, pwrite(warp, f, bytes, nbytes, 0));
    } else {
      path_status status{};
      do status = stat(warp, beside, path);
      while (status.nbytes < gone && early());
      note(6, pread(warp, f, seen, 1, static_cast<std::int64_t>(nbytes) - 1));  // 0: the long write goes on
      note(1, pwrite(warp, f, bytes + midst, 1, midst));
      gpufs::mapped_page held = map_page(warp, f, midst);
      note(2, held.error());
      while (pread(warp, f, seen, 1, static_cast<std::int64_t>(nbytes) - 1) == 0 && early()) {
      }
      note(3, pread(warp, f, seen, page, midst));
      if (held.error() == 0) unmap_page(warp, std::move(held));
    }
    note(writer ? 4 : 5, close(warp, f));
  }
};
TEST(shared_writes, pages_are_kept_before_their_write_has_ended) {
  constexpr std::size_t nbytes = 200 * page;
  const auto bytes = content(2, 0, nbytes);
  int overlapped = 0;
  for (std::uint64_t seed = 1; seed <= schedules(4, 2); ++seed) {
    temp_dir dir;
    const mount m(dir.path(), writing(8)), beside(dir.path(), writing(8));
    const device_buffer<char> path(std::vector<char>{'f', 'i', 'l', 'e', 0});
    const device_buffer<std::byte> from(bytes), seen(page);
    const device_buffer<std::int64_t> results(std::vector<std::int64_t>(7, -1));
    simt::launch(
        {.grid = 2, .block = 32, .schedule = {.seed = seed, .switch_percent = 50}},
        write_and_look{m.ref(), beside.ref(), path.get(), from.get(), nbytes, 20 * page, 64 * page, seen.get(), results.get()});
    auto got = results.read();
    overlapped += got.back() == 0;
    got.pop_back();
    EXPECT_EQ(got, (std::vector<std::int64_t>{nbytes, 1, 0, page, 0, 0})) << "seed " << seed;
    EXPECT_EQ(seen.read(), content(2, 20 * page, page)) << "seed " << seed;
    EXPECT_EQ(dir.read("file"), bytes);
    expect_all_written(m);
  }
  if (!on_cuda && !under_tsan) {
    EXPECT_GT(overlapped, 0) << "the long write had ended each time";
  }
}

// Of two groups that write a page one calls fsync: its bytes are there then, whoever has made the page dirty.
TEST(shared_writes, fsync_finds_a_page_that_another_has_just_made_dirty) {
  for (std::uint64_t seed = 1; seed <= schedules(100, 5); ++seed) {
    temp_dir dir;
    mount_options options = writing();
    options.dirty_nbytes = 64 * page;
    const mount m(dir.path(), options);
    players groups(m.ref(), {.schedule = {.seed = seed, .switch_percent = 5, .delay_percent = 10}, .all = group_kind::thread});
    std::vector<script> scripts(groups.size());
    const auto ours = content(2, 0, 1), theirs = content(3, 1, 1);
    for (std::uint32_t g = 0; g < groups.size(); g += 2) {  // a file for each two
      for (const std::uint32_t one : {g, g + 1}) scripts[one].open(0, numbered("file", g), O_RDWR | O_CREAT);
      scripts[g].pwrite(0, ours, 0);
      scripts[g + 1].pwrite(0, theirs, 1);
      scripts[g + 1].fsync(0, durability::page_cache);
    }
    for (const auto& got : groups.run(scripts)) ASSERT_GE(got.back().value, 0) << "seed " << seed;
    for (std::uint32_t g = 0; g < groups.size(); g += 2) {
      const auto bytes = dir.read(numbered("file", g));
      ASSERT_TRUE(bytes.size() == 2 && bytes[1] == theirs[0]) << "seed " << seed << " file " << g;
    }
    script close;
    close.close(0);
    groups.run_all(close);
    expect_all_written(m);
  }
}

// A write that grows a file while another group cuts it: as if one had come before the other, and not a half of each.
TEST(shared_writes, truncation_and_a_write_come_in_some_order) {
  for (std::uint64_t seed = 1; seed <= schedules(50, 5); ++seed) {
    temp_dir dir;
    const mount m(dir.path(), writing(16));
    players groups(m.ref(), {.grid = 2, .schedule = {.seed = seed, .switch_percent = 50}});
    std::vector<script> scripts(2);
    const auto bytes = content(2, 0, 2 * page);
    for (script& s : scripts) {
      for (unsigned f = 0; f < files_per_group; ++f) s.open(f, numbered("file", f), O_RDWR | O_CREAT);
    }
    for (unsigned f = 0; f < files_per_group; ++f) {
      scripts[seed % 2].pwrite(f, bytes, 0);
      scripts[1 - seed % 2].ftruncate(f, 0);
    }
    for (script& s : scripts) {
      for (unsigned f = 0; f < files_per_group; ++f) s.close(f);
    }
    for (const auto& got : groups.run(scripts)) {
      for (std::size_t i = 2 * files_per_group; i < got.size(); ++i) ASSERT_EQ(got[i].value, 0) << "seed " << seed;
    }
    for (unsigned f = 0; f < files_per_group; ++f) {
      const auto kept = dir.read(numbered("file", f));
      ASSERT_TRUE(kept.empty() || kept == bytes) << "seed " << seed << ": " << kept.size() << " bytes";
    }
    expect_all_written(m);
  }
}

// Groups write parts of all pages at once, and some read them; the cache is small.
TEST(shared_writes, many_groups_write_all_pages) {
  for (std::uint64_t seed = 1; seed <= schedules(50, 2); ++seed) {
    random_source draw(seed);
    temp_dir dir;
    constexpr std::size_t nbytes = 20 * page;
    dir.add("file", nbytes, 1);
    auto wanted = content(1, 0, nbytes);
    const mount m(dir.path(), writing(static_cast<std::uint32_t>(draw.between(2, 40))));
    const formation how{
        .grid = 2, .block = 64, .schedule = {.seed = seed}, .all = draw.percent(50) ? group_kind::warp : group_kind::tile8};
    players groups(m.ref(), how);
    std::vector<script> scripts(groups.size());
    for (script& s : scripts) s.open(0, "file", O_RDWR);
    for (std::size_t at = 0; at < nbytes;) {
      const std::size_t n = std::min<std::size_t>(draw.between(1, 120), nbytes - at);
      const auto g = draw.below(groups.size());
      const auto bytes = content(g + 2, at, n);
      put(wanted, bytes, at);
      scripts[g].pwrite(0, bytes, static_cast<std::int64_t>(at));
      scripts[g].pread(0, n, static_cast<std::int64_t>(at));
      if (draw.percent(5)) scripts[g].fsync(0, durability::page_cache);
      at += n;
    }
    for (script& s : scripts) s.close(0);
    const auto outcomes = groups.run(scripts);
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      const auto& ops = scripts[g].ops();
      for (std::size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].kind == op_kind::pread) {
          ASSERT_EQ(wrong_bytes(outcomes[g][i], ops[i].nbytes, g + 2, static_cast<std::uint64_t>(ops[i].offset)), 0u)
              << "seed " << seed;
        } else if (ops[i].kind != op_kind::open) {
          ASSERT_EQ(outcomes[g][i].value, ops[i].kind == op_kind::pwrite ? static_cast<std::int64_t>(ops[i].nbytes) : 0)
              << "seed " << seed;
        }
      }
    }
    ASSERT_EQ(dir.read("file"), wanted) << "seed " << seed;
    expect_all_written(m);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
