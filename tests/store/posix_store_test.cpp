// SPDX-License-Identifier: Apache-2.0
// The posix store's own promises: it stays below its root, opens nothing but regular files, and notices changes. Each runs with
// openat2 and with the walk that replaces it.
#include "gpufs/store/posix_store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "../../src/store/posix_file.hpp"
#include "../../src/store/read_loop.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {
namespace {

class reading_store : public testing::TestWithParam<bool> {
 protected:
  reading_store() { std::filesystem::create_directory(dir_ / "root"); }
  store::posix_store make() { return store::posix_store(dir_ / "root"); }
  std::string in_root(const std::string& name) const { return dir_ / ("root/" + name); }
  void link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(symlink(target.c_str(), in_root(name).c_str()), 0);
  }
  const set_meanwhile<bool> walks_{store::openat2_missing, !GetParam()};
  temp_dir dir_;
};

TEST_P(reading_store, root_must_be_a_directory) {
  dir_.add("file", 1, 1);
  EXPECT_THROW(store::posix_store(dir_ / "nowhere", {}), std::system_error);
  EXPECT_THROW(store::posix_store(dir_ / "file", {}), std::system_error);
}

TEST_P(reading_store, follows_links_inside_the_root_only) {
  dir_.add("outside", 10, 1);
  dir_.add("root/inside", 10, 2);
  dir_.add("root/d/e/f", 10, 3);
  link("inside", "to_inside");
  link("d/e", "to_dir");
  link("../inside", "d/up");
  link("../../d/e/f", "d/e/around");  // up to the root, and down again
  link("../outside", "out");
  link("../../../outside", "d/e/out");
  link(in_root("inside"), "absolute");
  link("/", "slash");
  link("nowhere", "dangling");
  link("loop", "loop");
  link("..", "dotdot");
  link("inside/", "to_inside_slash");
  auto files = make();
  int error = 0;
  EXPECT_EQ(read_all(*files.open("to_inside", 0, &error)), content(2, 0, 10));
  EXPECT_EQ(read_all(*files.open("to_dir/f", 0, &error)), content(3, 0, 10));
  EXPECT_EQ(read_all(*files.open("d/up", 0, &error)), content(2, 0, 10));
  EXPECT_EQ(read_all(*files.open("d/e/around", 0, &error)), content(3, 0, 10));
  EXPECT_EQ(read_all(*files.open("to_dir/../up", 0, &error)), content(2, 0, 10)) << "`..` goes to the directory's parent";
  EXPECT_EQ(error_of(files, "out"), -EXDEV);
  EXPECT_EQ(error_of(files, "d/e/out"), -EXDEV);
  EXPECT_EQ(error_of(files, "absolute"), -EXDEV);
  EXPECT_EQ(error_of(files, "slash/etc/passwd"), -EXDEV);
  EXPECT_EQ(error_of(files, "dotdot/outside"), -EXDEV);
  EXPECT_EQ(error_of(files, "dangling"), -ENOENT);
  EXPECT_EQ(error_of(files, "loop"), -ELOOP);
  EXPECT_EQ(error_of(files, "to_inside", O_NOFOLLOW), -ELOOP);
  EXPECT_EQ(error_of(files, "inside/x"), -ENOTDIR);
  EXPECT_EQ(error_of(files, "to_inside/"), -ENOTDIR);
  EXPECT_EQ(error_of(files, "to_inside_slash"), -ENOTDIR);
}

TEST_P(reading_store, magic_links_do_not_lead_out) {
  dir_.add("outside", 10, 1);
  const int fd = open((dir_ / "outside").c_str(), O_RDONLY);
  store::posix_store files("/proc/self");
  const int error = error_of(files, "fd/" + std::to_string(fd));
  EXPECT_TRUE(error == -ELOOP || error == -EXDEV) << error;
  EXPECT_EQ(error_of(files, "root/etc/passwd"), GetParam() ? -ELOOP : -EXDEV);
  close(fd);
}

TEST_P(reading_store, opens_regular_files_only) {
  std::filesystem::create_directories(in_root("dir/sub"));
  ASSERT_EQ(mkfifo(in_root("fifo").c_str(), 0644), 0);
  const bool have_socket = make_socket(in_root("socket"));
  link("fifo", "to_fifo");
  auto files = make();
  EXPECT_EQ(error_of(files, "dir"), -EISDIR);
  EXPECT_EQ(error_of(files, "dir/"), -EISDIR);
  EXPECT_EQ(error_of(files, "dir/sub/.."), -EISDIR);
  EXPECT_EQ(error_of(files, "fifo"), -EOPNOTSUPP);  // and does not wait for a writer
  EXPECT_EQ(error_of(files, "to_fifo"), -EOPNOTSUPP);
  if (have_socket) {
    EXPECT_EQ(error_of(files, "socket"), -ENXIO);
  }
  if (mknod(in_root("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) {
    EXPECT_EQ(error_of(files, "null"), -ENODEV);
  }
  if (mknod(in_root("none").c_str(), S_IFCHR | 0666, makedev(250, 250)) == 0) {
    EXPECT_EQ(error_of(files, "none"), -ENODEV);
  }
  // With a driver, without one, and one that a container may not open (-EPERM).
  for (const unsigned major : {7u, 8u, 240u}) {
    const std::string name = "block" + std::to_string(major);
    if (mknod(in_root(name).c_str(), S_IFBLK | 0666, makedev(major, 0)) == 0) {
      EXPECT_EQ(error_of(files, name), -ENODEV) << major;
    }
  }
  store::posix_store devices("/dev");
  EXPECT_EQ(error_of(devices, "null"), -ENODEV);
  EXPECT_EQ(error_of(devices, "tty"), -ENODEV);  // opening it fails where there is no terminal
}

// A directory that was gone through a moment ago is another one, or a link, by now.
TEST_P(reading_store, knows_no_way_that_has_changed) {
  dir_.add("outside/a", 20, 1);
  dir_.add("root/d/a", 10, 1);
  dir_.add("root/e/a", 30, 1);
  auto files = make();
  const auto nbytes_of = [&](const char* path) {
    int error = 0;
    const auto file = files.open(path, O_RDONLY, &error);
    return file ? file->info().nbytes : error;
  };
  EXPECT_EQ(nbytes_of("d/a"), 10);
  std::filesystem::rename(in_root("d"), in_root("f"));
  EXPECT_EQ(nbytes_of("d/a"), -ENOENT);
  link("../outside", "d");
  EXPECT_EQ(nbytes_of("d/a"), -EXDEV);
  ASSERT_EQ(mkfifo((dir_ / "outside/b").c_str(), 0644), 0);
  EXPECT_EQ(nbytes_of("d/b"), -EXDEV) << "what lies outside is nobody's to know";
  std::filesystem::remove(in_root("d"));
  link("e", "d");
  EXPECT_EQ(nbytes_of("d/a"), 30);
  std::filesystem::remove(in_root("d"));
  std::filesystem::rename(in_root("f"), in_root("d"));
  EXPECT_EQ(nbytes_of("d/a"), 10);
}

// Who waits to write to a FIFO is not let through by our open, which would end it by SIGPIPE.
TEST_P(reading_store, leaves_alone_who_waits_for_a_fifo) {
  dir_.add("root/d/seen", 10, 1);
  for (const char* name : {"fifo", "d/fifo"}) {
    ASSERT_EQ(mkfifo(in_root(name).c_str(), 0644), 0);
    std::atomic<pid_t> writer_id{0};
    std::atomic<bool> let_through{false};
    ssize_t written = 0;
    std::thread writer([&] {
      sigset_t pipe_signal;
      sigemptyset(&pipe_signal);
      sigaddset(&pipe_signal, SIGPIPE);
      pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
      writer_id = static_cast<pid_t>(::syscall(SYS_gettid));
      const int fd = ::open(in_root(name).c_str(), O_WRONLY);
      let_through = true;
      written = ::write(fd, "hello", 5);
      ::close(fd);
    });
    const auto sleeps = [&] {
      std::ifstream stat("/proc/self/task/" + std::to_string(writer_id) + "/stat");
      std::string id, command, state;
      stat >> id >> command >> state;
      return state == "S";
    };
    EXPECT_TRUE(wait_until([&] { return writer_id != 0 && sleeps(); }));  // in open
    const store::posix_options how{.writable = true};
    store::posix_store files(in_root(""), how);
    EXPECT_EQ(error_of(files, "d/seen"), 0) << "the way to the FIFO is known from now on";
    for (const int flags : {O_RDONLY, O_RDWR, O_WRONLY, O_RDWR | O_CREAT, O_RDONLY | O_NOFOLLOW}) {
      EXPECT_EQ(error_of(files, name, flags), -EOPNOTSUPP) << flags;
      EXPECT_TRUE(wait_until([&] { return let_through || sleeps(); }));
      EXPECT_FALSE(let_through) << flags;
    }
    EXPECT_EQ(error_of(files, name, O_RDWR | O_CREAT | O_EXCL), -EEXIST);
    const int reader = ::open(in_root(name).c_str(), O_RDONLY | O_NONBLOCK);
    writer.join();
    char got[6] = {};
    EXPECT_EQ(::read(reader, got, 5), 5);
    EXPECT_STREQ(got, "hello");
    ::close(reader);
    EXPECT_EQ(written, 5);
  }
}

TEST_P(reading_store, says_when_it_may_not) {
  dir_.add("root/secret", 10, 1);
  dir_.add("root/closed/file", 10, 1);
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  std::filesystem::permissions(in_root("secret"), std::filesystem::perms::none);
  std::filesystem::permissions(in_root("closed"), std::filesystem::perms::none);
  auto files = make();
  {
    const as_ordinary_user ordinary;
    EXPECT_EQ(error_of(files, "secret"), -EACCES);
    EXPECT_EQ(error_of(files, "closed/file"), -EACCES);
  }
  std::filesystem::permissions(in_root("closed"), std::filesystem::perms::all);
}

TEST_P(reading_store, says_when_descriptors_run_out) {
  dir_.add("root/a", 10, 1);
  auto files = make();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  const rlimit few{static_cast<rlim_t>(next), before.rlim_max};
  close(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const int error = error_of(files, "a");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, -EMFILE);
  EXPECT_EQ(error_of(files, "a"), 0);
}

TEST_P(reading_store, opens_the_longest_path) {
  const std::string path = make_deep_file(dir_ / "root", 4095, "down here");
  ASSERT_EQ(path.size(), 4095u);
  auto files = make();
  int error = 0;
  const auto file = files.open(path, 0, &error);
  ASSERT_TRUE(file) << error;
  EXPECT_EQ(read_all(*file).size(), 9u);
  EXPECT_EQ(error_of(files, path + "x"), -ENAMETOOLONG);
}

TEST_P(reading_store, names_are_bytes) {
  const std::string name = "a b\n\xff\xc3\x28'\"\\%s";
  dir_.add("root/" + name, 10, 4);
  auto files = make();
  int error = 0;
  EXPECT_EQ(read_all(*files.open(name, 0, &error)), content(4, 0, 10));
}

TEST_P(reading_store, reads_holes_and_beyond4_gi_b) {
  constexpr std::uint64_t hole = (std::uint64_t{5} << 30) + 123;
  dir_.add_sparse("root/sparse", hole, 1000, 7);
  let_file_times_pass();
  auto files = make();
  int error = 0;
  const auto file = files.open("sparse", 0, &error);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->info().nbytes, static_cast<std::int64_t>(hole + 1000));
  std::vector<std::byte> got(2000);
  ASSERT_EQ(file->pread(got, static_cast<std::int64_t>(hole) - 500), 1500);
  got.resize(1500);
  std::vector<std::byte> want(500);
  const auto tail = content(7, hole, 1000);
  want.insert(want.end(), tail.begin(), tail.end());
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(resolution, reading_store, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "openat2" : "walk"); });

// Versions.

class file_versions : public testing::Test {
 protected:
  file_versions() : files_((dir_.add("a", 10'000, 1), let_file_times_pass(), dir_.path())) {}
  std::unique_ptr<store::open_file> open(const char* path = "a") {
    int error = 0;
    return files_.open(path, 0, &error);
  }
  temp_dir dir_;
  store::posix_store files_;
};

TEST_F(file_versions, changes_make_an_open_file_stale) {
  std::byte some[100];
  const struct {
    const char* what;
    std::function<void()> change;
  } changes[] = {
      {"overwritten", [&] { dir_.overwrite("a", 50, 10, 9); }},
      {"truncated", [&] { dir_.resize("a", 100); }},
      {"grown", [&] { dir_.resize("a", 20'000); }},
      {"touched", [&] { utimensat(AT_FDCWD, (dir_ / "a").c_str(), nullptr, 0); }},
      {"mode changed, which is told from nothing else by ctime", [&] { chmod((dir_ / "a").c_str(), 0600); }},
      {"overwritten, mtime put back",
       [&] {
         struct stat st;
         stat((dir_ / "a").c_str(), &st);
         dir_.overwrite("a", 50, 10, 10);
         const timespec times[] = {st.st_atim, st.st_mtim};
         utimensat(AT_FDCWD, (dir_ / "a").c_str(), times, 0);
       }},
  };
  for (const auto& [what, change] : changes) {
    dir_.add("a", 10'000, 1);
    let_file_times_pass();
    const auto file = open();
    ASSERT_TRUE(file->info().settled);
    ASSERT_EQ(file->check_version(), 0) << what;
    change();
    EXPECT_EQ(file->check_version(), -ESTALE) << what;
    EXPECT_EQ(file->pread(some, 0), -ESTALE) << what;
    EXPECT_EQ(file->pread({}, 0), -ESTALE) << what;
    let_file_times_pass();
    EXPECT_EQ(open()->check_version(), 0) << what << ": a new open sees the new version";
  }
}

TEST_F(file_versions, an_unlinked_or_replaced_file_keeps_its_bytes) {
  const auto file = open();
  ASSERT_EQ(link((dir_ / "a").c_str(), (dir_ / "b").c_str()), 0);
  EXPECT_EQ(file->check_version(), 0) << "linked";
  dir_.add("new", 10, 2);
  ASSERT_EQ(rename((dir_ / "new").c_str(), (dir_ / "a").c_str()), 0);
  EXPECT_EQ(file->check_version(), 0) << "replaced by a rename";
  ASSERT_EQ(unlink((dir_ / "b").c_str()), 0);
  EXPECT_EQ(file->check_version(), 0) << "unlinked";
  EXPECT_EQ(read_all(*file), content(1, 0, 10'000));
  const auto replaced = open();
  EXPECT_NE(replaced->info().inode, file->info().inode);
  EXPECT_EQ(read_all(*replaced), content(2, 0, 10));
}

TEST_F(file_versions, links_come_and_go_while_many_look) {
  const auto file = open();
  std::atomic<bool> done{false};
  std::vector<std::thread> lookers;
  std::atomic<int> nstale{0};
  for (int i = 0; i < 3; ++i) {
    lookers.emplace_back([&] {
      while (!done) nstale += file->check_version() != 0;
    });
  }
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(link((dir_ / "a").c_str(), (dir_ / "b").c_str()), 0);
    ASSERT_EQ(unlink((dir_ / "b").c_str()), 0);
  }
  done = true;
  for (std::thread& t : lookers) t.join();
  // A look can come between a link and an unlink that leave the count as it was; then the change cannot be told from a write,
  // and the file counts as stale for good. Anything else would be a stale verdict that goes away again.
  const int last = file->check_version();
  EXPECT_TRUE(nstale == 0 || last == -ESTALE);
}

TEST_F(file_versions, a_fresh_change_is_not_settled) {
  dir_.add("fresh", 10, 1);
  EXPECT_FALSE(open("fresh")->info().settled);
  let_file_times_pass();
  EXPECT_TRUE(open("fresh")->info().settled);
  // An old mtime does not hide a fresh ctime.
  const timespec old[] = {{1000, 5}, {1000, 5}};
  ASSERT_EQ(utimensat(AT_FDCWD, (dir_ / "fresh").c_str(), old, 0), 0);
  EXPECT_FALSE(open("fresh")->info().settled);
}

TEST(settled, windows) {
  constexpr std::uint64_t s = 1'000'000'000, now = 1'000'000 * s + 500'000'000, ms = 1'000'000;
  using store::is_settled;
  EXPECT_TRUE(is_settled(now - 21 * ms, now - 21 * ms, now));
  EXPECT_FALSE(is_settled(now - 19 * ms, now - 21 * ms, now));
  EXPECT_FALSE(is_settled(now - 21 * ms, now - 19 * ms, now));
  EXPECT_FALSE(is_settled(now - 21 * ms, now + 3600 * s + 1, now)) << "a ctime ahead of us is doubtful";
  EXPECT_TRUE(is_settled(now + 3600 * s, now - 21 * ms, now)) << "an mtime ahead of us was set by somebody";
  EXPECT_FALSE(is_settled(now - 500 * ms, now - 500 * ms, now)) << "whole seconds: a coarse file system";
  EXPECT_TRUE(is_settled(now - 500 * ms - 3 * s, now - 500 * ms - 3 * s, now));
}

TEST(read_loop, goes_on_after_short_reads_and_signals) {
  const auto bytes = content(3, 0, 1000);
  random_source draw(5);
  int nsignals = 0;
  std::vector<std::byte> got(900);
  const auto n = store::read_fully(
      [&](std::byte* to, std::size_t nbytes, std::int64_t at) -> std::int64_t {
        if (draw.percent(30)) return ++nsignals, -EINTR;
        const std::size_t some = draw.between(1, std::min<std::size_t>(nbytes, 100));
        std::memcpy(to, bytes.data() + at, some);
        return static_cast<std::int64_t>(some);
      },
      got, 50);
  EXPECT_EQ(n, 900);
  EXPECT_GT(nsignals, 0);
  EXPECT_EQ(got, content(3, 50, 900));
  const auto ends = [](std::byte*, std::size_t, std::int64_t at) -> std::int64_t { return at < 60 ? 5 : 0; };
  EXPECT_EQ(store::read_fully(ends, got, 50), -ESTALE);
  const auto breaks = [](std::byte*, std::size_t, std::int64_t at) -> std::int64_t { return at < 60 ? 5 : -EIO; };
  EXPECT_EQ(store::read_fully(breaks, got, 50), -EIO);
}

TEST(direct, says_what_it_did) {
  for (const char* place : {"/tmp", "/dev/shm"}) {
    if (!std::filesystem::exists(place)) continue;
    const std::string name = std::string(place) + "/gpufs-direct-" + std::to_string(getpid());
    {
      const int fd = open(name.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
      const auto bytes = content(6, 0, 10'001);
      ASSERT_EQ(write(fd, bytes.data(), bytes.size()), 10'001);
      fsync(fd);
      close(fd);
    }
    let_file_times_pass();
    store::posix_store files(place, {.direct = true});
    int error = 0;
    const auto file = files.open(name.substr(std::strlen(place)), 0, &error);
    ASSERT_TRUE(file) << error;
    EXPECT_NE(file->info().reason.find("O_DIRECT"), std::string::npos) << file->info().reason;
    EXPECT_EQ(file->alignment() > 1, (fcntl(file->descriptor(), F_GETFL) & O_DIRECT) != 0);
    EXPECT_EQ(read_all(*file), content(6, 0, 10'001));
    unlink(name.c_str());
  }
}

}  // namespace
}  // namespace gpufs::test
