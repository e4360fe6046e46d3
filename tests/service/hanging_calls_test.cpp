// SPDX-License-Identifier: Apache-2.0
// Calls that hang in a store of local files: made to by the test, as no disk does so when it is asked to.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "../../src/service/for_tests.hpp"
#include "file/faulty_store.hpp"
#include "file/harness.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/posix_store.hpp"
#include "ring_client.hpp"
#include "set_meanwhile.hpp"

namespace gpufs::test {
namespace {

// The inode whose writes to the page cache wait for the gate; 0: none.
std::atomic<std::uint64_t> held_inode{0};
gate held_writes;

std::ptrdiff_t held_pwritev(int fd, const iovec* parts, int count, off_t offset) {
  struct stat st;
  if (const std::uint64_t held = held_inode; held != 0 && ::fstat(fd, &st) == 0 && st.st_ino == held) held_writes.pass();
  return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
}

}  // namespace
}  // namespace gpufs::test

// Instead of the C library's, in this program.
extern "C" ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return gpufs::test::held_pwritev(fd, parts, count, offset);
}

namespace gpufs::test {
namespace {

using std::chrono::seconds;
using transport::opcode;

// A real store, but for what a test puts in its place.
class hooked_store final : public store::store {
 public:
  using file_ptr = std::unique_ptr<gpufs::store::open_file>;
  explicit hooked_store(std::shared_ptr<gpufs::store::store> real) : real_(std::move(real)) {}
  std::function<void(std::string_view path)> before_open;
  std::function<file_ptr(std::string_view path, file_ptr)> opened;

  file_ptr open(std::string_view path, int flags, int* error) override {
    if (before_open) before_open(path);
    file_ptr file = real_->open(path, flags, error);
    return file && opened ? opened(path, std::move(file)) : std::move(file);
  }
  std::string_view name() const override { return "hooked"; }

 private:
  std::shared_ptr<gpufs::store::store> real_;
};

// A file whose bytes come when the test gives them: its reads, by io_uring too, wait until then.
class piped_file final : public store::open_file {
 public:
  static constexpr std::size_t nbytes = 512;
  struct pipe {
    pipe() {
      if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    }
    ~pipe() {
      for (const int end : ends) ::close(end);
    }
    void give(std::uint64_t seed) const {
      const auto bytes = content(seed, 0, nbytes);
      ASSERT_EQ(::write(ends[1], bytes.data(), nbytes), static_cast<ssize_t>(nbytes));
    }
    int ends[2];
  };
  piped_file(std::shared_ptr<pipe> from, const store::file_info& info) : from_(std::move(from)), info_(info) {}
  const store::file_info& info() const override { return info_; }
  int descriptor() const override { return from_->ends[0]; }
  std::uint32_t alignment() const override { return nbytes; }
  std::int64_t pread(std::span<std::byte> to, std::int64_t) override { return ::read(descriptor(), to.data(), to.size()); }

 private:
  std::shared_ptr<pipe> from_;
  store::file_info info_;
};

// A file that is said to be pulled, and may do something each time somebody looks whether it has changed.
class watched_file final : public store::open_file {
 public:
  watched_file(std::unique_ptr<open_file> real, std::function<void()> looked)
      : real_(std::move(real)), info_(real_->info()), looked_(std::move(looked)) {
    info_.kind = source_kind::pull;
  }
  const store::file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> to, std::int64_t offset) override { return real_->pread(to, offset); }
  int check_version() const override {
    if (looked_) looked_();
    return real_->check_version();
  }

 private:
  std::unique_ptr<open_file> real_;
  store::file_info info_;
  std::function<void()> looked_;
};

std::ptrdiff_t nthreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// Each test with io_uring and without.
class hanging_calls : public testing::TestWithParam<bool> {
 protected:
  void TearDown() override {
    held_inode = 0;
    held_writes.open();
  }
  void start(service::service_options options = {}) {
    options.nrings = 32;
    options.writable = true;
    files_ =
        std::make_shared<hooked_store>(std::make_shared<store::posix_store>(dir_.path(), store::posix_options{.writable = true}));
    files_->before_open = before_open_;
    files_->opened = opened_;
    let_file_times_pass();
    service_ = std::make_unique<service::service>(simt::cpu_platform(), files_, options);
    client_ = std::make_unique<ring_client>(service_->transport().rings);
  }
  // From now on, writes to the file hang.
  void hold_writes_of(const char* name) {
    struct stat st;
    ASSERT_EQ(::stat((dir_ / name).c_str(), &st), 0);
    held_writes.close();
    held_inode = st.st_ino;
  }
  bool says_that_hangs(const std::string& what) const { return service_->what_hangs()().find(what) != std::string::npos; }

  const set_meanwhile<bool> io_uring_{service::for_tests::io_uring, GetParam()};
  temp_dir dir_;
  std::function<void(std::string_view)> before_open_;
  std::function<hooked_store::file_ptr(std::string_view, hooked_store::file_ptr)> opened_;
  std::shared_ptr<hooked_store> files_;
  std::unique_ptr<service::service> service_;
  std::unique_ptr<ring_client> client_;
};

TEST_P(hanging_calls, few_spare_threads_answer_all) {
  dir_.add("file", 5000, 1);
  for (const std::uint32_t nspare : {0u, 1u, 2u}) {
    start({.nworkers = 2, .nspare_workers = nspare});
    const auto file = client_->open("file", O_RDWR);
    ASSERT_EQ(file.result, 0) << nspare;
    EXPECT_EQ(client_->write(file.handle, 0, content(2, 0, 100)), 100) << nspare;
    EXPECT_EQ(client_->on_file(opcode::sync, file.handle), 0) << nspare;
    EXPECT_EQ(client_->close(file.handle), 0) << nspare;
  }
}

// Taken at once, both of them: what is the one's to wait for is none of the other's.
TEST_P(hanging_calls, a_write_that_hangs_holds_up_no_other_file_taken_with_it) {
  dir_.add("bad", 4096, 1);
  dir_.add("good", 4096, 2);
  start();
  const auto bad = client_->open("bad", O_RDWR), good = client_->open("good", O_RDWR);
  hold_writes_of("bad");
  const auto first = client_->take(0), second = client_->take(0);
  transport::request ask{};
  ask.op = opcode::write;
  ask.nbytes = 4;
  ask.handle = good.handle;
  client_->post(second, ask);
  ask.handle = bad.handle;
  client_->post(first, ask);  // a ring is taken in order
  EXPECT_EQ(client_->end(second), 4);
  EXPECT_TRUE(wait_until([&] { return says_that_hangs("a write of 'bad'"); })) << service_->what_hangs()();
  EXPECT_FALSE(client_->answered(first));
  held_writes.open();
  EXPECT_EQ(client_->end(first), 4);
}

TEST_P(hanging_calls, many_writes_of_a_file_that_hangs_hold_up_no_other_file) {
  constexpr std::uint32_t nwrites = 8;
  dir_.add("bad", 4096, 1);
  dir_.add("good", 4096, 2);
  start({.nworkers = 2, .nspare_workers = 4});
  const auto bad = client_->open("bad", O_RDWR), good = client_->open("good", O_RDWR);
  hold_writes_of("bad");
  std::vector<ring_client::ticket> asked;
  for (std::uint32_t i = 0; i < nwrites; ++i) {
    asked.push_back(client_->begin_write(bad.handle, std::int64_t{i} * 8192, content(1, 0, 4096), i));
    EXPECT_TRUE(wait_until([&] { return says_that_hangs("a write of 'bad'"); })) << service_->what_hangs()();
    EXPECT_EQ(client_->write(good.handle, std::int64_t{i} * 4096, content(2, 0, 4096), 31), 4096) << i;
  }
  EXPECT_EQ(held_writes.waiting(), 1) << "the others wait for the one that hangs";
  held_writes.open();
  for (const auto t : asked) EXPECT_EQ(client_->end(t), 4096);
}

// A thread whose reads hang takes their answers when they come: it is in no other file's call then.
TEST_P(hanging_calls, reads_that_come_back_are_answered_while_other_calls_hang) {
  constexpr int nbad = 4;
  for (const char* name : {"file", "other"}) dir_.add(name, piped_file::nbytes, 1);
  const auto pipe = std::make_shared<piped_file::pipe>();
  gate opens;
  opens.close();
  before_open_ = [&](std::string_view path) {
    if (path.starts_with("bad")) opens.pass();
  };
  opened_ = [&](std::string_view path, hooked_store::file_ptr file) -> hooked_store::file_ptr {
    return path == "file" ? std::make_unique<piped_file>(pipe, file->info()) : std::move(file);
  };
  start({.nworkers = 2});
  const auto file = client_->open("file");
  const auto read = client_->begin_read(file.handle, 0, piped_file::nbytes, 1);
  EXPECT_TRUE(wait_until([&] { return says_that_hangs("a read of 'file'"); })) << service_->what_hangs()();
  std::vector<ring_client::ticket> asked;
  for (int i = 0; i < nbad; ++i) {
    asked.push_back(client_->begin_open("bad" + std::to_string(i), 0, 0, static_cast<std::uint32_t>(2 + i)));
    EXPECT_TRUE(wait_until([&] { return opens.waiting() == i + 1; }));
  }
  pipe->give(7);
  EXPECT_TRUE(wait_until([&] { return client_->answered(read); }, seconds(20)));
  EXPECT_EQ(client_->open("other", 0, 0, 30).result, 0);
  opens.open();
  std::vector<std::byte> got;
  EXPECT_EQ(client_->end_read(read, &got), static_cast<std::int64_t>(piped_file::nbytes));
  EXPECT_EQ(got, content(7, 0, piped_file::nbytes));
  for (const auto t : asked) EXPECT_EQ(client_->end(t), -ENOENT);
}

TEST_P(hanging_calls, reads_that_hang_take_few_threads_and_leave_one) {
  constexpr std::uint32_t nbad = 12;
  dir_.add("good", 4096, 1);
  std::vector<std::shared_ptr<piped_file::pipe>> pipes;
  for (std::uint32_t i = 0; i < nbad; ++i) {
    dir_.add(numbered("bad", i), piped_file::nbytes, 1);
    pipes.push_back(std::make_shared<piped_file::pipe>());
  }
  opened_ = [&](std::string_view path, hooked_store::file_ptr file) -> hooked_store::file_ptr {
    if (!path.starts_with("bad")) return file;
    return std::make_unique<piped_file>(pipes[static_cast<std::size_t>(std::stoi(std::string(path.substr(3))))], file->info());
  };
  start({.nworkers = 3});
  const std::ptrdiff_t before = nthreads();
  std::vector<std::uint32_t> handles;
  for (std::uint32_t i = 0; i < nbad; ++i) handles.push_back(client_->open(numbered("bad", i)).handle);
  std::vector<ring_client::ticket> asked;
  for (std::uint32_t i = 0; i < nbad; ++i) {
    asked.push_back(client_->begin_read(handles[i], 0, piped_file::nbytes, i));
    const std::string count = i == 0 ? "a read of 'bad0'" : std::to_string(i + 1) + " calls";
    EXPECT_TRUE(wait_until([&] { return says_that_hangs(count); })) << service_->what_hangs()();
    const auto good = client_->open("good", O_RDWR, 0, 31);
    EXPECT_EQ(client_->read(good.handle, 0, 100, nullptr, 31), 100);
    EXPECT_EQ(client_->write(good.handle, 0, content(1, 0, 100), 31), 100);
    EXPECT_EQ(client_->close(good.handle, 31), 0);
  }
  if (GetParam()) {
    EXPECT_LE(nthreads() - before, 3) << "asynchronous reads need no thread each";
  }
  for (std::uint32_t i = 0; i < nbad; ++i) {
    pipes[i]->give(i);
    std::vector<std::byte> got;
    EXPECT_EQ(client_->end_read(asked[i], &got), static_cast<std::int64_t>(piped_file::nbytes));
    EXPECT_EQ(got, content(i, 0, piped_file::nbytes));
  }
}

TEST_P(hanging_calls, looks_that_hang_keep_no_other_change_from_being_seen) {
  constexpr std::uint32_t nbad = 3;
  gate looks;
  opened_ = [&](std::string_view path, hooked_store::file_ptr file) -> hooked_store::file_ptr {
    std::function<void()> looked;
    if (path.starts_with("bad")) looked = [&] { looks.pass(); };
    return std::make_unique<watched_file>(std::move(file), looked);
  };
  for (std::uint32_t i = 0; i < nbad; ++i) dir_.add(numbered("bad", i), 100, 1);
  dir_.add("good", 100, 2);
  start({.nworkers = 2});
  std::mutex lock;
  std::set<std::uint32_t> told;
  service_->on_stale([&](std::uint32_t, std::uint32_t handle) {
    const std::scoped_lock hold(lock);
    told.insert(handle);
  });
  const auto was_told = [&](std::uint32_t handle) {
    const std::scoped_lock hold(lock);
    return told.count(handle) != 0;
  };
  std::vector<std::uint32_t> bad;
  for (std::uint32_t i = 0; i < nbad; ++i) bad.push_back(client_->open(numbered("bad", i)).handle);
  const std::uint32_t good = client_->open("good").handle;
  looks.close();
  EXPECT_TRUE(wait_until([&] { return looks.waiting() != 0; }));
  dir_.add("good", 200, 3);
  EXPECT_TRUE(wait_until([&] { return was_told(good); }, seconds(20)));
  EXPECT_TRUE(wait_until([&] { return looks.waiting() == nbad && says_that_hangs("a look at the version of 'bad"); }, seconds(20)))
      << service_->what_hangs()();
  EXPECT_EQ(client_->close(good), 0);
  for (std::uint32_t i = 0; i < nbad; ++i) dir_.add(numbered("bad", i), 200, 1);
  looks.open();
  for (const std::uint32_t handle : bad) EXPECT_TRUE(wait_until([&] { return was_told(handle); }));
  EXPECT_TRUE(wait_until([&] { return service_->what_hangs()().empty(); }));
  service_->stop();
}

INSTANTIATE_TEST_SUITE_P(io, hanging_calls, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

}  // namespace
}  // namespace gpufs::test
