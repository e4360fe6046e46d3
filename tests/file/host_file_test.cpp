// SPDX-License-Identifier: Apache-2.0
#include "gpufs/host_file.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "file/device_file.hpp"
#include "file/harness.hpp"
#include "file/write_errors.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct read_some {
  file opened;
  char* to;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const std::int64_t n = pread(this_warp(), opened, to, 100, 0);
    if (this_warp().leader()) *result = n;
  }
};
struct write_some {
  file opened;
  const char* from;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const std::int64_t n = pwrite(this_warp(), opened, from, 5, 0);
    if (this_warp().leader()) *result = n;
  }
};
struct open_too {
  mount_ref fs;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const file opened = open(this_warp(), fs, "file");
    const int error = close(this_warp(), opened);
    if (this_warp().leader()) *result = error;
  }
};

class host_files : public ::testing::Test {
 protected:
  host_files() { write_file("file", "hello"); }

  void write_file(const std::string& name, const std::string& text) const { std::ofstream(dir_ / name) << text; }
  std::string text_of(const std::string& name) const {
    std::ifstream in(dir_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static mount_options small(bool writable = false) {
    return {.cache_nbytes = 64 << 12, .max_open_files = 64, .writable = writable, .nworkers = 2};
  }
  // What a kernel reads, or the error.
  static std::string read(file opened) {
    const device_buffer<char> to(100);
    const device_buffer<std::int64_t> result(1);
    simt::launch({.grid = 1, .block = 32}, read_some{opened, to.get(), result.get()});
    const std::int64_t n = result.read_one();
    return n < 0 ? std::generic_category().message(static_cast<int>(-n))
                 : std::string(to.read().data(), static_cast<std::size_t>(n));
  }
  template <class Call>
  static int error_of(const Call& call) {
    try {
      call();
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code().category(), std::generic_category());
      return error.code().value();
    }
    return 0;
  }

  temp_dir dir_;
};

TEST_F(host_files, are_used_by_kernels_and_closed_at_their_end) {
  const mount fs(dir_.path(), small());
  {
    const host_file f(fs, "file");
    EXPECT_EQ(f.ref().error(), 0);
    EXPECT_EQ(f.path(), "file");
    EXPECT_EQ(read(f.ref()), "hello");
    EXPECT_EQ(fs.open_files().size(), 1u);
    EXPECT_EQ(fs.counters().host_closes, 0u);
  }
  EXPECT_TRUE(fs.open_files().empty());
  EXPECT_EQ(fs.counters().host_opens, 1u);
  EXPECT_EQ(fs.counters().host_closes, 1u);
  EXPECT_TRUE(fs.log().empty());
}

TEST_F(host_files, are_shared_with_kernels_that_open_the_path) {
  const mount fs(dir_.path(), small());
  const host_file f(fs, "file"), same(fs, "file");
  const device_buffer<std::int64_t> result(1);
  simt::launch({.grid = 1, .block = 32}, open_too{fs.ref(), result.get()});
  EXPECT_EQ(result.read_one(), 0);
  EXPECT_EQ(fs.counters().opens, 3u);
  EXPECT_EQ(fs.counters().host_opens, 1u);
  EXPECT_EQ(fs.open_files().size(), 1u);
  EXPECT_EQ(read(same.ref()), "hello");
}

TEST_F(host_files, move) {
  const mount fs(dir_.path(), small());
  write_file("other", "two");
  host_file f(fs, "file"), other(fs, "other");
  host_file moved(std::move(f));
  EXPECT_EQ(f.ref().error(), -EBADF);
  EXPECT_EQ(read(f.ref()), std::generic_category().message(EBADF));
  EXPECT_EQ(read(moved.ref()), "hello");
  f.close();
  moved = std::move(other);
  EXPECT_EQ(read(moved.ref()), "two");
  EXPECT_EQ(read(other.ref()), "hello");
  other.close();
  EXPECT_EQ(fs.open_files().size(), 1u);
}

TEST_F(host_files, advise_as_kernels_do) {
  const mount fs(dir_.path(), small());
  host_file f(fs, "file");
  const auto fills = [&] {
    EXPECT_EQ(read(f.ref()), "hello");
    return fs.counters().faults;
  };
  EXPECT_EQ(fills(), fills());
  const std::uint64_t before = fills();
  for (const advice what : {advice::random, advice::sequential, advice::noreuse, advice::whole, advice::normal}) {
    f.advise(what);
    EXPECT_EQ(fills(), before);
  }
  f.advise(advice::dontneed, 4096);  // of a range behind the file's end
  EXPECT_EQ(fills(), before);
  f.advise(advice::dontneed);
  EXPECT_EQ(fills(), before + 1);
  f.advise(advice::dontneed, 0, 4096);
  f.advise(advice::willneed);
  EXPECT_EQ(fills(), before + 2);
  EXPECT_EQ(error_of([&] { f.advise(advice{99}); }), EINVAL);
  EXPECT_EQ(error_of([&] { f.advise(advice::random, -1); }), EINVAL);
  EXPECT_EQ(fills(), before + 2);
  f.close();
  EXPECT_EQ(error_of([&] { f.advise(advice::random); }), EBADF);
  EXPECT_EQ(fs.counters().pins, 0u);
}

// What was advised holds for kernels that open the path, too.
TEST_F(host_files, advise_all_who_read_the_path) {
  constexpr std::uint32_t page = 4096;
  const mount fs("/", device_file(source_kind::mem, 16 * page, page, 64));
  const host_file f(fs, "f");
  f.advise(advice::noreuse);
  const host_file same(fs, "f");
  read(same.ref());
  EXPECT_EQ(fs.counters().bytes_filled, 0u) << "it was read past the cache";
  f.advise(advice::random);
  read(same.ref());
  EXPECT_EQ(fs.counters().bytes_filled, 128u);
  f.advise(advice::whole);
  f.advise(advice::willneed, page, page);
  read(same.ref());
  EXPECT_EQ(fs.counters().bytes_filled, 128u + page);
}

TEST_F(host_files, say_why_they_do_not_open) {
  const mount fs(dir_.path(), small());
  EXPECT_EQ(error_of([&] { host_file(fs, "none"); }), ENOENT);
  EXPECT_EQ(error_of([&] { host_file(fs, "../file"); }), EXDEV);
  EXPECT_EQ(error_of([&] { host_file(fs, "file", O_RDWR); }), EROFS);
  EXPECT_EQ(error_of([&] { host_file(fs, std::string("file\0x", 6)); }), EINVAL);
  EXPECT_EQ(error_of([&] { host_file(fs, std::string(4096, 'a')); }), ENAMETOOLONG);
  EXPECT_EQ(error_of([&] { host_file(fs, std::string(100000, 'a')); }), ENAMETOOLONG);
  try {
    host_file(fs, "none");
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_NE(std::string(error.what()).find("open of 'none': "), std::string::npos) << error.what();
  }
  EXPECT_TRUE(fs.open_files().empty());
  std::string longest(4095, '/');  // a long name of the file
  longest.replace(0, 2, "./").replace(4091, 4, "file");
  EXPECT_EQ(read(host_file(fs, longest).ref()), "hello");
}

TEST_F(host_files, close_when_told_and_once) {
  const mount fs(dir_.path(), small());
  host_file f(fs, "file");
  f.close();
  EXPECT_TRUE(fs.open_files().empty());
  EXPECT_EQ(f.ref().error(), -EBADF);
  f.close();
  EXPECT_EQ(fs.counters().host_closes, 1u);
}

TEST_F(host_files, bring_what_kernels_have_written_to_the_file) {
  const mount fs(dir_.path(), small(true));
  const device_buffer<char> from(std::vector<char>{'b', 'y', 't', 'e', 's'});
  const device_buffer<std::int64_t> result(1);
  host_file f(fs, "new", O_RDWR | O_CREAT);
  simt::launch({.grid = 1, .block = 32}, write_some{f.ref(), from.get(), result.get()});
  EXPECT_EQ(result.read_one(), 5);
  f.close();
  EXPECT_EQ(text_of("new"), "bytes");
}

// A kernel that runs until it is told, and uses a file that was opened since.
struct wait_then_read {
  std::uint32_t* words;  // [0]: it runs, by the kernel; [16]: the file's number plus one, by the host
  mount_ref fs;
  char* to;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    if (warp.leader()) simt::atomic_ref<std::uint32_t, simt::scope::system>(words[0]).store(1, std::memory_order_release);
    const simt::deadline until(60'000'000'000);
    simt::backoff wait;
    std::uint32_t number = 0;
    while (number == 0 && !warp.any(until.expired())) {
      if (warp.leader()) number = simt::atomic_ref<std::uint32_t, simt::scope::system>(words[16]).load(std::memory_order_acquire);
      number = warp.broadcast(number);
      wait();
    }
    const std::int64_t n = pread(warp, file(fs, file_number{static_cast<std::int32_t>(number) - 1}), to, 100, 0);
    if (warp.leader()) *result = n;
  }
};

TEST_F(host_files, open_and_close_beside_a_kernel_that_runs) {
  const mount fs(dir_.path(), small());
  const device_buffer<char> to(100);
  const device_buffer<std::int64_t> result(1);
  const pinned_buffer<std::uint32_t> words(32);
  std::thread kernel([&] {
    simt::launch({.grid = 1, .block = 32}, wait_then_read{words.get(), fs.ref(), to.get(), result.get()});
  });
  std::atomic_ref<std::uint32_t> runs(words.get()[0]), number(words.get()[16]);
  while (runs.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  const host_file f(fs, "file");
  host_file(fs, "file").close();
  number.store(static_cast<std::uint32_t>(f.ref().number()) + 1, std::memory_order_release);
  kernel.join();
  EXPECT_EQ(result.read_one(), 5);
  EXPECT_EQ(std::string(to.read().data(), 5), "hello");
}

class host_file_errors : public write_errors {};

TEST_F(host_file_errors, of_a_close_are_told_and_by_an_end_printed) {
  const mount& fs = start();
  const device_buffer<char> from(std::vector<char>{'b', 'y', 't', 'e', 's'});
  const device_buffer<std::int64_t> result(1);
  const auto write = [&](const host_file& f) {
    simt::launch({.grid = 1, .block = 32}, write_some{f.ref(), from.get(), result.get()});
    EXPECT_EQ(result.read_one(), 5);
  };
  wrong().fail_write_every = 1;
  wrong().write_error = ENOSPC;
  host_file f(fs, "a", O_RDWR | O_CREAT);
  write(f);
  try {
    f.close();
    ADD_FAILURE() << "no error";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), ENOSPC);
    EXPECT_NE(std::string(error.what()).find("close of 'a': "), std::string::npos) << error.what();
  }
  EXPECT_TRUE(fs.open_files().empty()) << "it is closed nevertheless";

  ::testing::internal::CaptureStderr();
  { write(host_file(fs, "b", O_RDWR | O_CREAT)); }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("gpufs::host_file: close of 'b': "), std::string::npos) << said;
  EXPECT_TRUE(fs.open_files().empty());
  wrong().fail_write_every = 0;
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
