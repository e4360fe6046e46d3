// SPDX-License-Identifier: Apache-2.0
// Files that stores open for writing: which flags do what, what is refused, and that nothing outside of the root is made or
// changed. Each runs with openat2 and with the walk that replaces it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>

#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nil_store.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {
namespace {

constexpr int write_once = names::open_write_once;

class writing_store : public testing::TestWithParam<bool> {
 protected:
  writing_store() { std::filesystem::create_directory(dir_ / "root"); }
  store::posix_options options() const { return {.writable = true}; }
  store::posix_store make() const { return store::posix_store(dir_ / "root", options()); }
  std::string in_root(const std::string& name) const { return dir_ / ("root/" + name); }
  std::vector<std::byte> bytes_of(const std::string& name) const { return file_bytes(in_root(name)); }
  void link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(symlink(target.c_str(), in_root(name).c_str()), 0);
  }
  const set_meanwhile<bool> walks_{store::openat2_missing, !GetParam()};
  temp_dir dir_;
};

std::unique_ptr<store::open_file> open(store::store& files, std::string_view path, int flags) {
  int error = 0;
  auto file = files.open(path, flags, &error);
  EXPECT_TRUE(file) << path << ": " << error;
  return file;
}

TEST_P(writing_store, writes_what_is_read_back) {
  auto files = make();
  const auto file = open(files, "new", O_RDWR | O_CREAT);
  ASSERT_TRUE(file);
  const store::file_info& info = file->info();
  EXPECT_TRUE(info.live);
  EXPECT_FALSE(info.settled);
  EXPECT_EQ(info.kind, source_kind::staged);
  EXPECT_EQ(info.nbytes, 0);
  EXPECT_EQ(info.reason, "staged: it is open for writing");
  EXPECT_EQ(file->pwrite(content(1, 0, 10'000), 5), 0);
  std::vector<std::byte> got(20'000);
  EXPECT_EQ(file->pread(got, 5), 10'000);
  got.resize(10'000);
  EXPECT_EQ(got, content(1, 0, 10'000));
  EXPECT_EQ(file->pread(got, 10'005), 0);
  EXPECT_EQ(file->pread(got, 1 << 30), 0);
  EXPECT_EQ(file->check_version(), 0);
  EXPECT_EQ(file->pwrite({}, 1 << 20), 0);
  EXPECT_EQ(file->sync(true), 0);
  EXPECT_EQ(file->sync(false), 0);
  EXPECT_EQ(file->truncate(100), 0);
  EXPECT_EQ(bytes_of("new").size(), 100u);
  EXPECT_EQ(file->check_version(), 0) << "there is no version to lose";
  EXPECT_EQ(file->truncate(-1), -EINVAL);
  EXPECT_EQ(file->pwrite(got, -1), -EINVAL);
  EXPECT_EQ(file->pread(got, -1), -EINVAL);
  EXPECT_EQ(file->pwrite(got, std::numeric_limits<std::int64_t>::max() - 20'000), -EFBIG);
}

TEST_P(writing_store, flags_do_what_they_say) {
  auto files = make();
  EXPECT_EQ(error_of(files, "a", O_RDWR), -ENOENT);
  EXPECT_EQ(error_of(files, "a", O_WRONLY | O_CREAT | O_EXCL), 0);
  EXPECT_EQ(error_of(files, "a", O_WRONLY | O_CREAT | O_EXCL), -EEXIST);
  dir_.add("root/a", 1000, 1);
  EXPECT_EQ(open(files, "a", O_RDWR | O_CREAT)->info().nbytes, 1000);
  EXPECT_EQ(open(files, "a", O_RDWR | O_APPEND)->info().nbytes, 1000);
  const auto appending = open(files, "a", O_RDWR | O_APPEND);
  EXPECT_EQ(appending->pwrite(content(2, 0, 10), 0), 0);
  EXPECT_EQ(bytes_of("a").size(), 1000u) << "where to append is the device's concern, not the kernel's";
  EXPECT_EQ(open(files, "a", O_WRONLY | O_TRUNC)->info().nbytes, 0);
  EXPECT_EQ(bytes_of("a").size(), 0u);
  dir_.add("root/a", 1000, 1);
  EXPECT_EQ(open(files, "a", O_RDWR | O_CREAT | O_TRUNC)->info().nbytes, 0);
  EXPECT_EQ(error_of(files, "a", O_WRONLY | write_once), 0);
  EXPECT_EQ(error_of(files, "a", O_RDWR | O_EXCL), 0);
  EXPECT_EQ(error_of(files, "a", O_RDONLY | O_APPEND), 0);
  for (const int flags : {O_RDONLY | O_CREAT, O_RDONLY | O_TRUNC, O_RDONLY | write_once, O_ACCMODE, O_RDWR | O_DIRECTORY,
                          O_RDWR | O_TMPFILE, O_RDWR | O_PATH, O_RDWR | O_SYNC, O_RDWR | O_DSYNC, O_RDWR | O_ASYNC, -1}) {
    EXPECT_EQ(error_of(files, "a", flags), -EINVAL) << flags;
    EXPECT_EQ(error_of(files, "none", flags), -EINVAL) << flags;
  }
  EXPECT_FALSE(std::filesystem::exists(in_root("none")));
  const auto direct = open(files, "a", O_RDWR | O_DIRECT);
  EXPECT_EQ(direct->alignment(), 1u);
  EXPECT_NE(direct->info().reason.find("O_DIRECT"), std::string::npos) << direct->info().reason;
}

TEST_P(writing_store, new_files_get_the_umask) {
  auto files = make();
  const mode_t before = umask(027);
  const auto file = open(files, "a", O_RDWR | O_CREAT);
  umask(before);
  EXPECT_EQ(file->info().mode, S_IFREG | 0640u);
}

TEST_P(writing_store, a_store_that_may_not_write_does_not) {
  dir_.add("root/a", 1000, 1);
  store::posix_store files(dir_ / "root");
  for (const int flags : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_RDWR | O_CREAT, O_WRONLY | write_once}) {
    EXPECT_EQ(error_of(files, "a", flags), -EROFS) << flags;
    EXPECT_EQ(error_of(files, "b", flags), -EROFS) << flags;
  }
  const auto file = open(files, "a", O_RDONLY);
  EXPECT_EQ(file->pwrite(content(1, 0, 1), 0), -EBADF);
  EXPECT_EQ(file->sync(false), -EBADF);
  EXPECT_EQ(file->truncate(0), -EBADF);
  EXPECT_EQ(bytes_of("a"), content(1, 0, 1000));
  EXPECT_FALSE(std::filesystem::exists(in_root("b")));
}

TEST_P(writing_store, refuses_what_reading_refuses) {
  dir_.add("outside", 10, 1);
  dir_.add("root/a", 10, 1);
  std::filesystem::create_directories(in_root("dir/sub"));
  ASSERT_EQ(mkfifo(in_root("fifo").c_str(), 0644), 0);
  const bool have_socket = make_socket(in_root("socket"));
  link("../outside", "out");
  link("../made", "out_dangling");
  link(dir_ / "made", "absolute");
  link("loop", "loop");
  link("a", "to_a");
  auto files = make();
  for (const int flags : {O_RDWR, O_WRONLY | O_TRUNC, O_RDWR | O_CREAT | O_TRUNC, O_WRONLY | write_once}) {
    const bool creates = (flags & O_CREAT) != 0;
    EXPECT_EQ(error_of(files, "", flags), -ENOENT) << flags;
    EXPECT_EQ(error_of(files, "/", flags), -EISDIR) << flags;
    EXPECT_EQ(error_of(files, ".", flags), -EISDIR) << flags;
    EXPECT_EQ(error_of(files, "dir", flags), -EISDIR) << flags;
    EXPECT_EQ(error_of(files, "dir/", flags), -EISDIR) << flags;
    EXPECT_EQ(error_of(files, "a/", flags), creates ? -EISDIR : -ENOTDIR) << flags;
    EXPECT_EQ(error_of(files, "none/", flags), creates ? -EISDIR : -ENOENT) << flags;
    EXPECT_EQ(error_of(files, "none/b", flags), -ENOENT) << flags;
    EXPECT_EQ(error_of(files, "a/b", flags), -ENOTDIR) << flags;
    EXPECT_EQ(error_of(files, "fifo", flags), -EOPNOTSUPP) << flags;
    if (have_socket) {
      EXPECT_EQ(error_of(files, "socket", flags), -ENXIO) << flags;
    }
    EXPECT_EQ(error_of(files, "out", flags), -EXDEV) << flags;
    EXPECT_EQ(error_of(files, "out_dangling", flags), -EXDEV) << flags;
    EXPECT_EQ(error_of(files, "absolute", flags), -EXDEV) << flags;
    EXPECT_EQ(error_of(files, "../outside", flags), -EXDEV) << flags;
    EXPECT_EQ(error_of(files, "dir/../../made", flags), -EXDEV) << flags;
    EXPECT_EQ(error_of(files, "loop", flags), -ELOOP) << flags;
    EXPECT_EQ(error_of(files, "to_a", flags | O_NOFOLLOW), -ELOOP) << flags;
    EXPECT_EQ(error_of(files, std::string(256, 'x'), flags), -ENAMETOOLONG) << flags;
  }
  if (mknod(in_root("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) {
    EXPECT_EQ(error_of(files, "null", O_WRONLY | O_CREAT | O_TRUNC), -ENODEV);
  }
  for (const char* name : {"dir", "fifo", "out", "to_a", "loop", "out_dangling"}) {
    EXPECT_EQ(error_of(files, name, O_RDWR | O_CREAT | O_EXCL), -EEXIST) << name;
  }
  EXPECT_EQ(bytes_of("a"), content(1, 0, 10)) << "O_TRUNC met nothing that it may truncate";
  EXPECT_EQ(file_bytes(dir_ / "outside"), content(1, 0, 10));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "made"));
}

TEST_P(writing_store, makes_the_target_of_a_dangling_link_below_the_root) {
  std::filesystem::create_directories(in_root("d/e"));
  link("../target", "d/dangling");
  link("target2/", "dangling_slash");
  auto files = make();
  EXPECT_EQ(error_of(files, "d/dangling", O_RDWR), -ENOENT);
  const auto file = open(files, "d/dangling", O_RDWR | O_CREAT);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->pwrite(content(3, 0, 10), 0), 0);
  EXPECT_EQ(bytes_of("target"), content(3, 0, 10));
  EXPECT_EQ(error_of(files, "dangling_slash", O_RDWR | O_CREAT), -EISDIR);
  EXPECT_EQ(error_of(files, "d/e/../../up", O_RDWR | O_CREAT), 0);
  EXPECT_TRUE(std::filesystem::exists(in_root("up")));
}

TEST_P(writing_store, says_when_it_may_not) {
  dir_.add("root/read_only", 10, 1);
  dir_.add("root/write_only", 10, 1);
  std::filesystem::create_directory(in_root("closed"));
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  chmod(in_root("read_only").c_str(), 0444);
  chmod(in_root("write_only").c_str(), 0222);
  chmod(in_root("closed").c_str(), 0555);
  auto files = make();
  const as_ordinary_user ordinary;
  EXPECT_EQ(error_of(files, "read_only", O_RDWR), -EACCES);
  EXPECT_EQ(error_of(files, "read_only", O_WRONLY | write_once), -EACCES);
  EXPECT_EQ(error_of(files, "write_only", O_WRONLY), -EACCES) << "its pages could not be read in";
  EXPECT_EQ(error_of(files, "closed/new", O_RDWR | O_CREAT), -EACCES);
  const auto file = open(files, "write_only", O_WRONLY | write_once);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->pwrite(content(2, 0, 5), 0), 0);
  std::byte some[10];
  EXPECT_EQ(file->pread(some, 0), -EBADF);
}

// EPERM is the file's own here, and not how a container refuses openat2.
TEST_P(writing_store, says_when_a_file_is_immutable) {
  dir_.add("root/a", 10, 1);
  const int fd = ::open(in_root("a").c_str(), O_RDONLY | O_CLOEXEC);
  int flags = 0, immutable = FS_IMMUTABLE_FL;
  const bool set = ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && ioctl(fd, FS_IOC_SETFLAGS, &immutable) == 0;
  if (set) {
    auto files = make();
    EXPECT_EQ(error_of(files, "a", O_RDWR), -EPERM);
    EXPECT_EQ(files.unlink("a", false), -EPERM);
    store::posix_store proc("/proc/self");
    EXPECT_EQ(error_of(proc, "root/etc/passwd"), GetParam() ? -ELOOP : -EXDEV) << "resolves as before";
    ioctl(fd, FS_IOC_SETFLAGS, &flags);
  }
  close(fd);
  if (!set) GTEST_SKIP() << "may not make a file immutable";
}

TEST_P(writing_store, a_file_keeps_what_is_written_wherever_its_path_goes) {
  auto files = make();
  const auto file = open(files, "a", O_RDWR | O_CREAT);
  std::filesystem::rename(in_root("a"), in_root("b"));
  dir_.add("root/a", 10, 1);
  EXPECT_EQ(file->pwrite(content(2, 0, 20), 0), 0);
  EXPECT_EQ(bytes_of("a"), content(1, 0, 10));
  EXPECT_EQ(bytes_of("b"), content(2, 0, 20));
  std::filesystem::remove(in_root("b"));
  EXPECT_EQ(file->pwrite(content(2, 20, 20), 20), 0);
  std::vector<std::byte> got(40);
  EXPECT_EQ(file->pread(got, 0), 40);
  EXPECT_EQ(got, content(2, 0, 40));
}

// A write past RLIMIT_FSIZE writes what fits, then fails.
TEST_P(writing_store, says_when_a_file_may_not_grow) {
  const auto files = make();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5000, 5000};
    setrlimit(RLIMIT_FSIZE, &limit);
    store::posix_store own(dir_ / "root", options());
    int error = 0;
    const auto file = own.open("a", O_RDWR | O_CREAT, &error);
    const std::vector<std::byte> bytes(4096);
    const bool right = file && file->pwrite(bytes, 0) == 0 && file->pwrite(bytes, 4096) == -EFBIG &&
                       file->truncate(6000) == -EFBIG && file->pwrite(bytes, 8192) == -EFBIG && file->pwrite(bytes, 0) == 0;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes_of("a").size(), 5000u);
}

TEST_P(writing_store, says_when_the_file_system_is_full) {
  const small_tmpfs full(in_root(""), 64 << 10);
  if (!full.mounted()) GTEST_SKIP() << "may not mount";
  auto files = make();
  const auto file = open(files, "a", O_RDWR | O_CREAT);
  int error = 0;
  std::int64_t offset = 0;
  for (; error == 0 && offset < 1 << 20; offset += 4096)
    error = file->pwrite(content(1, static_cast<std::uint64_t>(offset), 4096), offset);
  EXPECT_EQ(error, -ENOSPC);
  EXPECT_LE(offset, 68 << 10);
  EXPECT_EQ(file->truncate(0), 0);
  EXPECT_EQ(file->pwrite(content(1, 0, 4096), 0), 0) << "there is room again";
}

// Another process swaps a directory for a link out of the root and back, as fast as it can.
TEST_P(writing_store, stays_below_the_root_while_links_are_swapped_in) {
  std::filesystem::create_directories(dir_ / "outside");
  std::filesystem::create_directories(in_root("d"));
  dir_.add("outside/old", 10, 1);
  dir_.add("root/d/old", 10, 2);
  auto files = make();
  std::atomic<bool> ends{false};
  std::thread swapper([&] { swap_with_link_until(ends, in_root("d"), dir_ / "outside"); });
  int ndone = 0, nrefused = 0;
  // More where the swapper has not run meanwhile.
  for (int i = 0; i < 3000 || ((ndone == 0 || nrefused == 0) && i < 1'000'000); ++i) {
    const bool link_last = i % 3 == 2;  // a link at the path's end
    const std::string path = link_last ? "d" : i % 3 == 1 ? "d/old" : "d/new" + std::to_string(i);
    int error = 0;
    const auto file = files.open(path, O_RDWR | O_CREAT | (i % 2 == 0 ? O_TRUNC : 0), &error);
    if (file) {
      EXPECT_EQ(file->pwrite(content(3, 0, 5), 0), 0);
    }
    ++(file ? ndone : nrefused);
  }
  ends = true;
  swapper.join();
  EXPECT_GT(ndone, 0);
  EXPECT_GT(nrefused, 0);
  EXPECT_EQ(names_in(dir_ / "outside"), std::vector<std::string>{"old"});
  EXPECT_EQ(file_bytes(dir_ / "outside/old"), content(1, 0, 10));
}

INSTANTIATE_TEST_SUITE_P(resolution, writing_store, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "openat2" : "walk"); });

// Files on a disk; temporary files may be in memory.
TEST(stores_that_write, mapped_and_auto_stage_what_is_on_a_disk) {
  const temp_dir dir(std::filesystem::current_path());
  if (is_tmpfs(dir.path())) GTEST_SKIP() << "the working directory is in memory";
  dir.add("a", 1 << 20, 1);
  let_file_times_pass();
  store::mapped_store mapped(simt::cpu_platform(), dir.path(), 0, {.writable = true});
  store::auto_store chosen(simt::cpu_platform(), dir.path(), 0, {.posix = {.writable = true}, .small_file_nbytes = 0});
  for (store::store* files : {static_cast<store::store*>(&mapped), static_cast<store::store*>(&chosen)}) {
    constexpr int prepared = static_cast<int>(names::open_prepared);
    EXPECT_EQ(open(*files, "a", O_RDONLY | prepared)->info().kind, source_kind::pull) << files->name();
    const auto file = open(*files, "a", O_RDWR);
    EXPECT_EQ(file->info().kind, source_kind::staged) << files->name();
    EXPECT_EQ(file->info().reason, "staged: it is open for writing, and not mapped: it is not in memory (tmpfs)");
    EXPECT_EQ(file->note_written_in_place(1, false), -EBADF);
    EXPECT_EQ(file->pwrite(content(2, 0, 10), 0), 0);
    EXPECT_EQ(error_of(*files, "new", O_RDWR | O_CREAT | O_EXCL), 0);
    EXPECT_EQ(files->unlink("new", false), 0);
    let_file_times_pass();
  }
  store::mapped_store reads(simt::cpu_platform(), dir.path());
  EXPECT_EQ(error_of(reads, "a", O_RDWR), -EROFS);
  EXPECT_EQ(reads.unlink("a", false), -EROFS);
}

// In memory: the mapping is shared and kept; who cuts the file is noticed, once, and the next open maps it anew.
TEST(stores_that_write, mapped_and_auto_map_what_is_in_memory) {
  const temp_dir dir(memory_directory());
  if (!is_tmpfs(dir.path())) GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  constexpr std::int64_t nbytes = 10 * 4096 + 1;
  const auto cut = [&](std::int64_t to) {
    EXPECT_EQ(::truncate((dir / "a").c_str(), to), 0);
    EXPECT_EQ(::truncate((dir / "a").c_str(), nbytes), 0);
  };
  store::mapped_store mapped(simt::cpu_platform(), dir.path(), 0, {.writable = true});
  store::auto_store chosen(simt::cpu_platform(), dir.path(), 0, {.posix = {.writable = true}, .small_file_nbytes = 0});
  for (store::store* files : {static_cast<store::store*>(&mapped), static_cast<store::store*>(&chosen)}) {
    dir.add("a", nbytes, 1);
    const auto first = open(*files, "a", O_RDWR), second = open(*files, "a", O_RDWR);
    ASSERT_NE(first->info().pull_base, nullptr) << first->info().reason;
    EXPECT_EQ(first->info().pull_base, second->info().pull_base);
    EXPECT_TRUE(first->info().live);
    for (const bool last : {false, true}) EXPECT_EQ(first->note_written_in_place(nbytes, last), 0);
    EXPECT_EQ(first->truncate(6 * 4096), 0);  // its own cut is none of others
    EXPECT_EQ(first->note_written_in_place(nbytes, true), 0);
    EXPECT_EQ(second->note_written_in_place(5 * 4096, true), 0) << "nothing was stored beyond the cut";
    for (const bool last : {false, true}) EXPECT_EQ(second->note_written_in_place(7 * 4096, last), -EIO);
    EXPECT_EQ(first->note_written_in_place(-1, true), -EINVAL);
    cut(0);
    EXPECT_EQ(first->note_written_in_place(4096, true), -EIO);
    const auto holes = open(*files, "a", O_RDWR);
    EXPECT_EQ(holes->info().pull_base, nullptr);
    EXPECT_EQ(holes->info().reason, "staged: it is open for writing, and not mapped: it has holes");
    dir.overwrite("a", 0, nbytes, 2);
    const auto anew = open(*files, "a", O_RDWR);
    ASSERT_NE(anew->info().pull_base, nullptr) << anew->info().reason;
    EXPECT_NE(anew->info().pull_base, first->info().pull_base);
    EXPECT_EQ(anew->note_written_in_place(nbytes, true), 0);
    EXPECT_TRUE(std::equal(anew->info().pull_base, anew->info().pull_base + nbytes, content(2, 0, nbytes).begin()));
  }
}

// A kernel that looks for memory cuts nothing, whether or not the mapping may be locked.
TEST(stores_that_write, reclaim_is_no_cut) {
  const temp_dir dir(memory_directory());
  if (!is_tmpfs(dir.path())) GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  constexpr std::int64_t nbytes = 10 * 4096;
  const auto reclaim = [&](bool may_lock) {
    store::mapped_store files(simt::cpu_platform(), dir.path(), 0, {.writable = true});
    dir.add("a", nbytes, 1);
    const auto file = open(files, "a", O_RDWR);
    ASSERT_NE(file->info().pull_base, nullptr) << file->info().reason;
    auto* memory = const_cast<std::byte*>(file->info().pull_base);
    std::memset(memory, 7, nbytes);
    EXPECT_EQ(file->note_written_in_place(nbytes, false), 0);  // our page faults have changed ctime, which a device's stores do not
    const bool is_locked = ::madvise(memory, nbytes, MADV_PAGEOUT) != 0;
    EXPECT_FALSE(is_locked && !may_lock);
    EXPECT_EQ(file->note_written_in_place(nbytes, true), 0) << (is_locked ? "locked" : "not locked");
    EXPECT_EQ(::truncate((dir / "a").c_str(), 4096), 0);
    EXPECT_EQ(::truncate((dir / "a").c_str(), nbytes), 0);
    EXPECT_EQ(file->note_written_in_place(nbytes, true), -EIO);
  };
  reclaim(true);
  // Capabilities are a thread's, and those that it starts have them from it.
  std::thread([&] {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &none), 0);
    reclaim(false);
    EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  }).join();
}

TEST(stores_that_write, others_do_not) {
  store::nil_store nil(100);
  store::mem_store mem(simt::cpu_platform());
  mem.put("a", content(1, 0, 10));
  for (store::store* files : {static_cast<store::store*>(&nil), static_cast<store::store*>(&mem)}) {
    EXPECT_EQ(error_of(*files, "a", O_RDWR), -EROFS);
    EXPECT_EQ(files->unlink("a", false), -EROFS);
  }
}

}  // namespace
}  // namespace gpufs::test
