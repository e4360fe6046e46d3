// SPDX-License-Identifier: Apache-2.0
// The end of a mount whose store hangs, and in a child of fork().
#include <sys/wait.h>

#include "file/fuse_folder.hpp"
#include "file/script.hpp"
#include "forwarding_platform.hpp"
#include "gpufs/host_file.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::ptrdiff_t nthreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

class mount_end : public ::testing::Test {
 protected:
  void SetUp() override {
    if (folder_.error() != 0) GTEST_SKIP() << "a FUSE folder of our own cannot be had: " << std::strerror(folder_.error());
    bad_ = &folder_.add("bad", 64 * 4096, 1);
    options_.store = store_kind::posix;
    options_.cache_nbytes = 64 * 4096;
    options_.io_timeout = milliseconds(200);
    options_.end_timeout = seconds(under_tsan ? 15 : 2);  // longer than all else takes that the end does
    options_.nworkers = 2;
  }
  // What the mount's end says.
  static std::string end(std::optional<mount>& m) {
    ::testing::internal::CaptureStderr();
    const auto begin = std::chrono::steady_clock::now();
    m.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(60));
    return ::testing::internal::GetCapturedStderr();
  }
  static void expect_says(const std::string& text, std::initializer_list<const char*> wanted) {
    for (const char* part : wanted) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
  }

  fuse_folder folder_;
  fuse_file* bad_ = nullptr;
  mount_options options_;
};

TEST_F(mount_end, waits_no_longer_than_it_was_told) {
  expect_leftovers("the host hangs");
  { mount warm(folder_.path(), options_); }  // what starts once in a process has
  const std::ptrdiff_t before = nthreads();
  std::optional<mount> m(std::in_place, folder_.path(), options_);
  players one(m->ref(), {});
  script s;
  s.open(0, "bad");
  const auto read = s.pread(0, 100, 0);
  bad_->hangs_read = true;
  EXPECT_EQ(one.run(s)[read].value, -ETIMEDOUT);
  expect_says(end(m), {"a mount's end waits, for up to", "s more, for a read of 'bad'", "waits no longer"});
  EXPECT_GT(nthreads(), before) << "which hang";
  bad_->hangs_read = false;
  EXPECT_TRUE(wait_until([&] { return nthreads() == before; })) << nthreads() - before << " threads are left";
}

TEST_F(mount_end, of_one_that_has_not_written_all_writes_it_when_the_store_answers) {
  expect_leftovers("the host hangs");
  options_.writable = true;
  std::optional<mount> m(std::in_place, folder_.path(), options_);
  players one(m->ref(), {});
  script s;
  s.open(0, "bad", O_RDWR);
  const auto write = s.pwrite(0, content(2, 0, 4096), 4096);
  EXPECT_EQ(one.run(s)[write].value, 4096);
  bad_->hangs_write = true;
  expect_says(end(m), {"for a write of 'bad'", "waits no longer"});
  bad_->hangs_write = false;
  EXPECT_TRUE(wait_until(
      [&] { return bad_->nwrites > 0 && std::equal(bad_->bytes + 4096, bad_->bytes + 8192, content(2, 0, 4096).begin()); }));
}

TEST_F(mount_end, says_which_close_hangs) {
  expect_leftovers("the host hangs");
  std::optional<mount> m(std::in_place, folder_.path(), options_);
  players one(m->ref(), {});
  script s;
  const auto open = s.open(0, "bad");
  EXPECT_GE(one.run(s)[open].value, 0);
  bad_->hangs_flush = true;
  expect_says(end(m), {"a mount's end waits, for up to", "for a close of 'bad'", "waits no longer"});
  bad_->hangs_flush = false;
}

TEST_F(mount_end, says_nothing_when_nothing_hangs) {
  expect_leftovers("the file stays open");
  options_.end_timeout = seconds(600);
  std::optional<mount> m(std::in_place, folder_.path(), options_);
  players one(m->ref(), {});
  script s;
  s.open(0, "bad");
  const auto read = s.pread(0, 100, 0);
  EXPECT_EQ(one.run(s)[read].value, 100);
  EXPECT_EQ(end(m), "");
}

// The machine, until the test loses it.
class losable_platform final : public forwarding_platform {
 public:
  losable_platform() : forwarding_platform(simt::this_platform()) {}
  std::atomic<bool> lost{false};
  void copy_to_device(void* dst, const void* src, std::size_t nbytes) override {
    use();
    real_.copy_to_device(dst, src, nbytes);
  }
  void copy_from_device(void* dst, const void* src, std::size_t nbytes) override {
    use();
    real_.copy_from_device(dst, src, nbytes);
  }
  void zero_device(void* dst, std::size_t nbytes) override {
    use();
    real_.zero_device(dst, nbytes);
  }

 private:
  void use() const {
    if (lost) throw std::runtime_error("the test lost the device");
  }
};

TEST(mount_of_a_lost_device, says_what_is_lost) {
  const temp_dir dir;
  losable_platform machine;
  for (const bool writable : {false, true}) {
    mount_options options;
    options.writable = writable;
    options.cache_nbytes = 64 * 4096;
    machine.lost = false;
    std::optional<host_mount> m(std::in_place, machine, dir.path(), options);
    machine.lost = true;
    ::testing::internal::CaptureStderr();
    m.reset();
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(text.find("whose device is lost") != std::string::npos, writable) << text;
    EXPECT_EQ(text.find("the test lost the device") != std::string::npos, writable) << text;
  }
}

// A child has the mount's memory and none of its threads.
TEST(mount_of_a_parent, ends_without_a_word_in_a_child) {
  temp_dir dir;
  for (const char* name : {"file", "other"}) dir.add(name, 10'000, 1);
  let_file_times_pass();
  mount_options options;
  options.writable = true;
  options.cache_nbytes = 64 * 4096;
  std::optional<mount> m(std::in_place, dir.path(), options);
  players one(m->ref(), {});
  script s, rest;
  s.open(0, "file", O_RDWR);
  s.pwrite(0, content(2, 0, 100), 50);
  EXPECT_EQ(one.run(s)[1].value, 100);
  host_file of_host(*m, "other");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    { const host_file moved_file = std::move(of_host); }
    mount moved = std::move(*m);
    m.reset();
    { const mount ended = std::move(moved); }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "signal " << WTERMSIG(status);
  EXPECT_EQ(dir.read("file"), content(1, 0, 10'000)) << "the child writes nothing";
  of_host.close();
  const auto close = rest.close(0);
  EXPECT_EQ(one.run(rest)[close].value, 0);
  m.reset();
  auto wanted = content(1, 0, 10'000);
  const auto written = content(2, 0, 100);
  std::copy(written.begin(), written.end(), wanted.begin() + 50);
  EXPECT_EQ(dir.read("file"), wanted);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
