// SPDX-License-Identifier: Apache-2.0
// What bad input gets: each has its own negative errno in the kernel, in bounded time, is counted, and leaves the mount usable.
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "file/bad_input.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

INSTANTIATE_TEST_SUITE_P(stores, bad_input, every_store(), store_name);

TEST_P(bad_input, missing) {
  expect_open("missing", ENOENT);
  expect_open("no/such/directory", ENOENT);
  expect_open("good/below_a_file", ENOTDIR);
}

TEST_P(bad_input, directory) {
  std::filesystem::create_directory(dir / "directory");
  expect_open("directory", EISDIR);
  expect_open("directory/", EISDIR);
  expect_open(".", EISDIR);
}

TEST_P(bad_input, fifo) {  // nobody writes to it: an open that waits for a writer would never end
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0644), 0);
  expect_open("fifo", EOPNOTSUPP);
}

TEST_P(bad_input, socket) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir / "socket";
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_open("socket", ENXIO);
  ::close(fd);
}

TEST_P(bad_input, device) {
  if (mknod((dir / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) GTEST_SKIP() << "making a device needs CAP_MKNOD";
  expect_open("null", ENODEV);
}

TEST_P(bad_input, symbolic_link_out_of_the_root) {
  temp_dir outside;
  outside.add("secret", 100, 1);
  std::filesystem::create_directory(dir / "sub");
  std::filesystem::create_symlink(outside / "secret", dir / "absolute");
  std::filesystem::create_symlink("../" + std::filesystem::path(outside.path()).filename().string() + "/secret", dir / "relative");
  std::filesystem::create_symlink("../../x", dir / "sub/up");
  std::filesystem::create_directory_symlink(outside.path(), dir / "directory");
  expect_open("absolute", EXDEV);
  expect_open("relative", EXDEV);
  expect_open("sub/up", EXDEV);
  expect_open("directory/secret", EXDEV);
  std::filesystem::create_symlink("loop", dir / "loop");
  expect_open("loop", ELOOP);
  std::filesystem::create_symlink("../good", dir / "sub/inside");  // stays below the root
  players warp(fs().ref(), {});
  script s;
  s.open(0, "sub/inside");
  const auto read = s.pread(0, 100, 0);
  s.close(0);
  EXPECT_EQ(warp.run(s)[read].value, 100);
}

TEST_P(bad_input, dot_dot_out_of_the_root) {
  std::filesystem::create_directory(dir / "sub");
  expect_open("..", EXDEV);
  expect_open("../" + std::filesystem::path(dir.path()).filename().string() + "/good", EXDEV);
  expect_open("sub/../../x", EXDEV);
}

// Takes the capabilities that ignore permissions from the calling thread, and so from the host threads of mounts made meanwhile.
class no_override {
 public:
  no_override() {
    header_.version = _LINUX_CAPABILITY_VERSION_3;
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct now[2] = {before_[0], before_[1]};
    now[0].effective &= ~((1u << CAP_DAC_OVERRIDE) | (1u << CAP_DAC_READ_SEARCH));
    syscall(SYS_capset, &header_, now);
  }
  ~no_override() { syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_{};
  __user_cap_data_struct before_[2] = {};
};

TEST_P(bad_input, no_permission) {
  dir.add("closed", 100, 1);
  dir.add("locked/file", 100, 1);
  ASSERT_EQ(chmod((dir / "closed").c_str(), 0), 0);
  ASSERT_EQ(chmod((dir / "locked").c_str(), 0), 0);
  {
    const no_override as_user;
    const int fd = ::open((dir / "closed").c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      ::close(fd);
      GTEST_SKIP() << "permissions do not bind this process";
    }
    fs();
  }
  expect_open("closed", EACCES);
  expect_open("locked/file", EACCES);
  ASSERT_EQ(chmod((dir / "locked").c_str(), 0700), 0);
}

TEST_P(bad_input, path_too_long) {
  expect_open(std::string(4096, 'x'), ENAMETOOLONG);
  expect_open(std::string(100000, '/') + "good", ENAMETOOLONG);
  std::string slashes = "good";
  slashes.insert(0, 4096 - slashes.size(), '/');
  expect_open(slashes, ENAMETOOLONG);
  expect_open(std::string(256, 'x'), ENAMETOOLONG);  // a component over NAME_MAX
}

TEST_P(bad_input, path_of_4095_bytes_works) {
  // 16 directories of 250 bytes, made one below the other: the whole path is longer than the kernel takes at once.
  std::string path;
  int at = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < 16; ++i) {
    const std::string name(250, static_cast<char>('a' + i));
    ASSERT_EQ(mkdirat(at, name.c_str(), 0755), 0);
    const int next = openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ::close(at);
    at = next;
    path += name + "/";
  }
  const std::string last(4095 - path.size(), 'z');
  const int fd = openat(at, last.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  ASSERT_GE(fd, 0);
  const auto bytes = content(3, 0, 5000);
  ASSERT_EQ(write(fd, bytes.data(), bytes.size()), 5000);
  ::close(fd);
  ::close(at);
  path += last;
  ASSERT_EQ(path.size(), 4095u);
  for (const group_kind kind : {group_kind::thread, group_kind::warp, group_kind::block}) {
    players groups(fs().ref(), {.grid = 1, .block = 32, .all = kind});
    script s;
    s.open(0, path);
    const auto read = s.pread(0, 5000, 0);
    s.close(0);
    for (const auto& got : groups.run_all(s)) {
      EXPECT_EQ(got[read].value, 5000);
      EXPECT_EQ(wrong_bytes(got[read], 5000, 3, 0), 0u);
    }
  }
}

TEST_P(bad_input, empty_path) { expect_open("", ENOENT); }
TEST_P(bad_input, null_path) { expect_open(std::nullopt, EFAULT); }

TEST_P(bad_input, flags_that_write) {
  for (const int flags : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_RDWR | O_CREAT | O_EXCL})
    expect_open("good", EROFS, flags);
  expect_open("made", EROFS, O_CREAT | O_RDWR);
  EXPECT_FALSE(std::filesystem::exists(dir / "made"));
}

TEST_P(bad_input, flags_that_mean_something_else) {
  expect_open("good", EINVAL, O_PATH);
  expect_open("good", EINVAL, O_DIRECTORY);
}

TEST_P(bad_input, closed_number) {
  players warp(fs().ref(), {});
  script s;
  s.open(0, "good");
  s.pread(0, 100, 0);
  s.close(0);
  const auto first = s.pread(0, 100, 0);
  s.map(0, 0, 0, 0);
  s.fstat(0);
  s.close(0);
  const std::uint64_t before = fs().counters().bad_file_numbers;
  const auto got = warp.run(s);
  EXPECT_EQ(got[2].value, 0);
  for (std::size_t i = first; i < got.size(); ++i) EXPECT_EQ(got[i].value, -EBADF) << "call " << i;
  EXPECT_EQ(fs().counters().bad_file_numbers - before, 4u);
}

// Every thread tries many numbers; only the open one may pass.
struct forge_numbers {
  mount_ref fs;
  std::int32_t real;
  std::uint32_t tries;
  std::uint64_t seed;
  std::uint32_t* passed;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    for (std::uint32_t i = 0; i < tries; ++i) {
      const std::uint64_t draw = content_word(seed, me * tries + i);
      auto number = static_cast<std::int32_t>(draw);
      if (i % 2 == 1) number = real ^ (1 << (draw % 32));  // one bit off
      if (number == real) continue;
      const file forged(fs, file_number{number});
      std::byte byte;
      switch ((draw >> 40) % 4) {
        case 0:
          note(pread(this_thread(), forged, &byte, 1, 0), number);
          break;
        case 1:
          note(fstat(this_thread(), forged).error, number);
          break;
        case 2:
          note(map_page(this_thread(), forged, 0).error(), number);
          break;
        default:
          note(close(this_thread(), forged), number);
          break;
      }
    }
  }
  // What is a negative errno stands for a file that did not open for that reason.
  GPUFS_DEVICE void note(std::int64_t result, std::int32_t number) const {
    const bool is_error = number < 0 && number > -4096;
    if (result != (is_error ? number : -EBADF)) simt::atomic_ref<std::uint32_t>(*passed).fetch_add(1, std::memory_order_relaxed);
  }
};

TEST_P(bad_input, forged_numbers) {
  players warp(fs().ref(), {});
  script opening, closing;
  opening.open(0, "good");
  const auto read = closing.pread(0, 100, 50);
  const auto end = closing.close(0);
  const auto number = static_cast<std::int32_t>(warp.run(opening)[0].value);
  ASSERT_GE(number, 0);
  const device_buffer<std::uint32_t> passed(1);
  const unsigned tries = on_cuda ? 1000 : 100;
  simt::launch({.grid = 4, .block = 64}, forge_numbers{fs().ref(), number, tries, 1, passed.get()});
  EXPECT_EQ(passed.read_one(), 0u);
  EXPECT_GE(fs().counters().bad_file_numbers, 4u * 64 * tries / 2);
  const auto got = warp.run(closing);
  EXPECT_EQ(got[read].value, 100) << "the open file suffered";
  EXPECT_EQ(got[end].value, 0);
}

TEST_P(bad_input, negative_and_overflowing_offsets) {
  script s;
  std::vector<int> errors;
  const auto expect = [&errors](int error) { errors.push_back(error); };
  for (const std::int64_t offset : {std::int64_t{-1}, std::int64_t{-4096}, INT64_MIN}) {
    s.pread(0, 10, offset);
    expect(-EINVAL);
    s.map(0, 0, offset, 0);
    expect(-EINVAL);
  }
  s.pread(0, 10, INT64_MAX);
  expect(-EOVERFLOW);
  s.pread(0, 10, INT64_MAX - 9);
  expect(-EOVERFLOW);
  s.pread(0, 10, INT64_MAX - 10);  // the last range that there is, beyond the end
  expect(0);
  s.pread(0, ~std::uint64_t{0}, 0, 0);
  expect(-EOVERFLOW);
  s.pread(0, std::uint64_t{1} << 63, 4, 0);
  expect(-EOVERFLOW);
  s.map(0, 0, INT64_MAX, 0);
  expect(-ENXIO);
  s.map(0, 0, good_nbytes, 0);
  expect(-ENXIO);
  const std::uint64_t before = fs().counters().errors;
  const auto got = with_open("good", s);
  std::uint64_t counted = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].value, errors[i]) << "call " << i;
    counted += errors[i] < 0;
  }
  EXPECT_EQ(fs().counters().errors - before, counted);
}

TEST_P(bad_input, zero_bytes_and_no_memory) {
  script s;
  const auto nothing = s.pread_to_null(0, 0, 0);
  const auto nothing_negative = s.pread_to_null(0, 0, -1);
  const auto beyond = s.pread_to_null(0, 100, good_nbytes);
  const auto null = s.pread_to_null(0, 100, 0);
  const auto got = with_open("good", s);
  EXPECT_EQ(got[nothing].value, 0);
  EXPECT_EQ(got[nothing_negative].value, -EINVAL);
  EXPECT_EQ(got[beyond].value, 0);
  EXPECT_EQ(got[null].value, -EFAULT);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
