// SPDX-License-Identifier: Apache-2.0
// What a store does wrong when it is written to: told once and to the right file, and nothing else is lost.
#include <sys/syscall.h>
#include <sys/uio.h>

#include <atomic>

#include "file/write_errors.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

TEST_F(write_errors, are_told_once_and_to_their_file) {
  for (const int error : {ENOSPC, EIO, EDQUOT, EROFS}) {
    for (const bool by_close : {false, true}) {
      dir_.add("bad", 10 * page, 1);
      dir_.add("good", 10 * page, 2);
      const mount& m = start();
      wrong().fail_writes_at("bad", 3 * page, 5 * page, error);
      players groups = one();
      script s;
      s.open(0, "bad", O_RDWR);
      s.open(1, "good", O_RDWR);
      s.pwrite(0, content(3, 0, 10 * page), 0);
      s.pwrite(1, content(4, 0, 10 * page), 0);
      const auto good = s.fsync(1);
      const auto first = by_close ? s.close(0) : s.fsync(0, durability::data);
      const auto second = by_close ? s.open(0, "bad", O_RDWR) : s.fsync(0);
      const auto cached = s.pread(0, page, 3 * page);
      const auto third = s.close(0);
      const auto other = s.close(1);
      const auto got = groups.run(s);
      EXPECT_EQ(got[good].value, 0);
      EXPECT_EQ(got[first].value, -error);
      EXPECT_TRUE(by_close ? got[second].value >= 0 : got[second].value == 0) << "told once";
      EXPECT_EQ(wrong_bytes(got[cached], page, by_close ? 1 : 3, 3 * page), 0u) << "what was written while it is cached";
      EXPECT_EQ(got[third].value, 0) << "told once, and not tried again";
      EXPECT_EQ(got[other].value, 0);
      auto wanted = content(3, 0, 10 * page);
      put(wanted, content(1, 3 * page, 2 * page), 3 * page);
      EXPECT_EQ(dir_.read("bad"), wanted) << "all but what failed";
      EXPECT_EQ(dir_.read("good"), content(4, 0, 10 * page));
      EXPECT_EQ(m.counters().write_errors, 2u);
      EXPECT_EQ(m.counters().write_backs, 18u);
      EXPECT_TRUE(log_has("bad", std::generic_category().message(error))) << m.log().size();
      expect_idle();
      wrong().heal();
    }
  }
}

// How far fsync and msync take what was written is the caller's choice, and close goes no further than the host's page cache.
TEST_F(write_errors, syncs_go_as_far_as_was_asked) {
  const mount& m = start();
  struct choice {
    durability how;
    std::uint64_t syncs, data_syncs;
  };
  std::uint32_t seed = 1;
  for (const auto& [how, syncs, data_syncs] :
       {choice{durability::page_cache, 0, 0}, choice{durability::data, 1, 1}, choice{durability::stable, 1, 0}}) {
    for (const bool is_mapped : {false, true}) {
      dir_.add("file", page, 100);
      let_file_times_pass();
      wrong().syncs = wrong().data_syncs = 0;
      players groups = one();
      script s;
      s.open(0, "file", O_RDWR);
      if (is_mapped) {
        s.map_write(0, 0, 0);
        s.store(0, content(++seed, 0, page), 0);
      } else {
        s.pwrite(0, content(++seed, 0, page), 0);
      }
      const auto sync = is_mapped ? s.msync(0, how) : s.fsync(0, how);
      auto got = groups.run(s);
      EXPECT_EQ(got[sync].value, 0);
      EXPECT_EQ(wrong().syncs, syncs) << "mapped " << is_mapped;
      EXPECT_EQ(wrong().data_syncs, data_syncs) << "mapped " << is_mapped;
      EXPECT_EQ(dir_.read("file"), content(seed, 0, page));
      script last;
      if (is_mapped) last.unmap_write(0);
      const auto close = last.close(0);
      got = groups.run(last);
      EXPECT_EQ(got[close].value, 0);
      EXPECT_EQ(wrong().syncs, syncs) << "close syncs nothing";
    }
  }
  EXPECT_EQ(m.counters().write_errors, 0u);
  expect_idle();
}

// Many groups share the file: one of them is told.
TEST_F(write_errors, are_told_to_one_of_many) {
  dir_.add("bad", 64 * page, 1);
  start();
  wrong().fail_writes_at("bad", 7 * page, 8 * page, ENOSPC);
  const formation how{.grid = 2, .block = 64, .all = group_kind::tile8};
  players groups(mount_->ref(), how);
  std::vector<script> scripts(groups.size());
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    scripts[g].open(0, "bad", O_RDWR);
    scripts[g].pwrite(0, content(3, g * 4 * page, 4 * page), g * 4 * page);
    scripts[g].fsync(0, durability::page_cache);
    scripts[g].close(0);
  }
  int told = 0;
  for (const auto& got : groups.run(scripts)) {
    for (const std::size_t i : {2, 3}) {
      EXPECT_TRUE(got[i].value == 0 || got[i].value == -ENOSPC) << got[i].value;
      told += got[i].value == -ENOSPC;
    }
  }
  EXPECT_EQ(told, 1);
  auto wanted = content(3, 0, 64 * page);
  put(wanted, content(1, 7 * page, page), 7 * page);
  EXPECT_EQ(dir_.read("bad"), wanted);
  EXPECT_EQ(mount_->counters().write_errors, 1u);
  expect_idle();
}

// It cannot cut the file, so it closes what it has opened; that is nobody's close.
TEST_F(write_errors, are_not_told_to_an_open_that_fails) {
  dir_.add("bad", 40 * page, 1);
  options_.dirty_nbytes = 4 * page;
  start();
  wrong().fail_writes_at("bad", 0, 40 * page, ENOSPC);
  wrong().truncate_error = EFBIG;
  players groups = one();
  script s;
  s.open(0, "bad", O_RDWR);
  s.pwrite(0, content(3, 0, 20 * page), 0);  // beyond the limit
  const auto cuts = s.open(1, "bad", O_RDWR | O_TRUNC);
  const auto first = s.fsync(0, durability::page_cache);
  const auto second = s.fsync(0, durability::page_cache);
  const auto close = s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[cuts].value, -EFBIG);
  EXPECT_EQ(got[first].value, -ENOSPC);
  EXPECT_EQ(got[second].value, 0) << "told once";
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(mount_->counters().host_closes, 1u);
  expect_idle();
}

TEST_F(write_errors, of_a_truncation_end_the_open_that_wants_it) {
  dir_.add("bad", 4 * page, 1);
  start();
  wrong().truncate_error = EFBIG;
  players groups = one();
  script s;
  const auto cuts = s.open(0, "bad", O_RDWR | O_TRUNC);
  const auto opens = s.open(1, "bad", O_RDWR), reads = s.pread(1, 4 * page, 0), close = s.close(1);
  const auto got = groups.run(s);
  EXPECT_EQ(got[cuts].value, -EFBIG);
  EXPECT_GE(got[opens].value, 0);
  EXPECT_EQ(got[reads].value, 4 * page);
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(mount_->counters().open_errors, 1u);
  EXPECT_EQ(mount_->counters().host_opens, mount_->counters().host_closes);
  expect_idle();
}

TEST_F(write_errors, are_told_by_the_mount_that_ends) {
  expect_leftovers("the kernel closes nothing");
  const auto end = [&](std::uint64_t limit, bool syncs) {
    dir_.add("bad", 10 * page, 1);
    options_.dirty_nbytes = limit;
    mount& m = start();
    wrong().fail_writes_at("bad", 0, 10 * page, ENOSPC);
    players groups = one();
    script s;
    s.open(0, "bad", O_RDWR);
    s.pwrite(0, content(3, 0, 10 * page), 0);
    groups.run(s);
    if (syncs) {
      EXPECT_EQ(m.sync(), 10u);
    }
    testing::internal::CaptureStderr();
    mount_.reset();
    return testing::internal::GetCapturedStderr();
  };
  for (const std::uint64_t limit : {20 * page, 2 * page}) {  // 2: a kernel has met the error, and kept it for the next fsync
    const std::string said = end(limit, false);
    EXPECT_NE(said.find("lost"), std::string::npos) << said;
    EXPECT_NE(said.find("'bad': No space left"), std::string::npos) << said;
  }
  EXPECT_EQ(end(20 * page, true), "") << "sync has told";
}

// The mount writes neighbours by one call: what of them the host can write is in the file, and the others are counted.
TEST_F(write_errors, of_one_page_lose_none_beside_it) {
  dir_.add("file", 10 * page, 1);
  options_.dirty_nbytes = 20 * page;
  mount& m = start();
  wrong().fail_writes_at("file", 4 * page, 5 * page, ENOSPC);
  players groups = one();
  script s, rest;
  s.open(0, "file", O_RDWR);
  s.pwrite(0, content(3, 0, 10 * page), 0);
  groups.run(s);
  EXPECT_EQ(m.sync(), 1u);
  auto wanted = content(3, 0, 10 * page);
  put(wanted, content(1, 4 * page, page), 4 * page);
  EXPECT_EQ(dir_.read("file"), wanted);
  rest.close(0);
  groups.run(rest);
  expect_idle();
}

TEST_F(write_errors, of_sync_and_truncation_go_to_their_caller) {
  dir_.add("file", 4 * page, 1);
  start();
  players groups = one();
  wrong().sync_error = EIO;
  wrong().truncate_error = EFBIG;
  script s;
  s.open(0, "file", O_RDWR);
  s.pwrite(0, content(2, 0, 100), 0);
  const auto sync = s.fsync(0);
  const auto cache_only = s.fsync(0, durability::page_cache);
  const auto grow = s.ftruncate(0, 5 * page);
  const auto status = s.fstat(0);
  const auto cut = s.ftruncate(0, 3 * page);
  const auto close = s.close(0);
  const auto got = groups.run(s);
  EXPECT_EQ(got[sync].value, -EIO);
  EXPECT_EQ(got[cache_only].value, 0);
  EXPECT_EQ(got[grow].value, -EFBIG);
  EXPECT_EQ(got[status].value, 4 * page) << "it has not grown";
  EXPECT_EQ(got[cut].value, -EFBIG);
  EXPECT_EQ(got[close].value, 0);
  auto wanted = content(1, 0, 4 * page);
  put(wanted, content(2, 0, 100), 0);
  EXPECT_EQ(dir_.read("file"), wanted);
  expect_idle();
}

TEST_F(write_errors, of_a_fill_leave_no_trace) {
  dir_.add("file", 4 * page, 1);
  start();
  players groups = one();
  wrong().fail_at(page, 2 * page);
  script s, again;
  s.open(0, "file", O_RDWR);
  const auto none = s.pwrite(0, content(2, page + 10, 20), page + 10);
  const auto some = s.pwrite(0, content(2, 100, page), 100);
  const auto whole = s.pwrite(0, content(2, 2 * page, page), 2 * page);
  const auto sync = s.fsync(0);
  auto got = groups.run(s);
  EXPECT_EQ(got[none].value, -EIO);
  EXPECT_EQ(got[some].value, page - 100) << "up to the page that failed";
  EXPECT_EQ(got[whole].value, page);
  EXPECT_EQ(got[sync].value, 0) << "no write-back failed";
  auto wanted = content(1, 0, 4 * page);
  put(wanted, content(2, 100, page - 100), 100);
  put(wanted, content(2, 2 * page, page), 2 * page);
  EXPECT_EQ(dir_.read("file"), wanted);
  wrong().heal();
  const auto later = again.pwrite(0, content(2, page + 10, 20), page + 10);
  const auto close = again.close(0);
  got = groups.run(again);
  EXPECT_EQ(got[later].value, 20);
  EXPECT_EQ(got[close].value, 0);
  put(wanted, content(2, page + 10, 20), page + 10);
  EXPECT_EQ(dir_.read("file"), wanted);
  EXPECT_EQ(mount_->counters().write_errors, 0u);
  expect_idle();
}

// Writes that take their time and overtake each other, of pages that are written again and again.
TEST_F(write_errors, are_none_when_writes_overtake_each_other) {
  wrong().write_delay_ns = 2'000'000;
  constexpr unsigned rounds = 20;
  for (std::uint64_t seed = 1; seed <= schedules(30, 2); ++seed) {
    start(4);
    players groups(mount_->ref(), {.block = 64, .schedule = {.seed = seed}, .all = group_kind::tile8});
    std::vector<script> scripts(groups.size());
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      scripts[g].open(0, numbered("file", seed), O_RDWR | O_CREAT);
      for (unsigned i = 1; i <= rounds; ++i) scripts[g].pwrite(0, content(i, g * 64, 64), g * 64);
      scripts[g].close(0);
    }
    for (const auto& got : groups.run(scripts)) EXPECT_EQ(got.back().value, 0);
    ASSERT_EQ(dir_.read(numbered("file", seed)), content(rounds, 0, groups.size() * 64)) << "seed " << seed;
    expect_idle();
  }
}

// The file is removed, or another takes its name, while it is open: it goes on being written, and the other is left alone.
TEST_F(write_errors, are_none_when_the_name_goes) {
  for (const bool replaced : {false, true}) {
    dir_.add("file", 4 * page, 1);
    dir_.add("other", 300, 2);
    start();
    players groups = one();
    script open, write;
    open.open(0, "file", O_RDWR);
    open.pwrite(0, content(3, 0, page), 0);
    EXPECT_EQ(groups.run(open)[1].value, page);
    const int fd = ::open((dir_ / "file").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    replaced ? std::filesystem::rename(dir_ / "other", dir_ / "file") : static_cast<void>(std::filesystem::remove(dir_ / "file"));
    write.pwrite(0, content(3, page, 10 * page), page);
    const auto sync = write.fsync(0);
    const auto close = write.close(0);
    const auto got = groups.run(write);
    EXPECT_EQ(got[sync].value, 0);
    EXPECT_EQ(got[close].value, 0);
    std::vector<std::byte> old(12 * page);
    EXPECT_EQ(::pread(fd, old.data(), old.size(), 0), 11 * page);
    ::close(fd);
    old.resize(11 * page);
    EXPECT_EQ(old, content(3, 0, 11 * page));
    if (replaced) {
      EXPECT_EQ(dir_.read("file"), content(2, 0, 300));
    }
    EXPECT_EQ(std::filesystem::exists(dir_ / "file"), replaced);
    expect_idle();
  }
}

// The kernel's own short writes and interruptions, of a store that has a descriptor.
std::atomic<std::uint32_t> trips{0};
std::atomic<bool> trip{false};

TEST_F(write_errors, are_none_when_writes_are_short_or_interrupted) {
  options_.writable = true;
  options_.page_nbytes = page;
  options_.cache_nbytes = 16 * page;
  options_.store = store_kind::posix;
  mount_ = std::make_unique<mount>(dir_.path(), options_);
  trip = true;
  players groups = one();
  script s;
  s.open(0, "file", O_RDWR | O_CREAT);
  s.pwrite(0, content(1, 0, 100 * page + 5), 0);
  s.pwrite(0, content(2, 700, 33), 700);
  const auto close = s.close(0);
  const auto got = groups.run(s);
  trip = false;
  EXPECT_EQ(got[close].value, 0);
  auto wanted = content(1, 0, 100 * page + 5);
  put(wanted, content(2, 700, 33), 700);
  EXPECT_EQ(dir_.read("file"), wanted);
  EXPECT_GT(trips, 0u);
  EXPECT_EQ(mount_->counters().write_errors, 0u);
  expect_idle();
}

}  // namespace

// One call of two is short, one of seven interrupted.
std::ptrdiff_t short_pwritev(int fd, const iovec* parts, int count, off_t offset) {
  if (trip) {
    const std::uint32_t n = ++trips;
    if (n % 7 == 3) {
      errno = EINTR;
      return -1;
    }
    if (n % 2 == 0) {
      iovec part = parts[0];
      part.iov_len = part.iov_len / 2 + 1;
      return ::syscall(SYS_pwritev, fd, &part, 1, offset, 0);
    }
  }
  return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test

// What the store calls, instead of libc's.
extern "C" ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return gpufs::test::short_pwritev(fd, parts, count, offset);
}
