// SPDX-License-Identifier: Apache-2.0
// Opens and reads, request by request: of every store and kind, with the beginning of a file and without.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "file/faulty_store.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/mapped_store.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nil_store.hpp"
#include "service_fixture.hpp"

namespace gpufs::test {
namespace {

TEST_P(running_service, opens_reads_and_closes) {
  dir_.add("a", 10'001, 1);
  start_posix();
  const auto file = client_->open("/a");
  ASSERT_EQ(file.result, 0);
  struct stat st;
  ASSERT_EQ(stat((dir_ / "a").c_str(), &st), 0);
  EXPECT_EQ(file.file_nbytes, 10'001);
  EXPECT_EQ(file.kind, source_kind::staged);
  EXPECT_EQ(file.pull_base, 0u);
  EXPECT_EQ(file.inode, st.st_ino);
  EXPECT_EQ(file.mode, st.st_mode);
  EXPECT_EQ(file.mtime_ns,
            static_cast<std::uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(st.st_mtim.tv_nsec));
  EXPECT_NE(file.handle, 0u);
  EXPECT_GE(file.cache_id, 1u);
  std::vector<std::byte> got;
  for (const std::int64_t offset : {0, 1, 4095, 4096, 8192, 10'000}) {
    for (const std::uint32_t nbytes : {1u, 512u, 4096u}) {
      const auto n = std::min<std::int64_t>(nbytes, 10'001 - offset);
      ASSERT_EQ(client_->read(file.handle, offset, nbytes, &got), n) << offset << " " << nbytes;
      ASSERT_EQ(got, content(1, static_cast<std::uint64_t>(offset), static_cast<std::size_t>(n)));
    }
  }
  EXPECT_EQ(client_->read(file.handle, 10'001, 100), 0);
  EXPECT_EQ(client_->read(file.handle, std::int64_t{1} << 60, 100), 0);
  EXPECT_EQ(client_->read(file.handle, 0, 0), 0);
  EXPECT_EQ(client_->close(file.handle), 0);
  EXPECT_EQ(client_->close(file.handle), -EBADF);
  EXPECT_EQ(client_->read(file.handle, 0, 1), -EBADF);
}

TEST_P(running_service, an_open_brings_the_beginning_along) {
  dir_.add("a", 10'001, 1);
  dir_.add("empty", 0, 1);
  dir_.add("large", 300'000, 2);
  start_posix({.payload_nbytes = 1 << 18});
  const auto expect = [&](const char* path, std::uint64_t seed, std::uint32_t wanted, std::int64_t n) {
    std::vector<std::byte> got;
    const auto file = client_->open_along(path, wanted, &got);
    EXPECT_EQ(file.result, n) << path << " " << wanted;
    EXPECT_EQ(got, content(seed, 0, static_cast<std::size_t>(n))) << path << " " << wanted;
    EXPECT_EQ(client_->read(file.handle, 0, 100, &got), std::min<std::int64_t>(100, file.file_nbytes));
    EXPECT_EQ(client_->close(file.handle), 0);
  };
  expect("a", 1, 0, 0);
  expect("a", 1, 1, 1);
  expect("a", 1, 512, 512);
  expect("a", 1, 4096, 4096);
  expect("a", 1, 10'000, 10'000);
  expect("a", 1, 10'001, 10'001);
  expect("a", 1, 1 << 18, 10'001);
  expect("a", 1, 0xffffffffu, 10'001);  // what a device may make up
  expect("empty", 1, 4096, 0);
  expect("large", 2, 65'536, 65'536);
  expect("large", 2, 65'537, 0);  // too much to read along
  EXPECT_EQ(service_->counters().opens_with_bytes, 8u);
  EXPECT_EQ(client_->open("missing", 0, 0, 0).result, -ENOENT);
  std::vector<std::byte> got;
  EXPECT_EQ(client_->open_along("missing", 4096, &got).result, -ENOENT);
}

TEST_P(running_service, an_open_brings_nothing_along_that_is_not_at_hand) {
  dir_.add("a", 10'001, 1);
  let_file_times_pass();
  std::vector<std::byte> got;
  // Stores without a descriptor, whose reads may block; nothing is read for them.
  auto faulty = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path()));
  start(faulty);
  EXPECT_EQ(client_->open_along("a", 4096, &got).result, 0);
  EXPECT_EQ(faulty->wrong().reads, 0u);
  for (const auto kind : {source_kind::pull, source_kind::staged}) {
    auto mem = std::make_shared<store::mem_store>(simt::cpu_platform(), kind);
    mem->put("m", content(3, 0, 5000));
    start(mem);
    EXPECT_EQ(client_->open_along("m", 4096, &got).result, 0);
  }
  start(std::make_shared<store::nil_store>(std::int64_t{1} << 40));
  EXPECT_EQ(client_->open_along("n", 4096, &got).result, 0);
  start(std::make_shared<store::mapped_store>(simt::cpu_platform(), dir_.path()));
  EXPECT_EQ(client_->open_along("a", 4096, &got).result, 0);
  start(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.direct = true}));
  const auto direct = client_->open_along("a", 4096, &got);
  EXPECT_GE(direct.result, 0) << "a file system without O_DIRECT reads it as any";
  EXPECT_EQ(client_->read(direct.handle, 0, 4096, &got), 4096);
  EXPECT_EQ(got, content(1, 0, 4096));
}

// A file whose descriptor, size and version are what the test says.
class made_up_file final : public store::open_file {
 public:
  made_up_file(int fd, std::int64_t nbytes, int version) : fd_(fd), version_(version) {
    info_.nbytes = nbytes;
    info_.device = 1;
  }
  ~made_up_file() override { ::close(fd_); }
  const store::file_info& info() const override { return info_; }
  int descriptor() const override { return fd_; }
  int check_version() const override {
    if (version_ == -ENOMEM) throw std::bad_alloc();
    return version_;
  }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    const ssize_t n = ::pread(fd_, dst.data(), dst.size(), offset);
    return n < 0 ? -errno : n;
  }

 private:
  int fd_, version_;
  store::file_info info_;
};

class made_up_store final : public store::store {
 public:
  explicit made_up_store(std::string file) : file_(std::move(file)) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int, int*) override {
    const bool unreadable = path == "unreadable", shrunk = path == "shrunk";
    return std::make_unique<made_up_file>(::open(file_.c_str(), unreadable ? O_WRONLY : O_RDONLY), shrunk ? 5000 : 1000,
                                          path == "changed"     ? -ESTALE
                                          : path == "exhausted" ? -ENOMEM
                                                                : 0);
  }
  std::string_view name() const override { return "made up"; }

 private:
  std::string file_;
};

// What goes wrong with the bytes that an open brings along is told to the read that asks for them.
TEST_P(running_service, an_open_does_not_fail_for_its_bytes) {
  dir_.add("a", 1000, 1);
  start(std::make_shared<made_up_store>(dir_ / "a"));
  std::vector<std::byte> got;
  for (const auto& [path, error] : {std::pair{"unreadable", -EBADF}, {"shrunk", -ESTALE}, {"changed", -ESTALE}}) {
    const auto file = client_->open_along(path, 4096, &got);
    EXPECT_EQ(file.result, 0) << path;
    EXPECT_NE(file.handle, 0u) << path;
    EXPECT_EQ(client_->read(file.handle, 0, 4096, &got), error) << path;
    EXPECT_EQ(client_->close(file.handle), 0) << path;
  }
  EXPECT_EQ(service_->counters().opens_with_bytes, 0u);
  EXPECT_EQ(client_->open_along("good", 4096, &got).result, 1000);
  EXPECT_EQ(got, content(1, 0, 1000));
}

TEST_P(running_service, an_open_for_which_there_is_no_memory_fails) {
  dir_.add("a", 1000, 1);
  start(std::make_shared<made_up_store>(dir_ / "a"));
  std::vector<std::byte> got;
  EXPECT_EQ(client_->open_along("exhausted", 4096, &got).result, -ENOMEM);
  EXPECT_EQ(service_->counters().open_files, 0u);
  EXPECT_EQ(client_->open_along("good", 4096, &got).result, 1000);
}

TEST_P(running_service, answers_for_every_store_and_kind) {
  auto mem = std::make_shared<store::mem_store>(simt::cpu_platform());
  mem->put("m", content(3, 0, 5000));
  start(mem);
  const auto pulled = client_->open("m");
  ASSERT_EQ(pulled.kind, source_kind::pull);
  const auto* base = reinterpret_cast<const std::byte*>(pulled.pull_base);
  EXPECT_EQ(std::vector<std::byte>(base, base + 5000), content(3, 0, 5000));
  std::vector<std::byte> got;
  EXPECT_EQ(client_->read(pulled.handle, 4000, 4096, &got), 1000) << "a pull file can be read through staging too";
  EXPECT_EQ(got, content(3, 4000, 1000));

  start(std::make_shared<store::nil_store>(std::int64_t{1} << 40));
  const auto nil = client_->open("anything");
  EXPECT_EQ(nil.kind, source_kind::nil);
  EXPECT_EQ(nil.file_nbytes, std::int64_t{1} << 40);
  EXPECT_EQ(client_->read(nil.handle, std::int64_t{1} << 39, 4096, &got), 4096);

  dir_.add("big", 1 << 20, 4);
  let_file_times_pass();
  start(std::make_shared<store::mapped_store>(simt::cpu_platform(), dir_.path()));
  const auto big = client_->open("big");
  EXPECT_EQ(big.kind, source_kind::pull);
  base = reinterpret_cast<const std::byte*>(big.pull_base);
  EXPECT_EQ(std::vector<std::byte>(base + 1000, base + 2000), content(4, 1000, 1000));
  EXPECT_EQ(service_->counters().opens_pull, 1u);
}

TEST_P(running_service, tells_which_windows_are_registered) {
  constexpr std::uint32_t window = 64 << 10, nbytes = 2 * window + 100;
  dir_.add("f", nbytes, 4);
  let_file_times_pass();
  // Often, for this test asks for nothing once the windows are registered.
  start(std::make_shared<store::auto_store>(simt::cpu_platform(), dir_.path(), 0,
                                            store::auto_options{.small_file_nbytes = 1, .window_nbytes = window}),
        {.watch_interval = std::chrono::milliseconds(5)});
  std::mutex lock;
  bool listens = true;
  std::uint64_t ncalls = 0, told = 0;  // under the lock
  const auto file = client_->open("f", 0, 77);
  ASSERT_EQ(file.kind, source_kind::windows);
  service_->on_windows([&](std::uint32_t number, std::uint32_t, const std::byte* base, const store::registered_windows& windows) {
    const std::scoped_lock hold(lock);
    EXPECT_EQ(number, 77u);
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(base), file.pull_base);
    EXPECT_EQ(windows.shift, 16u);
    ++ncalls;
    if (listens) told = windows.registered;
    return listens;
  });
  const auto set_listens = [&](bool now) {
    const std::scoped_lock hold(lock);
    listens = now;
    ncalls = 0;
  };
  const auto is = [&](std::uint64_t& what, auto good) {
    return wait_until([&] {
      const std::scoped_lock hold(lock);
      return good(what);
    });
  };
  const auto read = [&](std::uint32_t begin, std::uint32_t end) {
    std::vector<std::byte> got;
    for (std::uint32_t at = begin; at < end; at += 4096) {
      const std::uint32_t n = std::min(4096u, nbytes - at);
      EXPECT_EQ(client_->read(file.handle, at, 4096, &got), n);
      EXPECT_EQ(got, content(4, at, n));
    }
  };
  read(window, 2 * window - 4096);
  read(0, window);
  EXPECT_TRUE(is(told, [](std::uint64_t bits) { return bits == 0b001; }));
  set_listens(false);
  read(2 * window, nbytes);
  EXPECT_TRUE(is(ncalls, [](std::uint64_t n) { return n > 2; })) << "who did not listen is told again";
  set_listens(true);
  EXPECT_TRUE(is(told, [](std::uint64_t bits) { return bits == 0b101; }));
  set_listens(true);
  service_->tell_windows_again();
  EXPECT_TRUE(is(ncalls, [](std::uint64_t n) { return n == 1; }));
  EXPECT_EQ(client_->close(file.handle), 0);
}

TEST_P(running_service, direct_files_read_at_any_offset) {
  dir_.add("a", 100'001, 1);
  let_file_times_pass();
  start(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.direct = true}), {.payload_nbytes = 65536});
  const auto file = client_->open("a");
  ASSERT_EQ(file.result, 0);
  random_source draw(3);
  std::vector<std::byte> got;
  for (int i = 0; i < 300; ++i) {
    std::uint64_t offset = draw.below(100'001);
    auto nbytes = static_cast<std::uint32_t>(draw.between(1, 65536));
    if (i % 2 == 0) offset &= ~4095ull, nbytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(65536, 100'001 - offset));
    const auto n = std::min<std::uint64_t>(nbytes, 100'001 - offset);
    ASSERT_EQ(client_->read(file.handle, static_cast<std::int64_t>(offset), nbytes, &got), static_cast<std::int64_t>(n));
    ASSERT_EQ(got, content(1, offset, n));
  }
}

// Threads that get signals all the time, as of a profiler, which a handler takes.
TEST_P(running_service, signals_disturb_no_read) {
  const temp_dir in_memory(memory_directory());  // where the kernel reads by threads, which it starts at the first read
  in_memory.add("a", 1 << 20, 1);
  let_file_times_pass();
  struct sigaction before {
  }, nothing{};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &nothing, &before), 0);
  std::atomic<bool> done{false};
  std::thread sender([&] {
    while (!done) {
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        if (name != "gpufs-worker") continue;
        for (int i = 0; i < 50; ++i) syscall(SYS_tgkill, getpid(), std::stoi(task.path().filename()), SIGUSR1);
      }
    }
  });
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    start(std::make_shared<store::posix_store>(in_memory.path(), store::posix_options{.direct = true}), {.nworkers = 2});
    const auto file = client_->open("a");
    EXPECT_EQ(file.result, 0);
    std::vector<ring_client::ticket> asked;
    for (std::uint64_t i = 0; i < 64; ++i) {
      asked.push_back(
          client_->begin_read(file.handle, static_cast<std::int64_t>(i * 4096), 4096, static_cast<std::uint32_t>(i % 16)));
    }
    for (std::uint64_t i = 0; i < 64; ++i) {
      std::vector<std::byte> got;
      EXPECT_EQ(client_->end_read(asked[i], &got), 4096);
      EXPECT_EQ(got, content(1, i * 4096, 4096));
    }
  }
  done = true;
  sender.join();
  service_.reset();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_P(running_service, reads_what_the_page_cache_lacks) {
  dir_.add("cold", 4 << 20, 5);
  const int fd = open((dir_ / "cold").c_str(), O_RDONLY);
  fsync(fd);
  start_posix();
  const auto file = client_->open("cold");
  random_source draw(4);
  for (int round = 0; round < 20; ++round) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    std::vector<std::pair<ring_client::ticket, std::uint64_t>> asked;
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t offset = draw.below((4 << 20) - 4096);
      asked.emplace_back(
          client_->begin_read(file.handle, static_cast<std::int64_t>(offset), 4096, static_cast<std::uint32_t>(i % 8)), offset);
    }
    for (const auto& [t, offset] : asked) {
      std::vector<std::byte> got;
      ASSERT_EQ(client_->end_read(t, &got), 4096);
      ASSERT_EQ(got, content(5, offset, 4096));
    }
  }
  close(fd);
  EXPECT_GT(service_->counters().cold_reads, 0u) << "nothing was cold: this test tests nothing on this file system";
}

INSTANTIATE_TEST_SUITE_P(io, running_service, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

}  // namespace
}  // namespace gpufs::test
