// SPDX-License-Identifier: Apache-2.0
// read_extents: what it gives is what SEEK_DATA says of the file, and its errors.
#include <linux/falloc.h>

#include "gpufs/host_file.hpp"
#include "notes.hpp"
#include "script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t room = 1024;

struct found_extents {
  std::int64_t n = 0;      // of all calls, or the first error
  std::int64_t calls = 0;  // that gave some
};

// Reads all extents of a file, so many at a time.
template <class Group>
struct read_all {
  mount_ref fs{};
  const char* path = nullptr;
  std::uint32_t at_once = 0;
  extent* out = nullptr;
  found_extents* found = nullptr;
  GPUFS_DEVICE void operator()() const {
    if (std::is_same_v<Group, simt::thread> && simt::thread_rank() != 0) return;
    const Group group = this_group();
    const file f = open(group, fs, path);
    found_extents all;
    for (extents_part part{}; all.n + at_once <= room;) {
      part = read_extents(group, f, out + all.n, at_once, part.offset);
      if (part.n < 0) all.n = part.n;
      if (part.n <= 0) break;
      all.n += part.n;
      ++all.calls;
    }
    close(group, f);
    if (group.leader()) *found = all;
  }
  GPUFS_DEVICE static Group this_group() {
    if constexpr (std::is_same_v<Group, simt::block>) {
      return this_block();
    } else if constexpr (std::is_same_v<Group, simt::warp>) {
      return this_warp();
    } else {
      return this_thread();
    }
  }
};

class extents : public ::testing::Test {
 protected:
  template <class Group>
  std::vector<extent> read(const std::string& path, std::uint32_t at_once, found_extents* all) {
    const auto text = simt::device_string(path);
    const device_buffer<extent> out(room);
    const device_buffer<found_extents> found(1);
    simt::launch({.grid = 1, .block = std::is_same_v<Group, simt::block> ? 64u : 32u},
                 read_all<Group>{fs_->ref(), text.get(), at_once, out.get(), found.get()});
    *all = found.read()[0];
    auto got = out.read();
    got.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, all->n)));
    return got;
  }
  void start(const std::string& root) {
    mount_options o = writing_options(4096, 16);
    o.io_timeout = std::chrono::seconds(20);
    fs_.emplace(root, o);
  }

  const temp_dir dir_;
  std::optional<mount> fs_;
};

// A file with `n` pieces of data, each a block behind a hole; between them one that has a place and no data. False: such a file
// system has no extents.
bool make_pieces(const std::string& path, int n) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail_errno("open " + path);
  const std::vector<std::byte> block(4096, std::byte{7});
  for (int i = 0; i < n; ++i) {
    if (::pwrite(fd, block.data(), block.size(), 16384 * i + 8192) != 4096) fail_errno("pwrite");
  }
  const bool can = ::fallocate(fd, 0, 16384 * n + 4096, 8192) == 0 && ::fsync(fd) == 0;
  ::close(fd);
  return can && !is_tmpfs(path);
}

TEST_F(extents, are_where_the_data_is) {
  constexpr int npieces = 150;
  if (!make_pieces(dir_ / "f", npieces)) GTEST_SKIP() << "temporary files have no extents here";
  let_file_times_pass();
  start(dir_.path());
  found_extents by_few, by_many, by_lane, by_block;
  const auto few = read<simt::warp>("f", 3, &by_few), many = read<simt::warp>("f", 512, &by_many),
             lane = read<simt::thread>("f", 64, &by_lane), block = read<simt::block>("f", 100, &by_block);
  ASSERT_GE(by_few.n, npieces) << "an error, or too few";
  EXPECT_EQ(by_few.calls, (by_few.n + 2) / 3);
  EXPECT_GE(by_many.calls, 2) << "a request carries 128";
  for (const auto* other : {&many, &lane, &block}) {
    ASSERT_EQ(other->size(), few.size());
    EXPECT_EQ(std::memcmp(other->data(), few.data(), few.size() * sizeof(extent)), 0);
  }
  const int fd = ::open((dir_ / "f").c_str(), O_RDONLY | O_CLOEXEC);
  std::int64_t end = 0, unwritten = 0;
  std::map<std::int64_t, std::int64_t> places;  // of the device: begin and end
  for (const extent& e : few) {
    EXPECT_GE(e.offset, end) << "in order, and none twice";
    EXPECT_GT(e.nbytes, 0);
    EXPECT_EQ(e.flags & extent_elsewhere, 0u);
    end = e.offset + e.nbytes;
    places[e.device_offset] = e.device_offset + e.nbytes;
    if ((e.flags & extent_unwritten) != 0) {
      unwritten += e.nbytes;
      continue;
    }
    EXPECT_EQ(::lseek(fd, e.offset, SEEK_DATA), e.offset);
    EXPECT_GE(::lseek(fd, e.offset, SEEK_HOLE), end);
  }
  EXPECT_EQ(unwritten, 8192);
  std::int64_t last = 0;
  for (const auto& [begin, until] : places) {
    EXPECT_GE(begin, last) << "no two bytes have one place";
    last = until;
  }
  std::int64_t data = 0, found = 0;
  for (off_t at = 0; (at = ::lseek(fd, at, SEEK_DATA)) >= 0;) {
    const off_t hole = ::lseek(fd, at, SEEK_HOLE);
    data += hole - at;
    at = hole;
  }
  ::close(fd);
  for (const extent& e : few) found += (e.flags & extent_unwritten) == 0 ? e.nbytes : 0;
  EXPECT_EQ(found, data);
}

struct ask_in_odd_ways {
  mount_ref fs{};
  extent* out = nullptr;
  std::int64_t* results = nullptr;
  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    notes note{results};
    const file f = open(warp, fs, "f"), none = open(warp, fs, "none");
    note(read_extents(warp, f, out, 1, 100).n);
    if (warp.leader()) results[20] = out[0].offset;
    note(read_extents(warp, f, out, 4, 1 << 20).n);
    note(read_extents(warp, f, out, 0).n);
    note(read_extents(warp, f, out, 4, -1).n);
    note(read_extents(warp, f, nullptr, 4).n);
    note(read_extents(warp, none, out, 4).n);
    note(close(warp, f));
    note(read_extents(warp, f, out, 4).n);
    const file to_write = open(warp, fs, "new", O_RDWR | O_CREAT);
    note(pwrite(warp, to_write, "12345", 5, 0));
    note(fsync(warp, to_write));
    note(read_extents(warp, to_write, out, 4).n);
    note(close(warp, to_write));
    const file reader = open(warp, fs, "f"), writer = open(warp, fs, "f", O_RDWR);
    note(read_extents(warp, reader, out, 4).n);  // of a version that has ended
    note(read_extents(warp, writer, out, 4).n > 0);
    note(read_extents(warp, writer, out, 4, std::int64_t{1} << 60).n);
    note(close(warp, reader));
    note(close(warp, writer));
  }
};

TEST_F(extents, errors_and_files_being_written) {
  if (!make_pieces(dir_ / "f", 1)) GTEST_SKIP() << "temporary files have no extents here";
  dir_.overwrite("f", 0, 8192, 1);
  let_file_times_pass();
  start(dir_.path());
  const device_buffer<extent> out(8);
  const device_buffer<std::int64_t> results(32);
  simt::launch({.grid = 1, .block = 32}, ask_in_odd_ways{fs_->ref(), out.get(), results.get()});
  const auto got = results.read();
  const std::int64_t wanted[] = {1, 0, -EINVAL, -EINVAL, -EFAULT, -ENOENT, 0, -EBADF, 5, 0, 1, 0, -ESTALE, 1, 0, 0, 0};
  for (std::size_t i = 0; i < std::size(wanted); ++i) EXPECT_EQ(got[i], wanted[i]) << "call " << i;
  EXPECT_EQ(got[20], 100) << "cut to begin where it was asked for";
  EXPECT_EQ(fs_->counters().host_opens, fs_->counters().host_closes);
}

TEST_F(extents, of_a_file_that_has_changed) {
  if (!make_pieces(dir_ / "f", 1)) GTEST_SKIP() << "temporary files have no extents here";
  let_file_times_pass();
  start(dir_.path());
  const host_file opened(*fs_, "f");
  dir_.overwrite("f", 8192, 10, 2);
  found_extents all;
  read<simt::warp>("f", 4, &all);
  EXPECT_EQ(all.n, -ESTALE);
}

TEST_F(extents, of_files_in_memory_are_not_known) {
  const temp_dir memory(memory_directory());
  if (!is_tmpfs(memory.path())) GTEST_SKIP() << "no files in memory here";
  memory.add("f", 10000, 1);
  let_file_times_pass();
  start(memory.path());
  found_extents all;
  read<simt::warp>("f", 4, &all);
  EXPECT_EQ(all.n, -EOPNOTSUPP);
  EXPECT_TRUE(fs_->log().empty()) << "an answer, and no error of the host's";
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
