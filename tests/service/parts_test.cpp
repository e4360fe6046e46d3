// SPDX-License-Identifier: Apache-2.0
// The service's parts by themselves: cache ids, the open-file table, the log.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "../../src/service/cache_ids.hpp"
#include "../../src/service/error_log.hpp"
#include "../../src/service/file_size_signal.hpp"
#include "../../src/service/open_files.hpp"
#include "../../src/service/parking.hpp"
#include "file/harness.hpp"

namespace gpufs::test {
namespace {

using service::cache_ids;
using service::open_files;

store::file_info version(std::uint64_t inode, std::uint64_t mtime, bool settled = true) {
  store::file_info info;
  info.device = 1;
  info.inode = inode;
  info.nbytes = 10;
  info.mtime_ns = info.ctime_ns = mtime;
  info.settled = settled;
  return info;
}

TEST(cache_ids, one_for_each_version) {
  cache_ids ids;
  const std::uint32_t first = ids.id_of(version(1, 100));
  EXPECT_EQ(first, 1u);
  EXPECT_EQ(ids.id_of(version(1, 100)), first);
  const std::uint32_t second = ids.id_of(version(2, 100));
  EXPECT_NE(second, first);
  EXPECT_EQ(ids.id_of(version(1, 100)), first);
  const std::uint32_t changed = ids.id_of(version(1, 200));
  EXPECT_NE(changed, first);
  EXPECT_NE(ids.id_of(version(1, 100)), first) << "back to an older version: who knows what happened in between";
  auto other = version(2, 100);
  other.nbytes = 11;
  const std::uint32_t grown = ids.id_of(other);
  EXPECT_NE(grown, second);
  other.ctime_ns = 101;
  const std::uint32_t touched = ids.id_of(other);
  EXPECT_NE(touched, grown) << "a ctime alone makes a version: mtime can be put back";
  EXPECT_EQ(ids.id_of(other), touched);
  other.begin = 128;
  const std::uint32_t part = ids.id_of(other);
  EXPECT_NE(part, touched) << "pages that begin elsewhere are others";
  other.begin = 0;
  EXPECT_EQ(ids.id_of(other), touched);
  other.begin = 128;
  EXPECT_EQ(ids.id_of(other), part);
  other.device = 2;
  EXPECT_NE(ids.id_of(other), part);
}

TEST(cache_ids, none_is_shared_with_an_unsettled_open) {
  cache_ids ids;
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(seen.insert(ids.id_of(version(1, 100, false))).second);
  const std::uint32_t settled = ids.id_of(version(1, 100));
  EXPECT_TRUE(seen.insert(settled).second) << "the unsettled open's pages may be of an earlier version";
  EXPECT_EQ(ids.id_of(version(1, 100)), settled);
}

TEST(cache_ids, forgets_the_least_recently_used) {
  cache_ids ids(1, 3);
  const std::uint32_t a = ids.id_of(version(1, 1)), b = ids.id_of(version(2, 1)), c = ids.id_of(version(3, 1));
  EXPECT_EQ(ids.id_of(version(1, 1)), a);
  ids.id_of(version(4, 1));  // forgets 2
  EXPECT_EQ(ids.id_of(version(1, 1)), a);
  EXPECT_EQ(ids.id_of(version(3, 1)), c);
  EXPECT_NE(ids.id_of(version(2, 1)), b);
}

TEST(cache_ids, run_out) {
  cache_ids ids(cache_ids::last_id - 1);
  EXPECT_EQ(ids.id_of(version(1, 1)), cache_ids::last_id - 1);
  EXPECT_EQ(ids.id_of(version(2, 1)), cache_ids::last_id);
  EXPECT_EQ(ids.id_of(version(3, 1)), 0u);
  EXPECT_EQ(ids.id_of(version(1, 2)), 0u);
  EXPECT_EQ(ids.id_of(version(1, 1)), cache_ids::last_id - 1);
}

// Large enough to be kept in parts.
TEST(cache_ids, threads_that_open_the_same_files_agree) {
  cache_ids ids;
  constexpr std::uint64_t nfiles = 500, nthreads = 4;
  std::array<std::array<std::uint32_t, nfiles>, nthreads> given{};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < nthreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < nfiles; ++i) given[t][(i + t * 100) % nfiles] = ids.id_of(version((i + t * 100) % nfiles, 1));
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::uint64_t t = 1; t < nthreads; ++t) EXPECT_EQ(given[t], given[0]);
  EXPECT_EQ(std::set(given[0].begin(), given[0].end()).size(), nfiles);
}

class counted_file final : public store::open_file {
 public:
  counted_file(std::atomic<int>& alive, source_kind kind) : alive_(alive) {
    info_.kind = kind;
    ++alive_;
  }
  // An open of the file with this identity, for reading or writing.
  counted_file(std::atomic<int>& alive, std::uint64_t inode, bool live, std::int64_t begin = 0)
      : counted_file(alive, source_kind::staged) {
    info_.device = 3;
    info_.begin = begin;
    info_.inode = inode;
    info_.live = live;
  }
  ~counted_file() override { --alive_; }
  const store::file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte>, std::int64_t) override { return 0; }

 private:
  std::atomic<int>& alive_;
  store::file_info info_;
};

std::uint32_t insert(open_files& table, std::atomic<int>& alive, source_kind kind = source_kind::staged) {
  return table.insert(std::make_unique<counted_file>(alive, kind), {.path = "p", .device_number = 7}).handle;
}

TEST(open_files, handles_are_never_reused_soon) {
  std::atomic<int> alive{0};
  for (const std::uint32_t max : {1u, 2u, 3u, 1000u, 5000u, 1u << 20}) {
    open_files table(max);
    std::set<std::uint32_t> seen;
    for (int i = 0; i < 3000; ++i) {
      const std::uint32_t handle = insert(table, alive);
      ASSERT_NE(handle, 0u);
      ASSERT_TRUE(seen.insert(handle).second) << max << " " << i;
      ASSERT_TRUE(table.acquire(handle));
      ASSERT_EQ(table.close(handle), 0);
      ASSERT_FALSE(table.acquire(handle));
      ASSERT_EQ(table.close(handle), -EBADF);
    }
  }
  EXPECT_EQ(alive, 0);
}

TEST(open_files, threads_find_every_entry) {
  std::atomic<int> alive{0};
  for (const std::uint32_t max : {4u, 50u, 3000u}) {
    open_files table(max);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<std::uint32_t>> handles(4);
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < handles.size(); ++t) {
        threads.emplace_back([&, t] {
          while (const std::uint32_t handle = insert(table, alive)) handles[t].push_back(handle);
        });
      }
      for (std::thread& t : threads) t.join();
      EXPECT_TRUE(table.full());
      EXPECT_EQ(table.size(), max);
      std::set<std::uint32_t> all;
      for (const auto& mine : handles) all.insert(mine.begin(), mine.end());
      EXPECT_EQ(all.size(), max);
      for (const std::uint32_t handle : all) ASSERT_EQ(table.close(handle), 0);
    }
  }
  EXPECT_EQ(alive, 0);
}

TEST(open_files, a_reference_keeps_the_file_open) {
  std::atomic<int> alive{0};
  open_files table(10);
  const std::uint32_t handle = insert(table, alive);
  {
    const auto held = table.acquire(handle);
    EXPECT_EQ(table.close(handle), 0);
    EXPECT_EQ(alive, 1);
    EXPECT_FALSE(table.acquire(handle));
    EXPECT_EQ(held->path, "p");
  }
  EXPECT_EQ(alive, 0);
}

TEST(open_files, a_reference_that_is_not_the_last_can_be_given_back_without_closing) {
  std::atomic<int> alive{0};
  open_files table(10);
  const std::uint32_t handle = insert(table, alive);
  open_files::ref first = table.acquire(handle), second = table.acquire(handle), none;
  EXPECT_EQ(table.peek(handle), first.get());
  EXPECT_TRUE(none.reset_unless_last());
  EXPECT_TRUE(first.reset_unless_last());
  EXPECT_FALSE(first);
  EXPECT_EQ(table.close(handle), 0);
  EXPECT_EQ(table.peek(handle), nullptr);
  EXPECT_FALSE(second.reset_unless_last()) << "it would close the file";
  EXPECT_EQ(alive, 1);
  second.reset();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(table.peek(0), nullptr);
}

TEST(open_files, one_open_for_writing_of_a_file) {
  std::atomic<int> alive{0};
  open_files table(100);
  const auto enter = [&](std::uint64_t inode, bool live, std::uint32_t number, bool once = false, std::uint32_t not_handle = 0) {
    return table.insert(std::make_unique<counted_file>(alive, inode, live),
                        {.path = "p", .device_number = number, .once = once, .not_handle = not_handle});
  };
  const auto before = enter(5, false, 1), other = enter(6, true, 2), writer = enter(5, true, 3);
  EXPECT_FALSE(before.joined || other.joined || writer.joined);
  EXPECT_EQ(table.nwritten(), 2u);
  for (const bool live : {true, false}) {
    const auto again = enter(5, live, 4);
    EXPECT_EQ(again.joined, 3u);
    EXPECT_EQ(again.handle, writer.handle);
  }
  const auto part = table.insert(std::make_unique<counted_file>(alive, 5, false, 128), {.path = "p", .device_number = 4});
  EXPECT_EQ(part.error, -EBUSY) << "the writers' offsets are not its own";
  EXPECT_EQ(alive, 3) << "who joins leaves nothing open";
  EXPECT_EQ(table.size(), 3u);
  const auto once = enter(5, true, 5, true);
  EXPECT_FALSE(once.joined) << "open_write_once is apart";
  EXPECT_EQ(enter(5, true, 6, true).joined, 5u);
  ASSERT_EQ(table.readers_of(3, 5).size(), 1u);
  EXPECT_EQ(table.readers_of(3, 5)[0]->device_number, 1u);
  EXPECT_EQ(table.written(3, 5, false)->handle, writer.handle);
  EXPECT_EQ(table.written(3, 5, true)->device_number, 5u);
  EXPECT_FALSE(table.written(3, 7, false));
  // The device has found it closed, and the host has not yet heard of it.
  const auto fresh = enter(5, true, 7, false, writer.handle);
  EXPECT_FALSE(fresh.joined);
  EXPECT_EQ(enter(5, true, 8).joined, 7u);
  EXPECT_EQ(table.close(writer.handle), 0);
  EXPECT_EQ(enter(5, true, 8).joined, 7u) << "it was not the old one's to end";
  EXPECT_EQ(table.close(fresh.handle), 0);
  EXPECT_FALSE(table.written(3, 5, false));
  EXPECT_EQ(table.nwritten(), 2u);
  // A store without identities: its files are all different.
  EXPECT_FALSE(enter(0, true, 9).joined);
  EXPECT_FALSE(enter(0, true, 9).joined);
  EXPECT_FALSE(enter(0, false, 9).joined);
  EXPECT_FALSE(table.written(3, 0, false));
  EXPECT_TRUE(table.readers_of(3, 0).empty());
  table.clear();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(table.nwritten(), 0u);
}

// Calls a function of the test's whenever its info is looked at.
class looked_at_file final : public store::open_file {
 public:
  explicit looked_at_file(const std::function<void()>& on_look) : on_look_(on_look) { info_.live = true; }
  const store::file_info& info() const override {
    on_look_();
    return info_;
  }
  std::int64_t pread(std::span<std::byte>, std::int64_t) override { return 0; }

 private:
  const std::function<void()>& on_look_;
  store::file_info info_ = version(7, 1);
};

// A device may close a handle that it has guessed, at any moment of the open that is to get it.
TEST(open_files, who_guesses_a_handle_closes_nothing_that_is_still_being_entered) {
  open_files table(1);
  std::atomic<int> alive{0};
  const std::uint32_t last = insert(table, alive), guessed = last + 2;  // the entry's next generation
  ASSERT_EQ(table.close(last), 0);
  int nlooks = 0, nclosed = 0;
  bool forges = true;
  const std::function<void()> forge = [&] {
    if (!std::exchange(forges, false)) return;  // its close looks, too
    ++nlooks;
    nclosed += table.close(guessed) == 0;
    forges = nclosed == 0;
  };
  const auto entered = table.insert(std::make_unique<looked_at_file>(forge), {.path = "p", .device_number = 7});
  forges = false;
  EXPECT_GT(nlooks, 0);
  ASSERT_EQ(nclosed, 0);
  EXPECT_EQ(entered.handle, guessed);
  EXPECT_EQ(table.written(1, 7, false)->handle, guessed);
  EXPECT_EQ(table.close(guessed), 0);
  EXPECT_FALSE(table.written(1, 7, false));
  EXPECT_EQ(table.size(), 0u);
}

TEST(open_files, paths_outlive_the_file) {
  std::atomic<int> alive{0};
  open_files table(100);
  EXPECT_FALSE(table.path_of(0));
  const std::uint32_t handle = insert(table, alive);
  EXPECT_EQ(table.path_of(handle), "p");
  EXPECT_EQ(table.close(handle), 0);
  EXPECT_EQ(table.path_of(handle), "p");
  while (!table.full()) insert(table, alive);
  EXPECT_FALSE(table.path_of(handle)) << "its entry is another file's";
}

TEST(open_files, paths_of_entries_are_read_while_these_are_used_again) {
  std::atomic<int> alive{0};
  open_files table(1);
  const std::string paths[] = {std::string(100, 'a'), std::string(200, 'b')};
  const auto use = [&](const std::string& path) {
    return table.insert(std::make_unique<counted_file>(alive, source_kind::staged), {.path = path}).handle;
  };
  const std::uint32_t first = use(paths[0]);
  const open_files::entry& entry = *table.peek(first);
  EXPECT_EQ(table.close(first), 0);
  std::atomic<bool> end{false};
  std::thread user([&] {
    for (unsigned i = 1; !end; ++i) EXPECT_EQ(table.close(use(paths[i % 2])), 0);
  });
  for (int i = 0; i < 2000; ++i) {
    const std::string path = table.path_of(entry);
    EXPECT_TRUE(path == paths[0] || path == paths[1]) << path;
  }
  end = true;
  user.join();
}

TEST(open_files, lists_pull_files_round_robin) {
  std::atomic<int> alive{0};
  open_files table(100);
  std::vector<std::uint32_t> pulls;
  for (int i = 0; i < 10; ++i) {
    insert(table, alive);
    pulls.push_back(insert(table, alive, source_kind::pull));
  }
  ASSERT_EQ(table.close(pulls[0]), 0);
  ASSERT_EQ(table.close(pulls[9]), 0);
  ASSERT_EQ(table.close(pulls[4]), 0);
  std::multiset<std::uint32_t> seen;
  std::size_t cursor = 0;
  for (int i = 0; i < 7; ++i) {
    for (const std::uint32_t handle : table.pull_handles(3, &cursor)) seen.insert(handle);
  }
  EXPECT_EQ(seen.size(), 21u);
  for (int i = 0; i < 10; ++i) {
    const bool open = i != 0 && i != 9 && i != 4;
    EXPECT_EQ(seen.count(pulls[static_cast<std::size_t>(i)]) >= 2, open) << i;
  }
  table.clear();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(table.npull(), 0u);
  EXPECT_TRUE(table.pull_handles(3, &cursor).empty());
}

TEST(open_files, threads_open_read_and_close_at_once) {
  std::atomic<int> alive{0};
  {
    open_files table(64);
    std::array<std::atomic<std::uint32_t>, 16> published{};
    std::atomic<int> nclosed{0}, nopened{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        random_source draw(t + 1);
        for (int i = 0; i < 3000; ++i) {
          auto& place = published[draw.below(16)];
          if (draw.percent(30)) {
            const auto kind = draw.percent(50) ? source_kind::pull : source_kind::staged;
            const std::uint32_t fresh = insert(table, alive, kind);
            if (fresh == 0) continue;
            ++nopened;
            const std::uint32_t old = place.exchange(fresh);
            if (old != 0) {
              ASSERT_EQ(table.close(old), 0);
              ++nclosed;
            }
          } else if (const auto held = table.acquire(place.load())) {
            ASSERT_EQ(held->path, "p");
            ASSERT_EQ(held->device_number, 7u);
            ASSERT_EQ(held->file->pread({}, 0), 0);
          }
          std::size_t cursor = draw.below(20);
          if (draw.percent(5)) table.pull_handles(5, &cursor);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(static_cast<int>(table.size()), nopened - nclosed);
    EXPECT_EQ(alive, nopened - nclosed);
  }
  EXPECT_EQ(alive, 0);
}

TEST(error_log, counts_what_is_repeated_and_says_when_it_was_last) {
  service::error_log log;
  log.add("read", "f", EIO, "");
  const auto first = log.entries().at(0);
  EXPECT_EQ(first.count, 1u);
  ASSERT_TRUE(wait_until([&] { return std::chrono::system_clock::now() > first.time; }));
  log.add("read", "f", EIO, "");
  ASSERT_EQ(log.entries().size(), 1u);
  EXPECT_EQ(log.entries()[0].count, 2u);
  EXPECT_GT(log.entries()[0].time, first.time);
  for (const auto& [operation, path, error] : {std::tuple{"write", "f", EIO}, {"read", "g", EIO}, {"read", "f", EPERM}}) {
    const std::size_t before = log.entries().size();
    log.add(operation, path, error, "");
    EXPECT_EQ(log.entries().size(), before + 1);
  }
}

TEST(error_log, counts_answers_by_errno) {
  service::error_log log;
  for (const int error : {EIO, EIO, 255, 256, 0, -1}) log.count(error);
  EXPECT_EQ(log.counts(), (std::map<int, std::uint64_t>{{0, 3}, {EIO, 2}, {255, 1}}));
}

TEST(error_log, writes_readable_lines) {
  service::error_log log;
  log.add("open", "a/b", ENOENT, "");
  log.add("read", "x", EIO, "a reason");
  log.add("read", "x", EIO, "a reason");
  log.add("service", "", 0, "just so");
  const auto entries = log.entries();
  ASSERT_EQ(entries.size(), 3u);
  const auto ends = [](const std::string& s, std::string_view end) { return s.size() > end.size() && s.ends_with(end); };
  EXPECT_TRUE(ends(to_line(entries[0]), "Z open 'a/b': No such file or directory")) << to_line(entries[0]);
  EXPECT_TRUE(ends(to_line(entries[1]), "Z read 'x': Input/output error (a reason), 2 times")) << to_line(entries[1]);
  EXPECT_TRUE(ends(to_line(entries[2]), "Z service: just so")) << to_line(entries[2]);
}

// Sleepers and blockers: whenever some worker is free, one polls.
TEST(parking, one_always_polls) {
  constexpr int nworkers = 4;
  service::parking parked(nworkers);
  std::atomic<bool> done{false};
  std::atomic<int> nblocking{0}, nasleep{0}, nsleeps{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < nworkers; ++t) {
    threads.emplace_back([&, t] {
      random_source draw(t + 1);
      while (!done) {
        if (draw.percent(50)) {
          parked.begin_blocking();
          ++nblocking;
          std::this_thread::yield();
          --nblocking;
          parked.end_blocking();
        } else {
          ++nasleep;
          nsleeps += parked.try_sleep();
          --nasleep;
        }
      }
    });
  }
  // If a wake were lost, all would end up asleep and nothing would move any more.
  for (int round = 0; round < 20; ++round) {
    const int before = nsleeps;
    EXPECT_TRUE(wait_until([&] { return nsleeps > before; })) << "all sleep";
  }
  done = true;
  parked.open_all();
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(parked.try_sleep()) << "nobody sleeps any more";
}

// What the process does of SIGXFSZ is as it was, also afterwards; a thread that holds it gets the error alone.
TEST(file_size_signal, is_held_and_not_left_pending) {
  const temp_dir dir;
  const int fd = ::open((dir / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{100, before.rlim_max};
  sigset_t blocked, pending;
  {
    const service::file_size_signal_held held;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_EQ(::pwrite(fd, "x", 1, 200), -1);
    const int error = errno;
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(error, EFBIG);
    ::sigpending(&pending);
    EXPECT_EQ(::sigismember(&pending, SIGXFSZ), 1);
  }
  ::sigpending(&pending);
  EXPECT_EQ(::sigismember(&pending, SIGXFSZ), 0);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(::sigismember(&blocked, SIGXFSZ), 0);
  ::close(fd);
}

}  // namespace
}  // namespace gpufs::test
