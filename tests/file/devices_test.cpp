// SPDX-License-Identifier: Apache-2.0
// Mounts on several devices in one process. The CPU machine has two; on CUDA these tests need a machine with two GPUs.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/store/mapped_store.hpp"
#include "gpufs/store/mem_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct read_whole {
  mount_ref fs;
  const char* path;
  std::byte* to;
  std::uint64_t nbytes;
  std::int64_t* nread;  // of each warp, or the error

  // Each warp reads the file's pages by turns, from a page of its own on.
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const auto me = simt::global_warp_rank();
    const auto nwarps = simt::global_warp_count();
    const file opened = open(warp, fs, path);
    std::int64_t sum = opened.error();
    for (std::uint64_t at = me * 4096; sum >= 0 && at < nbytes; at += nwarps * 4096) {
      const std::int64_t n = pread(warp, opened, to + at, 4096, static_cast<std::int64_t>(at));
      sum = n < 0 ? n : sum + n;
    }
    const int closed = close(warp, opened);
    if (warp.leader()) nread[me] = sum >= 0 && closed != 0 ? closed : sum;
  }
};

struct write_text {
  file to;
  const char* text;
  std::uint64_t nbytes;
  std::int64_t at;
  std::int64_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    std::int64_t n = pwrite(warp, to, text, nbytes, at);
    const int synced = fsync(warp, to);
    if (warp.leader()) *result = synced != 0 ? synced : n;
  }
};

struct read_numbers {
  file from;
  std::uint32_t* out;
  GPUFS_DEVICE void operator()() const {
    const auto numbers = map<const std::uint32_t>(this_warp(), from);
    out[simt::thread_rank()] = numbers[simt::thread_rank() * 1000];
  }
};

constexpr unsigned grid = 2, block = 64, nwarps = grid * block / 32;

class devices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (simt::device_count() < 2) GTEST_SKIP() << "there is one device here";
  }
  // A file is registered once for two mounts of a folder that have one store: there is no room for it twice.
  void share_one_registration(int device, int other) const {
    constexpr std::uint64_t nbytes = 40 * 4096, budget = nbytes + nbytes / 2;
    dir_.add("file", nbytes, 9);
    let_file_times_pass();
    const auto files = std::make_shared<store::mapped_store>(simt::device(device), dir_.path(), budget);
    mount_options on_first = small(device), on_second = small(other);
    on_first.custom_store = on_second.custom_store = files;
    const mount first(dir_.path(), on_first);
    mount second(dir_.path(), on_second);
    const auto expect_pinned = [&](std::size_t nmappings, std::size_t nidle) {
      const store::pin_usage now = files->usage();
      EXPECT_EQ(now.budget_nbytes, budget);
      EXPECT_EQ(now.pinned_nbytes, nmappings * nbytes);
      EXPECT_EQ(now.nmappings, nmappings);
      EXPECT_EQ(now.idle_nbytes, nidle * nbytes);
      EXPECT_EQ(now.nidle, nidle);
    };
    expect_pinned(0, 0);
    {
      const host_file of_first(first, "file");
      expect_pinned(1, 0);
      {
        const host_file of_second(second, "file");
        expect_pinned(1, 0);
        EXPECT_EQ(first.open_files().at(0).source, source_kind::pull);
        EXPECT_EQ(second.open_files().at(0).source, source_kind::pull);
        EXPECT_EQ(read(first, "file", nbytes), content(9, 0, nbytes));
        EXPECT_EQ(read(second, "file", nbytes), content(9, 0, nbytes));
      }
      second.trim();  // the other mount's file is still open
      expect_pinned(1, 0);
      EXPECT_EQ(read(first, "file", nbytes), content(9, 0, nbytes));
    }
    expect_pinned(1, 1);
    EXPECT_EQ(read(second, "file", nbytes), content(9, 0, nbytes));
    expect_pinned(1, 1);
    second.trim();
    expect_pinned(0, 0);
  }
  static mount_options small(int device, bool writable = false) {
    return {.device = device, .cache_nbytes = 32 << 12, .max_open_files = 64, .writable = writable, .nworkers = 2};
  }
  // Begins a read of a whole file on the mount's device.
  struct reading {
    const mount& fs;
    std::uint64_t nbytes;
    simt::stream turns{fs.device()};
    simt::device_array<char> path;
    simt::device_array<std::byte> to{nbytes, fs.device()};
    simt::device_array<std::int64_t> nread{nwarps, fs.device()};

    reading(const mount& of, const std::string& name, std::uint64_t size)
        : fs(of), nbytes(size), path(simt::device_string(name, of.device())) {
      simt::launch({.grid = grid, .block = block}, read_whole{fs.ref(), path.get(), to.get(), nbytes, nread.get()}, turns);
    }
    std::vector<std::byte> bytes() const {
      turns.wait();
      std::int64_t sum = 0;
      for (const std::int64_t n : nread.read()) sum += n;
      EXPECT_EQ(sum, static_cast<std::int64_t>(nbytes));
      return to.read();
    }
  };
  static std::vector<std::byte> read(const mount& fs, const std::string& name, std::uint64_t nbytes) {
    return reading(fs, name, nbytes).bytes();
  }
  static std::int64_t write(const mount& fs, const file& to, const std::string& text, std::int64_t at) {
    const simt::on_device here(fs.device());
    const device_buffer<char> in(std::vector<char>(text.begin(), text.end()));
    const device_buffer<std::int64_t> result(1);
    simt::launch({.grid = 1, .block = 32}, write_text{to, in.get(), text.size(), at, result.get()});
    return result.read_one();
  }

  temp_dir dir_;
};

// Each of files of its own.
TEST_F(devices, each_with_a_mount) {
  const temp_dir other;
  constexpr std::uint64_t nbytes = 64 * 4096 + 100;
  dir_.add("file", nbytes, 1);
  other.add("file", nbytes, 2);
  const mount first(dir_.path(), small(0)), second(other.path(), small(1));
  EXPECT_EQ(first.device().index(), 0);
  EXPECT_EQ(second.device().index(), 1);
  EXPECT_EQ(second.options().device, 1);
  const reading here(first, "file", nbytes), there(second, "file", nbytes);  // both run at once
  EXPECT_EQ(here.bytes(), content(1, 0, nbytes));
  EXPECT_EQ(there.bytes(), content(2, 0, nbytes));
  EXPECT_GE(first.counters().faults, 65u);
  EXPECT_GE(second.counters().faults, 65u);
}

// Two caches of one folder, by each way in which bytes come.
TEST_F(devices, one_folder_on_both) {
  constexpr std::uint64_t nbytes = 40 * 4096 + 1;
  dir_.add("file", nbytes, 3);
  for (const store_kind kind : {store_kind::posix, store_kind::mapped, store_kind::automatic}) {
    mount_options on_first = small(0), on_second = small(1);
    on_first.store = on_second.store = kind;
    const mount first(dir_.path(), on_first), second(dir_.path(), on_second);
    const reading here(first, "file", nbytes), there(second, "file", nbytes);
    EXPECT_EQ(here.bytes(), content(3, 0, nbytes));
    EXPECT_EQ(there.bytes(), content(3, 0, nbytes));
  }
}

// A store is the host's, and so may be both mounts'.
TEST_F(devices, one_store_for_both) {
  constexpr std::uint64_t nbytes = 40 * 4096;
  const auto memory = std::make_shared<store::mem_store>(simt::device(0));
  memory->put("file", content(4, 0, nbytes));
  mount_options on_first = small(0), on_second = small(1);
  on_first.custom_store = on_second.custom_store = memory;
  const mount first("", on_first), second("", on_second);
  EXPECT_EQ(read(first, "file", nbytes), content(4, 0, nbytes));
  EXPECT_EQ(read(second, "file", nbytes), content(4, 0, nbytes));
}

TEST_F(devices, one_registration_for_both) { share_one_registration(0, 1); }

class one_device : public devices {
  void SetUp() override {}
};

TEST_F(one_device, one_registration_for_two_mounts) { share_one_registration(0, 0); }

// As between two processes: what one has synced, the other has when it opens the file anew (docs/guide/writing.md).
TEST_F(devices, what_one_writes_and_syncs_the_other_reads) {
  constexpr std::uint64_t nbytes = 8 * 4096;
  dir_.add("file", nbytes, 5);
  const mount first(dir_.path(), small(0, true)), second(dir_.path(), small(1, true));
  EXPECT_EQ(read(second, "file", nbytes), content(5, 0, nbytes));  // its cache has the old version
  std::vector<std::byte> expected = content(5, 0, nbytes);
  const auto written = [&](const mount& by, std::int64_t at, const std::string& text) {
    let_file_times_pass();
    host_file to(by, "file", O_RDWR);
    EXPECT_EQ(write(by, to.ref(), text, at), static_cast<std::int64_t>(text.size()));
    to.close();
    let_file_times_pass();
    for (std::size_t i = 0; i < text.size(); ++i) expected[static_cast<std::size_t>(at) + i] = static_cast<std::byte>(text[i]);
  };
  written(first, 4090, "written on the first");
  EXPECT_EQ(read(second, "file", nbytes), expected);
  written(second, 4100, "written on the second");  // other bytes of the same page
  EXPECT_EQ(read(first, "file", nbytes), expected);
  EXPECT_EQ(dir_.read("file"), expected);
}

// Two devices write different bytes of one page at once: both keep theirs.
TEST_F(devices, both_write_one_page) {
  dir_.add("file", 4096, 6);
  {
    const mount first(dir_.path(), small(0, true)), second(dir_.path(), small(1, true));
    const host_file here(first, "file", O_RDWR), there(second, "file", O_RDWR);
    EXPECT_EQ(write(first, here.ref(), "first", 10), 5);
    EXPECT_EQ(write(second, there.ref(), "second", 15), 6);
  }
  std::vector<std::byte> expected = content(6, 0, 4096);
  const std::string text = "firstsecond";
  for (std::size_t i = 0; i < text.size(); ++i) expected[10 + i] = static_cast<std::byte>(text[i]);
  EXPECT_EQ(dir_.read("file"), expected);
}

// The calling thread's current device decides where none is named, and nothing else does.
TEST_F(devices, mounts_are_made_on_the_current_one) {
  constexpr std::uint64_t nbytes = 128'000;
  dir_.add("file", nbytes, 7);
  {
    const simt::on_device here(simt::device(1));
    EXPECT_EQ(mount(dir_.path(), small(current_device)).device().index(), 1);
    EXPECT_EQ(mount(dir_.path(), small(0)).device().index(), 0);
  }
  // A mount of device 1 in a thread whose current one is 0: its file, and pointers into it.
  const mount fs(dir_.path(), small(1));
  const host_file opened(fs, "file");
  const simt::stream turns(fs.device());
  const device_buffer<std::uint32_t> out(32, fs.device());
  simt::launch({.grid = 1, .block = 32}, read_numbers{opened.ref(), out.get()}, turns);
  turns.wait();
  const std::vector<std::byte> bytes = content(7, 0, nbytes);
  const std::vector<std::uint32_t> found = out.read();
  for (std::size_t i = 0; i < 32; ++i) {
    std::uint32_t expected;
    std::memcpy(&expected, &bytes[i * 4000], sizeof expected);
    EXPECT_EQ(found[i], expected);
  }
  EXPECT_EQ(simt::this_platform().index(), 0);
}

TEST(device_option, of_a_device_that_there_is_not_is_refused) {
  const temp_dir dir;
  for (const int wrong : {99, simt::device_count(), -2}) {
    try {
      const mount fs(dir.path(), {.device = wrong});
      ADD_FAILURE() << wrong;
    } catch (const error& e) {
      const std::string why = e.what();
      EXPECT_NE(why.find("gpufs::mount: there is no device " + std::to_string(wrong)), std::string::npos) << why;
      EXPECT_NE(why.find("says how many"), std::string::npos) << why;
    }
  }
}

#if !GPUFS_ON_CUDA  // a GPU would read another's memory, or fail

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST_F(devices, a_kernel_on_another_is_stopped) {
  dir_.add("file", 4096, 8);
  const mount fs(dir_.path(), small(1));
  const host_file opened(fs, "file");
  const device_buffer<std::int64_t> nread(nwarps);  // of device 0
  const device_buffer<std::byte> to(4096);
  const device_buffer<char> path = simt::device_string("file");
  const std::string of_mount = refusal([&] {
    simt::launch({.grid = 1, .block = 32}, read_whole{fs.ref(), path.get(), to.get(), 4096, nread.get()});
  });
  EXPECT_NE(of_mount.find("runs on device 0 and calls gpufs::open with what is device 1's (mount)"), std::string::npos) << of_mount;
  const device_buffer<std::uint32_t> out(32);
  const std::string of_file = refusal([&] { simt::launch({.grid = 1, .block = 32}, read_numbers{opened.ref(), out.get()}); });
  EXPECT_NE(of_file.find("runs on device 0 and calls gpufs::map with what is device 1's (mount)"), std::string::npos) << of_file;
  EXPECT_EQ(read(fs, "file", 4096), content(8, 0, 4096));  // nothing has happened to the mount
}

#endif

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
