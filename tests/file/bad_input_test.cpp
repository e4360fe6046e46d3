// SPDX-License-Identifier: Apache-2.0
// What bad input gets: each has its own negative errno in the kernel, in bounded time, is counted, and leaves the mount usable.
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include <atomic>

#include "file/faulty_store.hpp"
#include "file/script.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t good_seed = 7, good_nbytes = 20000;

// A mount of a directory with one good file, which is read after every test.
class bad_input : public ::testing::TestWithParam<store_kind> {
 protected:
  bad_input() {
    dir.add("good", good_nbytes, good_seed);
    options.cache_nbytes = 16 * 4096;
    options.max_open_files = 64;
    options.nworkers = 2;
    options.frame_timeout = std::chrono::milliseconds(50);
  }

  void TearDown() override {
    if (!fs_) return;
    const mount_counters before = fs_->counters();
    EXPECT_EQ(before.pinned_frames, 0u);
    EXPECT_EQ(before.io_timeouts, 0u);
    expect_usable();
    EXPECT_EQ(fs_->counters().pinned_frames, 0u);
  }

  mount& fs() {
    if (!fs_) {
      options.store = GetParam();
      fs_.emplace(dir.path(), options);
    }
    return *fs_;
  }

  void expect_usable() {
    players warp(fs().ref(), {});
    script s;
    s.open(0, "good");
    const auto read = s.pread(0, 6000, 3000);
    const auto end = s.close(0);
    const auto got = warp.run(s);
    EXPECT_GE(got[0].value, 0) << "the mount is not usable";
    EXPECT_EQ(got[read].value, 6000) << "the mount is not usable";
    EXPECT_EQ(wrong_bytes(got[read], 6000, good_seed, 3000), 0u);
    EXPECT_EQ(got[end].value, 0);
  }

  // Opening gives the error, in every kind of group, and is counted.
  void expect_open(const std::optional<std::string>& path, int error, int flags = O_RDONLY) {
    for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
      const std::uint64_t before = fs().counters().open_errors;
      players groups(fs().ref(), {.grid = 1, .block = 64, .all = kind});
      script s;
      s.open(0, path, flags);
      for (const auto& got : groups.run_all(s)) {
        EXPECT_EQ(got[0].value, -error) << (path ? path->substr(0, 60) : "NULL") << " by kind " << static_cast<int>(kind);
      }
      EXPECT_EQ(fs().counters().open_errors - before, error == 0 ? 0 : groups.size());
    }
  }

  // Runs one script in one warp, with the file of `path` open as file 0.
  std::vector<outcome> with_open(const std::string& path, script s) {
    players warp(fs().ref(), {});
    script first, last;
    first.open(0, path);
    last.close(0);
    EXPECT_GE(warp.run(first)[0].value, 0);
    auto got = warp.run(s);
    EXPECT_EQ(warp.run(last)[0].value, 0);
    return got;
  }

  temp_dir dir;
  mount_options options;

 private:
  std::optional<mount> fs_;
};

INSTANTIATE_TEST_SUITE_P(stores, bad_input, ::testing::Values(store_kind::posix, store_kind::mapped, store_kind::automatic),
                         [](const auto& tested) {
                           return std::string(tested.param == store_kind::posix    ? "posix"
                                              : tested.param == store_kind::mapped ? "mapped"
                                                                                   : "automatic");
                         });

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
  for (const int flags : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_RDWR | O_CREAT | O_EXCL}) expect_open("good", EROFS, flags);
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
      file_status status;
      page mapped;
      switch ((draw >> 40) % 4) {
        case 0: note(pread(this_thread(), forged, &byte, 1, 0)); break;
        case 1: note(fstat(this_thread(), forged, &status)); break;
        case 2:
          mapped = map_page(this_thread(), forged, 0);
          note(mapped.error());
          break;
        default: note(close(this_thread(), forged)); break;
      }
    }
  }
  GPUFS_DEVICE void note(std::int64_t result) const {
    if (result != -EBADF) simt::atomic_ref<std::uint32_t>(*passed).fetch_add(1, std::memory_order_relaxed);
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
  const auto null_status = s.fstat_to_null(0);
  const auto got = with_open("good", s);
  EXPECT_EQ(got[nothing].value, 0);
  EXPECT_EQ(got[nothing_negative].value, -EINVAL);
  EXPECT_EQ(got[beyond].value, 0);
  EXPECT_EQ(got[null].value, -EFAULT);
  EXPECT_EQ(got[null_status].value, -EFAULT);
}

TEST_P(bad_input, truncated_while_open) {
  constexpr std::uint64_t nbytes = 16 * 4096;
  dir.add("shrinks", nbytes, 5);
  let_file_times_pass();
  players warp(fs().ref(), {});
  script first, later;
  first.open(0, "shrinks");
  first.pread(0, 4096, 0);
  later.pread(0, 4096, 0);                  // cached
  const auto cut = later.pread(0, 4096, 8 * 4096);  // gone
  const auto stays = later.pread(0, 4096, 4096);    // still in the file, but of a version that is no more
  later.map(0, 0, 12 * 4096, 0);
  const auto end = later.close(0);
  ASSERT_EQ(warp.run(first)[1].value, 4096);
  dir.resize("shrinks", 2 * 4096);
  const auto begin = std::chrono::steady_clock::now();
  const auto got = warp.run(later);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(got[0].value, 4096) << "pages that are in the cache stay readable";
  if (GetParam() != store_kind::mapped) {  // automatic: small files are staged
    EXPECT_EQ(got[cut].value, -ESTALE);
    EXPECT_EQ(got[stays].value, -ESTALE);
  } else if (!on_cuda) {
    EXPECT_LT(got[cut].value, 0) << "the mapping has no page there";
  }
  EXPECT_EQ(got[end].value, 0);
  if (got[end - 1].value > 0) {  // CUDA: the mapping's pages are still there
    script unmap;
    unmap.unmap(0);
    warp.run(unmap);
  }
}

TEST_P(bad_input, renamed_over_while_open_keeps_its_bytes) {
  dir.add("file", 20000, 5);
  let_file_times_pass();
  players old_reader(fs().ref(), {}), new_reader(fs().ref(), {});
  script first, later, anew;
  first.open(0, "file");
  first.pread(0, 1000, 0);
  const auto cached = later.pread(0, 1000, 0);
  const auto missed = later.pread(0, 5000, 10000);
  later.close(0);
  anew.open(0, "file");
  const auto read = anew.pread(0, 15000, 0);
  anew.close(0);
  ASSERT_EQ(old_reader.run(first)[1].value, 1000);
  dir.add("next", 15000, 6);
  std::filesystem::rename(dir / "next", dir / "file");
  auto got = old_reader.run(later);
  EXPECT_EQ(got[cached].value, 1000);
  EXPECT_EQ(wrong_bytes(got[cached], 1000, 5, 0), 0u);
  EXPECT_EQ(got[missed].value, 5000);
  EXPECT_EQ(wrong_bytes(got[missed], 5000, 5, 10000), 0u);
  got = new_reader.run(anew);
  EXPECT_EQ(got[read].value, 15000);
  EXPECT_EQ(wrong_bytes(got[read], 15000, 6, 0), 0u);
}

TEST_P(bad_input, rewritten_in_place_while_open) {
  dir.add("file", 20000, 5);
  let_file_times_pass();
  players warp(fs().ref(), {});
  script first, later;
  first.open(0, "file");
  first.pread(0, 1000, 0);
  later.pread(0, 5000, 8192);
  later.close(0);
  ASSERT_EQ(warp.run(first)[1].value, 1000);
  dir.overwrite("file", 0, 20000, 6);
  if (GetParam() == store_kind::mapped) std::this_thread::sleep_for(std::chrono::milliseconds(400));  // the watch over pull files
  const auto got = warp.run(later);
  EXPECT_EQ(got[0].value, -ESTALE);
  EXPECT_EQ(got[1].value, 0);
  script anew;
  anew.open(0, "file");
  const auto read = anew.pread(0, 20000, 0);
  anew.close(0);
  const auto fresh = warp.run(anew);
  EXPECT_EQ(fresh[read].value, 20000);
  EXPECT_EQ(wrong_bytes(fresh[read], 20000, 6, 0), 0u);
}

TEST_P(bad_input, every_frame_pinned) {
  dir.add("big", 64 * 4096, 5);
  options.cache_nbytes = 4 * 4096;
  players warp(fs().ref(), {});
  script s;
  s.open(0, "big");
  for (unsigned p = 0; p < 4; ++p) s.map(0, p, p * 4096, 4096);
  const auto fifth = s.map(0, 4, 4 * 4096, 0);
  const auto read = s.pread(0, 100, 5 * 4096);
  const auto partly = s.pread(0, 8192, 3 * 4096);  // the first page is there
  const auto look = s.look(2, 4096);
  s.unmap(1);
  const auto again = s.map(0, 4, 4 * 4096, 4096);
  s.unmap(4);
  for (const unsigned p : {0u, 2u, 3u}) s.unmap(p);
  const auto after = s.pread(0, 100, 9 * 4096);
  s.close(0);
  const std::uint64_t before = fs().counters().errors;
  const auto begin = std::chrono::steady_clock::now();
  const auto got = warp.run(s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(got[fifth].value, -ENOMEM);
  EXPECT_EQ(got[read].value, -ENOMEM);
  EXPECT_EQ(got[partly].value, 4096) << "the bytes before the page that found no frame";
  EXPECT_EQ(wrong_bytes(got[look], 4096, 5, 2 * 4096), 0u) << "a pinned page moved";
  EXPECT_EQ(got[again].value, 4096);
  EXPECT_EQ(wrong_bytes(got[again], 4096, 5, 4 * 4096), 0u);
  EXPECT_EQ(got[after].value, 100);
  EXPECT_EQ(fs().counters().errors - before, 2u);
}

TEST_P(bad_input, more_pinning_groups_than_frames) {
  dir.add("big", 256 * 4096, 5);
  options.cache_nbytes = 8 * 4096;
  players groups(fs().ref(), {.grid = 4, .block = 64, .schedule = {.resident_blocks = 4}, .all = group_kind::tile8});
  ASSERT_EQ(groups.size(), 32u);
  std::vector<script> scripts(groups.size());
  for (unsigned g = 0; g < groups.size(); ++g) {
    scripts[g].open(0, "big");
    scripts[g].map(0, 0, (2 * g) * 4096, 4096);
    scripts[g].map(0, 1, (2 * g + 1) * 4096, 4096);
    scripts[g].look(0, 4096);
    scripts[g].unmap(0);
    scripts[g].unmap(1);
    scripts[g].close(0);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto got = groups.run(scripts);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  unsigned mapped = 0;
  for (unsigned g = 0; g < groups.size(); ++g) {
    for (const unsigned p : {0u, 1u}) {
      const outcome& map = got[g][1 + p];
      ASSERT_TRUE(map.value == 4096 || map.value == -ENOMEM) << map.value;
      EXPECT_EQ(got[g][4 + p].value, map.value == 4096 ? 0 : -EINVAL);
      mapped += map.value == 4096;
      EXPECT_EQ(map.value == 4096 ? wrong_bytes(map, 4096, 5, (2 * g + p) * 4096) : 0, 0u);
    }
  }
  EXPECT_GE(mapped, 8u) << "somebody must get on";
}

TEST_P(bad_input, too_many_open_files) {
  options.max_open_files = 8;
  for (int i = 0; i < 12; ++i) dir.add(numbered("f", static_cast<std::uint64_t>(i)), 5000, static_cast<std::uint64_t>(i));
  players groups(fs().ref(), {.grid = 3, .block = 128});
  ASSERT_EQ(groups.size(), 12u);
  std::vector<script> opening(12), closing(12), again(12);
  for (unsigned g = 0; g < 12; ++g) {
    opening[g].open(0, numbered("f", g));
    closing[g].close(0);
    again[g].open(0, numbered("f", g));
    again[g].pread(0, 5000, 0);
    again[g].close(0);
  }
  const auto first = groups.run(opening);
  unsigned open_now = 0;
  for (const auto& got : first) {
    EXPECT_TRUE(got[0].value >= 0 || got[0].value == -ENFILE) << got[0].value;
    open_now += got[0].value >= 0;
  }
  EXPECT_EQ(open_now, 8u);
  EXPECT_EQ(fs().counters().open_errors, 4u);
  const auto closed = groups.run(closing);
  for (unsigned g = 0; g < 12; ++g) EXPECT_EQ(closed[g][0].value, first[g][0].value >= 0 ? 0 : -EBADF);
}

TEST_P(bad_input, too_many_open_files_while_others_come_and_go) {
  options.max_open_files = 4;
  for (int i = 0; i < 12; ++i) dir.add(numbered("f", static_cast<std::uint64_t>(i)), 5000, static_cast<std::uint64_t>(i));
  std::vector<script> scripts(12);
  for (unsigned g = 0; g < 12; ++g) {
    for (unsigned i = 0; i < 20; ++i) {
      scripts[g].open(0, numbered("f", (g + i) % 12));
      scripts[g].pread(0, 5000, 0);
      scripts[g].close(0);
    }
  }
  for (std::uint64_t seed = 1; seed <= 10 * number_from_environment("GPUFS_TEST_EFFORT", 1); ++seed) {
    players groups(fs().ref(), {.grid = 3, .block = 128, .schedule = {.seed = seed, .resident_blocks = 3, .switch_percent = seed % 2 == 0 ? 25u : 100u}});
    unsigned good = 0;
    for (const auto& got : groups.run(scripts)) {
      for (std::size_t i = 0; i < got.size(); i += 3) {
        const std::int64_t opened = got[i].value;
        EXPECT_TRUE(opened >= 0 || opened == -ENFILE) << "open gave " << opened << ", seed " << seed;
        EXPECT_EQ(got[i + 1].value, opened >= 0 ? 5000 : -EBADF);
        EXPECT_EQ(got[i + 2].value, opened >= 0 ? 0 : -EBADF);
        good += opened >= 0;
      }
    }
    EXPECT_GE(good, 20u);
  }
}

TEST_P(bad_input, unmapped_twice) {
  players warp(fs().ref(), {});
  script s;
  s.open(0, "good");
  s.map(0, 0, 0, 100);
  s.unmap_copy(0);
  const auto twice = s.unmap_copy(0);
  const auto original = s.unmap(0);
  const auto thrice = s.unmap(0);
  s.map(0, 1, 30000, 0);
  const auto failed = s.unmap(1);
  const auto never = s.unmap(2);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[2].value, 0);
  for (const auto i : {twice, original, thrice, failed, never}) EXPECT_EQ(got[i].value, -EINVAL) << "call " << i;
  EXPECT_EQ(fs().counters().unpin_errors, 2u) << "those that named a page";
}

TEST_P(bad_input, closed_twice) {
  players warp(fs().ref(), {});
  script s;
  s.open(0, "good");
  s.close(0);
  const auto twice = s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[1].value, 0);
  EXPECT_EQ(got[twice].value, -EBADF);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
