// SPDX-License-Identifier: Apache-2.0
// A host that does not answer who writes, or too late: every wait ends, and nothing newer is undone.
#include "file/write_errors.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

class write_timeouts : public write_errors {
 protected:
  write_timeouts() : write_errors(milliseconds(under_tsan ? 1000 : 250)) {}
  // Opens a file as file 0, however long the host takes on a busy machine: what is to time out comes afterwards.
  static void open_in_time(players& groups, const char* path, int flags = O_RDWR) {
    script s;
    s.open(0, path, flags);
    ASSERT_TRUE(wait_until([&] { return groups.run(s)[0].value >= 0; }));
  }
  // How long something takes that must not hang.
  template <class Work>
  static seconds time_of(Work work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration_cast<seconds>(std::chrono::steady_clock::now() - begin);
  }
};

TEST_F(write_timeouts, end_fsync_and_close) {
  expect_leftovers("the host has not answered for a page");
  for (const unsigned npages : {1u, 60u}) {  // more than request slots, too
    for (const bool by_close : {false, true}) {
      dir_.add("file", 60 * page, 1);
      dir_.add("next", 60 * page, 2);
      options_.dirty_nbytes = 64 * page;
      start(128);
      players groups = one();
      open_in_time(groups, "file");
      wrong().write_gate.close();
      script hang;
      hang.pwrite(0, content(3, 0, npages * page), 0);
      const auto call = by_close ? hang.close(0) : hang.fsync(0, durability::page_cache);
      std::vector<outcome> got;
      EXPECT_LE(time_of([&] { got = groups.run(hang); }), seconds(30));
      EXPECT_EQ(got[call].value, -ETIMEDOUT) << npages;
      EXPECT_GE(mount_->counters().io_timeouts, 1u);
      const auto lines = mount_->log();
      EXPECT_TRUE(!lines.empty() && lines.back().find("no answer within io_timeout") != std::string::npos);
      const std::uint64_t late = mount_->counters().pins;
      EXPECT_GE(late, 1u) << "the host may yet write these pages";
      if (by_close) {
        EXPECT_EQ(mount_->counters().dirty_frames, 0u) << "what close could not even send it drops";
      }
      wrong().write_gate.open();
      EXPECT_TRUE(wait_until([&] { return wrong().write_gate.waiting() == 0; }));
      // Another file, that may get the slot.
      script later, rest;
      later.open(1, "next", O_RDWR);
      later.pwrite(1, content(4, 100, 50), 100);
      const auto sync = later.fsync(1);
      const auto close = later.close(1);
      EXPECT_TRUE(wait_until([&] {
        got = groups.run(later);
        return got[0].value >= 0 && got[sync].value == 0 && got[close].value == 0;
      })) << got[0].value
          << " " << got[sync].value << " " << got[close].value;
      rest.close(0);
      if (!by_close) groups.run(rest);
      auto wanted = content(2, 0, 60 * page);
      put(wanted, content(4, 100, 50), 100);
      EXPECT_EQ(dir_.read("next"), wanted) << npages << " pages of another file";
      EXPECT_LE(mount_->counters().pins, late) << "until somebody comes by the answer";
      mount_.reset();
      const auto bytes = dir_.read("file");
      ASSERT_EQ(bytes.size(), 60 * page);
      const auto before = content(1, 0, 60 * page), after = content(3, 0, npages * page);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        ASSERT_TRUE(bytes[i] == before[i] || (i < after.size() && bytes[i] == after[i])) << i;
      }
    }
  }
}

// A host that answers late: what was written anew meanwhile comes after what it was given, and then nothing is held any more.
TEST_F(write_timeouts, end_when_the_host_answers_after_all) {
  for (const unsigned npages : {1u, 12u}) {
    dir_.add("file", 60 * page, 1);
    options_.dirty_nbytes = 64 * page;
    const mount& m = start(128);
    players groups = one();
    open_in_time(groups, "file");
    wrong().write_gate.close();
    script hang, anew, sync, more;
    hang.pwrite(0, content(3, 0, npages * page), 0);
    const auto call = hang.fsync(0, durability::page_cache);
    EXPECT_EQ(groups.run(hang)[call].value, -ETIMEDOUT);
    const auto write = anew.pwrite(0, content(5, 0, npages * page), 0);
    const auto still = anew.fsync(0, durability::page_cache);
    const auto got = groups.run(anew);
    EXPECT_EQ(got[write].value, npages * page);
    EXPECT_EQ(got[still].value, -ETIMEDOUT) << "nothing is written before the host has answered";
    EXPECT_GE(m.counters().pins, 1u);
    wrong().write_gate.open();
    sync.fsync(0, durability::page_cache);
    EXPECT_TRUE(wait_until([&] { return groups.run(sync)[0].value == 0; }));
    auto wanted = content(1, 0, 60 * page);
    put(wanted, content(5, 0, npages * page), 0);
    EXPECT_EQ(dir_.read("file"), wanted) << npages;
    expect_idle();
    more.pwrite(0, content(6, 0, 60 * page), 0);
    const auto close = more.close(0);
    EXPECT_EQ(groups.run(more)[close].value, 0);
    EXPECT_EQ(dir_.read("file"), content(6, 0, 60 * page));
    EXPECT_TRUE(m.open_files().empty());
    EXPECT_EQ(m.counters().host_opens, m.counters().host_closes);
    expect_idle();
  }
}

// What was written anew is not brought to the file by the host either before it has done what it was given late.
TEST_F(write_timeouts, come_before_what_the_mount_writes) {
  expect_leftovers("the host has not answered for a page");
  for (const bool at_end : {false, true}) {
    dir_.add("file", 4 * page, 1);
    mount& m = start();
    players groups = one();
    open_in_time(groups, "file");
    wrong().write_gate.close();
    script hang, sync;
    hang.pwrite(0, content(3, 0, page), 0);
    const auto call = hang.fsync(0, durability::page_cache);
    hang.pwrite(0, content(5, 0, page), 0);
    EXPECT_EQ(groups.run(hang)[call].value, -ETIMEDOUT);
    if (at_end) {
      std::thread opener([&] {
        std::this_thread::sleep_for(milliseconds(500));  // while it ends
        wrong().write_gate.open();
      });
      mount_.reset();
      opener.join();
    } else {
      EXPECT_EQ(m.sync(), 1u);
      EXPECT_EQ(wrong().writes, 1u) << "the host still has that one";
      EXPECT_EQ(m.counters().unwritten_pages, 2u);
      wrong().write_gate.open();
      sync.fsync(0, durability::page_cache);
      EXPECT_TRUE(wait_until([&] { return groups.run(sync)[0].value == 0; }));
    }
    auto wanted = content(1, 0, 4 * page);
    put(wanted, content(5, 0, page), 0);
    EXPECT_EQ(dir_.read("file"), wanted);
    if (!at_end) {
      sync.close(0);
      groups.run(sync);
      expect_idle();
    }
  }
}

// Writes that the host owes when the mount ends: those it has begun, and those that wait behind them.
TEST_F(write_timeouts, are_done_before_the_mount_ends) {
  expect_leftovers("the host has not answered for a page");
  const std::uint64_t apart = 3 * ((1u << neighbours_shift) / page), npages = 2 * apart + 2;  // in lists of their own
  dir_.add("file", npages * page, 1);
  options_.nworkers = 2;
  start();
  players groups = one();
  open_in_time(groups, "file");
  wrong().write_gate.close();
  script hang;
  for (const std::uint64_t at : {std::uint64_t{0}, apart, 2 * apart})
    hang.pwrite(0, content(3, at, page), static_cast<std::int64_t>(at * page));
  const auto call = hang.fsync(0, durability::page_cache);
  EXPECT_EQ(groups.run(hang)[call].value, -ETIMEDOUT);
  EXPECT_EQ(wrong().writes, 1u) << "the first list's page; the others are not sent";
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(100));
    wrong().write_gate.open();
  });
  mount_.reset();
  opener.join();
  auto wanted = content(1, 0, npages * page);
  for (const std::uint64_t at : {std::uint64_t{0}, apart, 2 * apart}) put(wanted, content(3, at, page), at * page);
  EXPECT_EQ(dir_.read("file"), wanted);
}

// While the host writes nothing, writers stop at the limit, and readers of another file go on.
TEST_F(write_timeouts, the_dirty_limit_holds) {
  dir_.add("other", 200 * page, 2);
  let_file_times_pass();
  options_.io_timeout = seconds(under_tsan ? 10 : 3);
  options_.dirty_nbytes = 16 * page;
  options_.frame_timeout = milliseconds(500);
  start(256);
  wrong().write_gate.close();
  constexpr std::uint32_t nwriters = 7;
  players groups(mount_->ref(), {.grid = 1, .block = 32 * (nwriters + 1), .all = group_kind::warp});
  std::vector<script> scripts(groups.size());
  for (std::uint32_t g = 0; g < nwriters; ++g) {
    scripts[g].open(0, "file", O_RDWR | O_CREAT);
    scripts[g].pwrite(0, content(1, g * 60 * page, 60 * page), g * 60 * page);
    scripts[g].close(0);
  }
  script& reads = scripts[nwriters];
  reads.open(0, "other");
  for (int i = 0; i < 20; ++i) reads.pread(0, 10 * page, i * 10 * page);
  reads.close(0);
  std::vector<std::vector<outcome>> got;
  std::atomic<bool> ended{false};
  std::thread kernel([&] {
    got = groups.run(scripts);
    ended = true;
  });
  // All the while; on a GPU counters are had when the kernel has ended.
  std::uint64_t most = 0;
  std::thread watcher([&] {
    while (!on_cuda && !ended) {
      most = std::max(most, mount_->counters().unwritten_pages);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  EXPECT_TRUE(wait_until([&] { return wrong().write_gate.waiting() > 0 && wrong().reads >= 199; })) << wrong().reads;
  if (!on_cuda) {
    EXPECT_GE(mount_->counters().unwritten_pages, 16u) << "who writes goes up to the limit";
  }
  wrong().write_gate.open();
  kernel.join();
  watcher.join();
  EXPECT_LE(most, 16u + (8 + 1) * nwriters) << "the limit, and what each writer has under way";
  for (std::size_t i = 1; i <= 20; ++i) EXPECT_EQ(wrong_bytes(got[nwriters][i], 10 * page, 2, (i - 1) * 10 * page), 0u);
  for (std::uint32_t g = 0; g < nwriters; ++g) {
    EXPECT_EQ(got[g][1].value, 60 * page);
    EXPECT_TRUE(got[g][2].value == 0 || got[g][2].value == -ETIMEDOUT);
  }
  expect_idle();
}

TEST_F(write_timeouts, end_a_write_beyond_the_dirty_limit) {
  expect_leftovers("the host has not answered for pages");
  const std::uint64_t npages = under_tsan ? 10 : 40;
  options_.io_timeout = milliseconds(under_tsan ? 1000 : 100);  // it is waited for, page by page
  options_.dirty_nbytes = 4 * page;
  options_.frame_timeout = milliseconds(200);
  start(96);
  wrong().write_gate.close();
  players groups = one();
  script s, later;
  s.open(0, "file", O_RDWR | O_CREAT);
  s.pwrite(0, content(1, 0, npages * page), 0);
  const auto close = s.close(0);
  std::vector<outcome> got;
  EXPECT_LE(time_of([&] { got = groups.run(s); }), seconds(60));
  EXPECT_LT(got[close].value, 0);
  wrong().write_gate.open();
  EXPECT_TRUE(wait_until([&] { return wrong().write_gate.waiting() == 0; }));
  later.open(1, "new", O_RDWR | O_CREAT);
  later.pwrite(1, content(2, 0, npages * page), 0);
  const auto closed = later.close(1);
  EXPECT_TRUE(wait_until([&] { return groups.run(later)[closed].value == 0; }));
  EXPECT_EQ(dir_.read("new"), content(2, 0, npages * page));
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
