// SPDX-License-Identifier: Apache-2.0
// What a mount may use is limited: open files, descriptors, pinned frames, pinned host memory, and the disk. Many groups take more
// than there is, again and again, while they write: each gets its error in time, nothing that was written is lost, and afterwards
// all of it is there again.
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>

#include "file/name_spaces.hpp"
#include "file/script.hpp"
#include "gpufs/store/mapped_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t page = 512;

mount_options writing(std::uint32_t nframes = 64) {
  mount_options o = writing_options(page, nframes);
  o.store = store_kind::posix;
  o.frame_timeout = milliseconds(50);
  return o;
}

std::string name_of(std::size_t group, std::size_t file) { return numbered("f", group * 10 + file); }

// What a call must not take, although it fails.
class stopwatch {
 public:
  ~stopwatch() { EXPECT_LT(std::chrono::steady_clock::now() - begin_, seconds(under_tsan ? 120 : 60)); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

std::ptrdiff_t descriptors_in_use() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

void expect_nothing_held(const mount& m) {
  const mount_counters now = m.counters();
  EXPECT_EQ(now.host_opens, now.host_closes);
  EXPECT_EQ(now.pins, 0u);
  EXPECT_EQ(now.unwritten_pages, 0u);
  EXPECT_EQ(now.dirty_frames, 0u);
  EXPECT_EQ(now.write_errors, 0u);
  EXPECT_EQ(now.io_timeouts, 0u);
  EXPECT_TRUE(m.open_files().empty());
}

constexpr unsigned files_each = 3;

// Each group opens files of its own and one that all share, writes and closes them, again and again. An open fails with one of
// `errors` or not at all, and what was written to an open file is in it.
void open_write_close(const mount& m, const temp_dir& dir, std::uint64_t seed, std::initializer_list<std::int64_t> errors) {
  constexpr unsigned rounds = under_tsan ? 4 : 12, nbytes = 700, calls_a_file = 3;
  players groups(
      m.ref(),
      {.grid = 3, .block = 32, .schedule = {.seed = seed, .resident_blocks = 3, .switch_percent = 60}, .all = group_kind::tile8});
  std::vector<script> scripts(groups.size());
  const auto shared_at = [](std::size_t g) { return static_cast<std::int64_t>(g * nbytes); };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (unsigned r = 0; r < rounds; ++r) {
      for (unsigned f = 0; f < files_each; ++f) scripts[g].open(f, name_of(g, f), O_RDWR | O_CREAT);
      scripts[g].open(files_each, "shared", O_RDWR | O_CREAT);
      for (unsigned f = 0; f < files_each; ++f) scripts[g].pwrite(f, content(r, 0, nbytes), 0);
      scripts[g].pwrite(files_each, content(r, g * nbytes, nbytes), shared_at(g));
      for (unsigned f = 0; f <= files_each; ++f) scripts[g].close(f);
    }
  }
  const stopwatch limit;
  const auto got = groups.run(scripts);
  const auto shared = std::filesystem::exists(dir / "shared") ? dir.read("shared") : std::vector<std::byte>();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    int last[files_each + 1];  // the round in which it was written last
    std::fill(std::begin(last), std::end(last), -1);
    for (unsigned r = 0; r < rounds; ++r) {
      for (unsigned f = 0; f <= files_each; ++f) {
        const auto result = [&](unsigned call) { return got[g][(r * calls_a_file + call) * (files_each + 1) + f].value; };
        ASSERT_TRUE(result(0) >= 0 || std::find(errors.begin(), errors.end(), result(0)) != errors.end()) << result(0);
        ASSERT_EQ(result(1), result(0) >= 0 ? std::int64_t{nbytes} : result(0));
        ASSERT_EQ(result(2), result(0) >= 0 ? 0 : result(0));
        if (result(0) >= 0) last[f] = static_cast<int>(r);
      }
    }
    for (unsigned f = 0; f < files_each; ++f) {
      if (last[f] < 0) continue;
      ASSERT_EQ(dir.read(name_of(g, f)), content(static_cast<std::uint64_t>(last[f]), 0, nbytes)) << name_of(g, f);
    }
    if (last[files_each] < 0) continue;
    const auto mine = content(static_cast<std::uint64_t>(last[files_each]), g * nbytes, nbytes);
    ASSERT_GE(shared.size(), (g + 1) * nbytes);
    ASSERT_TRUE(std::equal(mine.begin(), mine.end(), shared.begin() + shared_at(g))) << "group " << g << " in the shared file";
  }
}

// How many of 3 x 4 files can be open at once.
unsigned open_at_once(const mount& m) {
  players groups(m.ref(), {.grid = 1, .block = 96});
  std::vector<script> opens(groups.size());
  script close;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (unsigned f = 0; f < files_per_group; ++f) opens[g].open(f, name_of(g + 50, f), O_RDWR | O_CREAT);
  }
  for (unsigned f = 0; f < files_per_group; ++f) close.close(f);
  const auto opened = groups.run(opens);
  const auto closed = groups.run_all(close);
  unsigned n = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (unsigned f = 0; f < files_per_group; ++f) {
      const std::int64_t number = opened[g][f].value;
      n += number >= 0 && closed[g][f].value == 0;
      EXPECT_TRUE(number >= 0 || closed[g][f].value == number) << "a call on a file that did not open gives its error";
    }
  }
  return n;
}

TEST(limits, of_open_files_hold_for_writers) {
  temp_dir dir;
  {
    const mount warm(dir.path(), writing());  // what CUDA opens at first is not ours
    EXPECT_EQ(open_at_once(warm), 12u);
  }
  const std::ptrdiff_t before = descriptors_in_use();
  {
    mount_options options = writing();
    options.max_open_files = 8;  // of 37 that groups want
    options.nworkers = 4;
    const mount m(dir.path(), options);
    EXPECT_EQ(open_at_once(m), 8u);
    const std::ptrdiff_t with_mount = descriptors_in_use();
    for (std::uint64_t seed = 1; seed <= 4 && !::testing::Test::HasFailure(); ++seed) open_write_close(m, dir, seed, {-ENFILE});
    EXPECT_GT(m.counters().open_errors, 0u);
    expect_nothing_held(m);
    EXPECT_LE(descriptors_in_use(), with_mount + 4) << "a worker may have started its io_uring meanwhile";
    EXPECT_EQ(open_at_once(m), 8u);
    expect_nothing_held(m);
  }
  EXPECT_EQ(descriptors_in_use(), before);
}

// The process may open a few more files only: the kernel says so, not we.
TEST(limits, of_descriptors_hold_for_writers) {
  temp_dir dir;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  {
    mount_options options = writing();
    options.nworkers = 4;
    const mount m(dir.path(), options);  // raises the limit
    EXPECT_EQ(open_at_once(m), 12u);     // what workers need they have
    rlimit raised{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &raised), 0);
    const int next = ::dup(STDIN_FILENO);
    ASSERT_GE(next, 0);
    ::close(next);
    rlimit low = raised;
    low.rlim_cur = static_cast<rlim_t>(next) + 9;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (std::uint64_t seed = 1; seed <= 4 && !::testing::Test::HasFailure(); ++seed) open_write_close(m, dir, seed, {-EMFILE});
    const std::uint64_t refused = m.counters().open_errors;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &raised), 0);
    EXPECT_GT(refused, 0u);
    expect_nothing_held(m);
    EXPECT_EQ(open_at_once(m), 12u);
    expect_nothing_held(m);
  }
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// 16 groups map pages to read and to write, of which there are four times as many as frames.
TEST(limits, of_pinned_frames_hold_for_writers) {
  constexpr unsigned nframes = 16, rounds = under_tsan ? 3 : 10, mapped_each = 4;
  temp_dir dir;
  const mount m(dir.path(), writing(nframes));
  const formation how{.grid = 2, .block = 64, .schedule = {.resident_blocks = 2}, .all = group_kind::tile8};
  players groups(m.ref(), how);
  const std::size_t npages = groups.size() * mapped_each;
  dir.add("file", npages * page, 1);
  let_file_times_pass();
  auto wanted = content(1, 0, npages * page);
  const auto offset_of = [&](std::size_t g, unsigned p) { return static_cast<std::int64_t>((g * mapped_each + p) * page); };
  std::vector<script> scripts(groups.size());
  struct attempt {
    std::size_t map, store, unmap, write;
    std::vector<std::byte> stored, written;
  };
  std::vector<std::vector<std::array<attempt, mapped_each>>> attempts(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    script& s = scripts[g];
    s.open(0, "file", O_RDWR);
    for (unsigned r = 0; r < rounds; ++r) {
      auto& now = attempts[g].emplace_back();
      for (unsigned p = 0; p < mapped_each; ++p) now[p].map = s.map_write(0, p, offset_of(g, p));
      for (unsigned p = 0; p < mapped_each; ++p) {
        now[p].stored = content(100 * g + r, p * page, 64);
        now[p].store = s.store(p, now[p].stored, 32 * p);
        now[p].written = content(7 * g + r, p, 20);
        now[p].write = s.pwrite(0, now[p].written, offset_of(g, p) + 300);
      }
      for (unsigned p = 0; p < mapped_each; ++p) now[p].unmap = s.unmap_write(p);
    }
    s.close(0);
  }
  std::vector<std::vector<outcome>> got;
  {
    const stopwatch limit;
    got = groups.run(scripts);
  }
  unsigned mapped = 0, refused = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& round : attempts[g]) {
      for (unsigned p = 0; p < mapped_each; ++p) {
        const attempt& a = round[p];
        const auto at = static_cast<std::size_t>(offset_of(g, p));
        const bool is_mapped = got[g][a.map].value == page;
        ASSERT_TRUE(is_mapped || got[g][a.map].value == -ENOMEM) << got[g][a.map].value;
        ASSERT_EQ(got[g][a.store].value, is_mapped ? 0 : -EINVAL);
        ASSERT_EQ(got[g][a.unmap].value, is_mapped ? 0 : -ENOMEM);
        const std::int64_t wrote = got[g][a.write].value;
        ASSERT_TRUE(wrote == 20 || (wrote == -ENOMEM && !is_mapped)) << wrote;
        if (is_mapped) std::copy(a.stored.begin(), a.stored.end(), wanted.begin() + static_cast<std::ptrdiff_t>(at + 32 * p));
        if (wrote > 0) std::copy(a.written.begin(), a.written.end(), wanted.begin() + static_cast<std::ptrdiff_t>(at + 300));
        ++(is_mapped ? mapped : refused);
      }
    }
    ASSERT_EQ(got[g].back().value, 0);
  }
  EXPECT_GE(mapped, nframes / 2) << "somebody must get on";
  EXPECT_GE(refused, 1u);
  EXPECT_EQ(dir.read("file"), wanted);
  expect_nothing_held(m);

  // Then all frames can be had again: each page takes two.
  players one(m.ref(), {});
  script all;
  all.open(0, "file", O_RDWR);
  for (unsigned p = 0; p < nframes / 2; ++p) all.map_write(0, p, p * page);
  const auto none = all.pread(0, 1, (nframes / 2) * page);
  for (unsigned p = 0; p < nframes / 2; ++p) all.unmap_write(p);
  const auto some = all.pread(0, 1, (nframes / 2) * page);
  all.close(0);
  const auto again = one.run(all);
  for (unsigned p = 0; p < nframes / 2; ++p) EXPECT_EQ(again[1 + p].value, page);
  EXPECT_EQ(again[none].value, -ENOMEM);
  EXPECT_EQ(again[some].value, 1);
  EXPECT_EQ(dir.read("file"), wanted);
  expect_nothing_held(m);
}

// All frames are pinned by readers: who writes elsewhere is told; what was written before can still be brought to the file.
TEST(limits, of_pinned_frames_keep_nothing_from_being_written_back) {
  constexpr unsigned nframes = pages_per_group;
  temp_dir dir;
  dir.add("file", 20 * page, 1);
  mount_options options = writing(nframes);
  options.dirty_nbytes = 4 * page;
  const mount m(dir.path(), options);
  players groups(m.ref(), {});
  script s;
  s.open(0, "file", O_RDWR);
  for (unsigned p = 0; p < nframes; ++p) s.map(0, p, p * page, 0);
  std::vector<std::size_t> good, bad;
  for (unsigned p = 0; p < nframes; ++p) good.push_back(s.pwrite(0, content(2, p * page + 5, 30), p * page + 5));
  bad.push_back(s.pwrite(0, content(2, 10 * page, 30), 10 * page));
  bad.push_back(s.pwrite(0, content(2, 10 * page, page), 10 * page));
  bad.push_back(s.append(0, content(2, 0, page)));
  bad.push_back(s.map_write(0, 0, 0));  // its twin
  const auto partly = s.pwrite(0, content(3, 7 * page, 2 * page), 7 * page);
  const auto sync = s.fsync(0);
  for (unsigned p = 0; p < nframes; ++p) s.unmap(p);
  const auto after = s.pwrite(0, content(4, 15 * page, 2 * page), 15 * page);
  const auto close = s.close(0);
  std::vector<outcome> got;
  {
    const stopwatch limit;
    got = groups.run(s);
  }
  auto wanted = content(1, 0, 20 * page);
  const auto put = [&](std::uint64_t seed, std::size_t at, std::size_t nbytes) {
    const auto bytes = content(seed, at, nbytes);
    std::copy(bytes.begin(), bytes.end(), wanted.begin() + static_cast<std::ptrdiff_t>(at));
  };
  for (unsigned p = 0; p < nframes; ++p) {
    EXPECT_EQ(got[good[p]].value, 30);
    put(2, p * page + 5, 30);
  }
  for (const std::size_t call : bad) EXPECT_TRUE(got[call].value == -ENOMEM || got[call].value == -EIO) << got[call].value;
  EXPECT_EQ(got[partly].value, page);
  put(3, 7 * page, page);
  EXPECT_EQ(got[sync].value, 0);
  EXPECT_EQ(got[after].value, 2 * page);
  put(4, 15 * page, 2 * page);
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(dir.read("file"), wanted);
  expect_nothing_held(m);
}

// Host memory that mapped files pin: never more than the budget, however many want it, and writers need none of it.
TEST(limits, of_pinned_host_memory_hold) {
  constexpr std::uint64_t file_nbytes = 16 * 4096, budget = 4 * file_nbytes;
  constexpr unsigned nfiles = 12, rounds = under_tsan ? 4 : 10;
  temp_dir dir;
  for (unsigned i = 0; i < nfiles; ++i) dir.add(numbered("f", i), file_nbytes, i);
  let_file_times_pass();
  const auto store =
      std::make_shared<store::mapped_store>(simt::this_platform(), dir.path(), budget, store::posix_options{.writable = true});
  mount_options options = writing();
  options.custom_store = store;
  mount m(dir.path(), options);
  players groups(m.ref(), {.grid = 3, .block = 32, .schedule = {.resident_blocks = 3}, .all = group_kind::tile8});
  ASSERT_EQ(groups.size(), nfiles);
  std::vector<script> scripts(nfiles);
  for (unsigned g = 0; g < nfiles; ++g) {
    for (unsigned r = 0; r < rounds; ++r) {
      scripts[g].open(0, numbered("f", (g + r) % nfiles));
      scripts[g].pread(0, page, 3 * page);
      scripts[g].close(0);
      scripts[g].open(0, numbered("new", g), O_RDWR | O_CREAT);
      scripts[g].append(0, content(g, r * page, page));
      scripts[g].close(0);
    }
  }
  for (int trial = 0; trial < 3; ++trial) {
    const stopwatch limit;
    unsigned good = 0;
    const auto got = groups.run(scripts);
    for (unsigned g = 0; g < nfiles; ++g) {
      for (unsigned r = 0; r < rounds; ++r) {
        const outcome* of = &got[g][std::size_t{r} * 6];
        ASSERT_TRUE(of[0].value >= 0 || of[0].value == -EOPNOTSUPP) << of[0].value;
        ASSERT_EQ(of[1].value, of[0].value >= 0 ? std::int64_t{page} : of[0].value);
        ASSERT_EQ(of[0].value >= 0 ? wrong_bytes(of[1], page, (g + r) % nfiles, 3 * page) : 0, 0u);
        good += of[0].value >= 0;
        ASSERT_GE(of[3].value, 0);
        ASSERT_EQ(of[5].value, 0);
      }
      std::vector<std::byte> wanted;
      for (int i = 0; i <= trial; ++i) {
        const auto part = content(g, 0, std::size_t{rounds} * page);
        wanted.insert(wanted.end(), part.begin(), part.end());
      }
      ASSERT_EQ(dir.read(numbered("new", g)), wanted);
    }
    EXPECT_GE(good, 4 * rounds) << "those that are mapped stay so";
    EXPECT_LE(store->usage().pinned_nbytes, budget);
    expect_nothing_held(m);
    EXPECT_EQ(store->usage().idle_nbytes, store->usage().pinned_nbytes);
    m.trim();
    EXPECT_EQ(store->usage().pinned_nbytes, 0u);
  }
}

// A file system of 1 MiB in memory, which only we see.
class small_disk {
 public:
  small_disk() {
    const own_ids ids;
    int to_child[2], to_parent[2];
    if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(to_parent, O_CLOEXEC) != 0) fail_errno("pipe2");
    child_ = ::fork();
    if (child_ < 0) fail_errno("fork");
    if (child_ == 0) {  // calls nothing that takes a lock
      ::close(to_child[1]);
      const int error = enter_name_spaces(ids) && ::mount("gpufs-test", at_.path().c_str(), "tmpfs", 0, "size=1m") == 0 ? 0 : errno;
      char asked;
      for (int answer = error; ::write(to_parent[1], &answer, sizeof answer) == sizeof answer;) {
        if (::read(to_child[0], &asked, 1) != 1) break;
        answer = ::mount(nullptr, at_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0 ? 0 : errno;
      }
      ::_exit(0);
    }
    ::close(to_child[0]);
    ::close(to_parent[1]);
    alive_ = to_child[1];
    answers_ = to_parent[0];
    error_ = answer();
  }
  ~small_disk() {
    ::close(alive_);
    ::close(answers_);
    ::waitpid(child_, nullptr, 0);
  }
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;

  int error() const { return error_; }  // why there is none, or 0
  // 0 or an errno: of EBUSY, a file is open for writing.
  int make_read_only() const { return ::write(alive_, "r", 1) == 1 ? answer() : errno; }
  std::string path() const { return "/proc/" + std::to_string(child_) + "/root" + at_.path(); }

 private:
  int answer() const {
    int error = 0;
    return ::read(answers_, &error, sizeof error) == sizeof error ? error : ECHILD;
  }

  temp_dir at_;
  pid_t child_ = -1;
  int alive_ = -1, answers_ = -1, error_ = 0;
};

// A file system that is made read-only under a mount that writes: files cannot be opened for writing, nor changed; they are read.
TEST(limits, of_a_file_system_that_is_read_only) {
  const small_disk disk;
  if (disk.error() != 0) GTEST_SKIP() << "a file system of our own needs name spaces: " << std::strerror(disk.error());
  const temp_dir dir(disk.path());
  dir.add("f", 3000, 1);
  const mount m(dir.path(), writing());
  players one(m.ref(), {});
  script before;
  before.open(0, "f", O_RDWR);
  const auto wrote = before.pwrite(0, content(2, 100, 50), 100), closed = before.close(0);
  const auto first = one.run(before);
  EXPECT_EQ(first[wrote].value, 50);
  EXPECT_EQ(first[closed].value, 0);
  // A worker may hold a file for a moment after its close was answered.
  int busy = EBUSY;
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (busy == EBUSY && std::chrono::steady_clock::now() < until) busy = disk.make_read_only();
  ASSERT_EQ(busy, 0);

  script s;
  const auto write = s.open(0, "f", O_RDWR), truncate = s.open(1, "f", O_WRONLY | O_TRUNC),
             make = s.open(2, "new", O_RDWR | O_CREAT);
  const auto read = s.open(3, "f", O_RDONLY), bytes = s.pread(3, 3000, 0);
  s.close(3);
  const auto got = one.run(s);
  for (const auto call : {write, truncate, make}) EXPECT_EQ(got[call].value, -EROFS);
  EXPECT_GE(got[read].value, 0);
  EXPECT_EQ(got[bytes].value, 3000);
  auto wanted = content(1, 0, 3000);
  const auto changed = content(2, 100, 50);
  std::copy(changed.begin(), changed.end(), wanted.begin() + 100);
  EXPECT_EQ(std::vector<std::byte>(got[bytes].bytes.begin(), got[bytes].bytes.begin() + 3000), wanted);
  EXPECT_EQ(dir.read("f"), wanted);
  expect_nothing_held(m);
}

TEST(limits, of_the_disk_are_told_once_and_lose_nothing_else) {
  constexpr std::size_t kib = 1024;
  constexpr std::size_t kept_nbytes = 256 * kib, old_nbytes = 64 * kib, big_nbytes = 512 * kib;
  const small_disk disk;
  if (disk.error() != 0) GTEST_SKIP() << "a file system of our own needs name spaces: " << std::strerror(disk.error());
  const temp_dir dir(disk.path());
  dir.add("big", old_nbytes, 1);
  mount_options options = writing();
  options.page_nbytes = 4096;
  options.cache_nbytes = 64 * 4096;
  mount m(dir.path(), options);
  players one(m.ref(), {}), groups(m.ref(), {.grid = 2, .block = 64, .schedule = {.resident_blocks = 2}, .all = group_kind::tile8});

  script keep;
  keep.open(0, "kept", O_RDWR | O_CREAT);
  keep.pwrite(0, content(2, 0, kept_nbytes), 0);
  const auto kept = keep.fsync(0);
  keep.open(1, "big", O_RDWR);
  EXPECT_EQ(one.run(keep)[kept].value, 0);
  dir.add("filler", 512 * kib, 3);  // leaves 192 KiB for the 448 KiB that are missing

  std::vector<script> writes(groups.size());
  const std::size_t part = big_nbytes / groups.size();
  const auto write_big = [&](std::uint64_t seed) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      writes[g] = script();
      writes[g].open(0, "big", O_RDWR);
      writes[g].pwrite(0, content(seed, g * part, part), static_cast<std::int64_t>(g * part));
    }
    const stopwatch limit;
    for (const auto& got : groups.run(writes)) EXPECT_EQ(got[1].value, part) << "told by fsync";
  };
  write_big(4);
  script ask;
  const auto told = ask.fsync(1), again = ask.fsync(1);
  ask.pwrite(0, content(5, 1000, 100'000), 1000);  // where there is a place for it
  const auto in_place = ask.fsync(0);
  const auto got = one.run(ask);
  EXPECT_EQ(got[told].value, -ENOSPC);
  EXPECT_EQ(got[again].value, 0) << "told once";
  EXPECT_EQ(got[in_place].value, 0) << "another file's";
  EXPECT_GT(m.counters().write_errors, 0u);
  EXPECT_EQ(m.counters().unwritten_pages, 0u);
  EXPECT_EQ(m.counters().pins, 0u);
  auto kept_wanted = content(2, 0, kept_nbytes);
  const auto changed = content(5, 1000, 100'000);
  std::copy(changed.begin(), changed.end(), kept_wanted.begin() + 1000);
  EXPECT_EQ(dir.read("kept"), kept_wanted) << "what was synced is there";
  EXPECT_EQ(dir.read("filler"), content(3, 0, 512 * kib));
  const auto big = dir.read("big"), before = content(1, 0, old_nbytes), after = content(4, 0, big_nbytes);
  ASSERT_LE(big.size(), big_nbytes);
  std::size_t written = 0;
  for (std::size_t i = 0; i < big.size(); ++i) {
    ASSERT_TRUE(big[i] == after[i] || big[i] == (i < old_nbytes ? before[i] : std::byte{0})) << "byte " << i;
    written += big[i] == after[i];
  }
  EXPECT_GE(written, 64 * kib) << "what there was room for";
  bool logged = false;
  for (const std::string& line : m.log())
    logged |= line.find("big") != std::string::npos && line.find("No space") != std::string::npos;
  EXPECT_TRUE(logged);

  std::filesystem::remove(dir / "filler");
  write_big(6);
  script end, last;
  end.fsync(1);
  end.close(0);
  end.close(1);
  for (const outcome& o : one.run(end)) EXPECT_EQ(o.value, 0) << "there is room again";
  last.close(0);
  last.close(0);  // each group has opened it twice
  for (const auto& closed : groups.run_all(last)) EXPECT_TRUE(closed[0].value == 0 && closed[1].value == 0);
  EXPECT_EQ(dir.read("big"), content(6, 0, big_nbytes));
  EXPECT_EQ(dir.read("kept"), kept_wanted);
  EXPECT_EQ(m.counters().host_opens, m.counters().host_closes);
}

// Files in memory that are written in place while their file system is full: what has its pages is written there, what needs new
// ones is told. Stores into a hole that somebody has made meanwhile are lost, which is told too; nobody is killed by them.
TEST(limits, of_a_full_file_system_in_memory_hold_for_stores_in_place) {
  constexpr std::size_t kib = 1024, nbytes = 256 * kib, page_nbytes = 4096;
  const small_disk disk;
  if (disk.error() != 0) GTEST_SKIP() << "a file system of our own needs name spaces: " << std::strerror(disk.error());
  const temp_dir dir(disk.path());
  for (const char* name : {"whole", "cut"}) dir.add(name, nbytes, 1);
  dir.add("sparse", 0, 0);
  dir.resize("sparse", nbytes);
  mount_options options = writing();
  options.page_nbytes = page_nbytes;
  options.cache_nbytes = 32 * page_nbytes;
  options.custom_store = mapping_store(dir.path());
  const mount m(dir.path(), options);
  players one(m.ref(), {});
  script open;
  open.open(0, "whole", O_RDWR);
  open.open(1, "cut", O_RDWR);
  open.open(2, "sparse", O_RDWR);
  for (const outcome& o : one.run(open)) ASSERT_GE(o.value, 0);
  unsigned nstored = 0;
  for (const file_report& file : m.open_files()) nstored += file.reason.starts_with("live: ");
  EXPECT_EQ(nstored, 2u) << "one with holes is not written in place";
  const auto fill = [&](const char* name) {
    const int fd = ::open((dir / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    const std::vector<std::byte> some(page_nbytes);
    while (::write(fd, some.data(), some.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
    ::close(fd);
  };
  fill("filler");

  script s;
  const auto in_place = s.pwrite(0, content(2, 0, nbytes), 0), kept = s.fsync(0);
  s.append(0, content(3, 0, 64 * kib));
  const auto longer = s.fsync(0);
  s.pwrite(2, content(4, 0, 64 * kib), 64 * kib);
  const auto into_hole = s.fsync(2);
  const auto got = one.run(s);
  EXPECT_EQ(got[in_place].value, static_cast<std::int64_t>(nbytes));
  EXPECT_EQ(got[kept].value, 0);
  EXPECT_EQ(got[longer].value, -ENOSPC);
  EXPECT_EQ(got[into_hole].value, -ENOSPC);
  auto whole = dir.read("whole");
  whole.resize(nbytes);
  EXPECT_EQ(whole, content(2, 0, nbytes));

  const int cut = ::open((dir / "cut").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::fallocate(cut, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, nbytes), 0);
  ::close(cut);
  fill("filler2");
  script t;
  t.pwrite(1, content(5, 0, nbytes), 0);
  const auto lost = t.fsync(1);
  for (unsigned f = 0; f < 3; ++f) t.close(f);
  EXPECT_LT(one.run(t)[lost].value, 0);
  EXPECT_EQ(m.counters().pins, 0u);
  EXPECT_EQ(m.counters().unwritten_pages, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
