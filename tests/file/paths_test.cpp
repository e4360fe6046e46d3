// SPDX-License-Identifier: Apache-2.0
// Calls on paths from kernels: what they do to the directory, and to files that are open.
#include <cstring>
#include <set>

#include "file/notes.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

mount_options writing() {
  mount_options o;
  o.writable = true;
  o.cache_nbytes = 64 * 4096;
  o.max_open_files = 64;
  o.internals.request_rings = 4;
  return o;
}

struct paths : ::testing::Test {
  template <class Kernel>
  std::vector<std::int64_t> run(Kernel kernel) const {
    return noted(fs, kernel);
  }
  temp_dir dir;
  mount fs{dir.path(), writing()};
};

struct make_and_remove {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    note(mkdir(warp, fs, "d"));
    note(mkdir(warp, fs, "d"));
    note(mkdir(warp, fs, "none/d"));
    const file f = open(warp, fs, "d/f", O_RDWR | O_CREAT);
    note(f.error());
    note(rmdir(warp, fs, "d"));
    note(unlink(warp, fs, "d"));
    path_status status{};
    note((status = stat(warp, fs, "d")).error);
    note((status.mode & S_IFMT) == S_IFDIR);
    note(unlink(warp, fs, "d/f"));
    note(unlink(warp, fs, "d/f"));
    // The removed file lives on, and the path is a new one's.
    note(pwrite(warp, f, "x", 1, 0));
    note((status = stat(warp, fs, "d/f")).error);
    const file g = open(warp, fs, "d/f", O_RDWR | O_CREAT | O_EXCL);
    note(g.error());
    file_status opened{};
    note((opened = fstat(warp, g)).error);
    note(opened.nbytes);
    note(close(warp, f));
    note(close(warp, g));
    note(unlink(warp, fs, "../x"));
    note(unlink(warp, fs, nullptr));
    note(unlink(warp, fs, ""));
  }
};
TEST_F(paths, make_and_remove) {
  const auto got = run(make_and_remove{});
  const std::vector<std::int64_t> wanted = {0, -EEXIST, -ENOENT, 0, -ENOTEMPTY, -EISDIR, 0, 1,      0,       -ENOENT,
                                            1, -ENOENT, 0,       0, 0,          0,       0, -EXDEV, -EFAULT, -ENOENT};
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << "call " << i;
  EXPECT_EQ(dir.read("d/f").size(), 0u);
  EXPECT_EQ(fs.counters().host_opens, fs.counters().host_closes);
}

struct rename_open_files {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file a = open(warp, fs, "a", O_RDWR), b = open(warp, fs, "b");
    note(pwrite(warp, a, "12345", 5, 100));
    path_status status{};
    note((status = stat(warp, fs, "a")).error);
    note(status.nbytes);  // not written back yet
    note(rename(warp, fs, "a", "b"));
    note(pwrite(warp, a, "678", 3, 105));  // still the same file
    const file now = open(warp, fs, "b");
    std::int64_t nbytes = pread(warp, now, results + 20, 8, 0);
    note(nbytes);
    note(open(warp, fs, "a").error());
    note(pread(warp, b, results + 21, 8, 0));  // the file that was b
    note(close(warp, a));
    note(close(warp, b));
    note(close(warp, now));
    note(rename(warp, fs, "none", "c"));
    note(mkdir(warp, fs, "d"));
    note(rename(warp, fs, "b", "d/b"));
    note(rename(warp, fs, "d", "e"));
    note((status = stat(warp, fs, "e/b")).error);
    note(status.nbytes);
  }
};
TEST_F(paths, rename_open_files) {
  dir.add("a", 100, 1);
  dir.add("b", 50, 2);
  let_file_times_pass();
  const auto got = run(rename_open_files{});
  const std::vector<std::int64_t> wanted = {5, 0, 105, 0, 3, 8, -ENOENT, 8, 0, 0, 0, -ENOENT, 0, 0, 0, 0, 108};
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << "call " << i;
  EXPECT_EQ(static_cast<std::uint64_t>(got[20]), content_word(1, 0)) << "a's bytes under b's name";
  EXPECT_EQ(static_cast<std::uint64_t>(got[21]), content_word(2, 0));
  EXPECT_EQ(dir.read("e/b").size(), 108u);
}

struct list_directory {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  std::byte* out = nullptr;
  std::uint32_t room = 0, at_once = 0;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    directory_part part{};
    std::uint64_t done = 0;
    std::int64_t calls = 0;
    while (done + at_once <= room) {
      part = read_directory(warp, fs, "many", out + done, at_once, part.position);
      if (part.nbytes <= 0) break;
      done += static_cast<std::uint64_t>(part.nbytes);
      ++calls;
    }
    note(part.nbytes);
    note(static_cast<std::int64_t>(done));
    note(calls);
    note(read_directory(warp, fs, "many", out, 8).nbytes);
    note(read_directory(warp, fs, "none", out, 4096).nbytes);
    note(read_directory(warp, fs, "many/1", out, 4096).nbytes);
    note(read_directory(warp, fs, "many", nullptr, 4096).nbytes);
  }
};
TEST_F(paths, list_directory) {
  constexpr unsigned nfiles = 300;
  for (unsigned i = 0; i < nfiles; ++i) dir.add("many/" + std::to_string(i), i, i);
  for (const std::uint32_t at_once : {600u, 4096u}) {
    const device_buffer<std::byte> out(64 * 1024);
    const auto got = run(list_directory{.out = out.get(), .room = 64 * 1024, .at_once = at_once});
    EXPECT_EQ(got[0], 0);
    EXPECT_GT(got[2], 1);
    EXPECT_EQ(got[3], -EINVAL);
    EXPECT_EQ(got[4], -ENOENT);
    EXPECT_EQ(got[5], -ENOTDIR);
    EXPECT_EQ(got[6], -EFAULT);
    const auto bytes = out.read();
    // The last calls wrote over the beginning only where they succeeded, which none did.
    std::set<unsigned> seen;
    for (std::int64_t at = 0; at < got[1];) {
      directory_entry entry;
      std::memcpy(&entry, bytes.data() + at, sizeof entry);
      const std::string name(reinterpret_cast<const char*>(bytes.data() + at + sizeof entry), entry.name_nbytes);
      const auto i = static_cast<unsigned>(std::stoul(name));
      EXPECT_TRUE(seen.insert(i).second) << name;
      EXPECT_EQ(entry.file_nbytes, i);
      EXPECT_TRUE(S_ISREG(entry.mode));
      ASSERT_GT(entry.entry_nbytes, 0);
      at += entry.entry_nbytes;
    }
    EXPECT_EQ(seen.size(), nfiles);
  }
}

struct change_read_only {
  mount_ref fs{};
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    note(unlink(warp, fs, "f"));
    note(rename(warp, fs, "f", "g"));
    note(mkdir(warp, fs, "d"));
    note(rmdir(warp, fs, "e"));
    path_status status{};
    note((status = stat(warp, fs, "f")).error);
    note(status.nbytes);
  }
};
TEST_F(paths, mounts_that_may_not_write) {
  dir.add("f", 77, 1);
  std::filesystem::create_directory(dir / "e");
  fs = mount(dir.path(), {.cache_nbytes = 64 * 4096});
  const auto got = run(change_read_only{});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], -EROFS) << "call " << i;
  EXPECT_EQ(got[4], 0);
  EXPECT_EQ(got[5], 77);
  EXPECT_TRUE(std::filesystem::exists(dir / "f"));
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
