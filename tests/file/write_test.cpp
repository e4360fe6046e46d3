// SPDX-License-Identifier: Apache-2.0
// Writing: what groups write is seen by groups at once and by the file after close, exactly those bytes and no others.
#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

class writes : public ::testing::TestWithParam<group_kind> {
 protected:
  formation one() const { return {.grid = 1, .block = GetParam() == group_kind::block ? 64u : 32u, .all = GetParam()}; }
  // Only the first group plays; the others have nothing to do.
  std::vector<outcome> play(players& groups, const script& s) {
    std::vector<script> all(groups.size());
    all[0] = s;
    return groups.run(all)[0];
  }
  temp_dir dir_;
};
std::string name_of(const testing::TestParamInfo<group_kind>& tested) {
  constexpr const char* names[] = {"thread", "tile8", "warp", "block"};
  return names[static_cast<int>(tested.param)];
}
INSTANTIATE_TEST_SUITE_P(groups, writes,
                         ::testing::Values(group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block), name_of);

TEST_P(writes, a_new_file) {
  const mount m(dir_.path(), writing());
  players groups(m.ref(), one());
  const auto bytes = content(7, 0, 3000);
  script s;
  const auto open = s.open(0, "new", O_RDWR | O_CREAT | O_EXCL);
  const auto write = s.pwrite(0, bytes, 0);
  const auto read = s.pread(0, 4000, 0);
  const auto status = s.fstat(0);
  const auto close = s.close(0);
  const auto got = play(groups, s);
  EXPECT_GE(got[open].value, 0);
  EXPECT_EQ(got[write].value, 3000);
  EXPECT_EQ(got[read].value, 3000);
  EXPECT_EQ(wrong_bytes(got[read], 3000, 7, 0), 0u) << "seen at once";
  EXPECT_EQ(got[status].value, 3000);
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(dir_.read("new"), bytes);
  EXPECT_EQ(m.counters().bytes_written, 3000u);
  EXPECT_EQ(m.counters().bytes_written_back, 3000u);
  expect_all_written(m);
}

// A file has fewer than 2^32 pages.
TEST(write_limits, the_last_byte_that_a_file_may_have) {
  const temp_dir dir(memory_directory());
  const mount m(dir.path(), writing());
  players one(m.ref(), {});
  constexpr std::int64_t most = ((std::int64_t{1} << 32) - 1) * page;
  script s;
  s.open(0, "large", O_RDWR | O_CREAT);
  const auto over = s.ftruncate(0, most + 1), cut = s.ftruncate(0, most), size = s.fstat(0);
  const auto beyond = s.pwrite(0, content(1, 0, 1), most), last = s.pwrite(0, content(1, 0, 1), most - 1);
  const auto across = s.pwrite(0, content(2, 0, 2), most - 1), read = s.pread(0, 10, most - 5);
  const auto more = s.append(0, content(3, 0, 1));
  const auto close = s.close(0);
  const auto got = one.run(s);
  EXPECT_EQ(got[over].value, -EFBIG);
  EXPECT_EQ(got[cut].value, 0);
  EXPECT_EQ(got[size].value, most);
  EXPECT_EQ(got[beyond].value, -EFBIG);
  EXPECT_EQ(got[last].value, 1);
  EXPECT_EQ(got[across].value, -EFBIG);
  EXPECT_EQ(got[read].value, 5);
  EXPECT_EQ(got[read].bytes[4], content(1, 0, 1)[0]);
  EXPECT_EQ(got[more].value, -EFBIG);
  EXPECT_EQ(got[close].value, 0);
}

TEST_P(writes, parts_of_pages) {
  dir_.add("file", 5000, 1);
  auto wanted = content(1, 0, 5000);
  const mount m(dir_.path(), writing());
  players groups(m.ref(), one());
  script s;
  s.open(0, "file", O_RDWR);
  std::vector<std::pair<std::size_t, std::int64_t>> expected;
  for (const auto& [offset, nbytes] :
       {std::pair{0, 1}, {511, 1}, {512, 1}, {700, 32}, {731, 33}, {1000, 1100}, {4990, 10}, {4095, 2}}) {
    const auto part = content(2, static_cast<std::uint64_t>(offset), static_cast<std::size_t>(nbytes));
    put(wanted, part, static_cast<std::size_t>(offset));
    expected.emplace_back(s.pwrite(0, part, offset), nbytes);
  }
  const auto read = s.pread(0, 5000, 0);
  const auto close = s.close(0);
  const auto got = play(groups, s);
  for (const auto& [call, value] : expected) EXPECT_EQ(got[call].value, value);
  EXPECT_EQ(got[read].bytes, wanted);
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(dir_.read("file"), wanted);
  EXPECT_EQ(m.counters().bytes_written_back, 1u + 1 + 1 + 32 + 32 + 1100 + 10 + 2) << "bytes that were written, once";
  expect_all_written(m);
}

TEST_P(writes, more_than_the_cache_holds) {
  for (const std::uint32_t nframes : {1u, 2u, 5u, 32u}) {
    const mount m(dir_.path(), writing(nframes));
    players groups(m.ref(), one());
    const auto bytes = content(nframes, 0, 100 * page + 77);
    script s;
    s.open(0, "file", O_RDWR | O_CREAT | O_TRUNC);
    const auto write = s.pwrite(0, bytes, 0);
    const auto read = s.pread(0, bytes.size(), 0);
    const auto close = s.close(0);
    const auto got = play(groups, s);
    ASSERT_EQ(got[write].value, static_cast<std::int64_t>(bytes.size())) << nframes;
    ASSERT_EQ(got[read].bytes, bytes) << nframes;
    ASSERT_EQ(got[close].value, 0);
    ASSERT_EQ(dir_.read("file"), bytes) << nframes;
    expect_all_written(m);
  }
}

TEST_P(writes, once_brings_nothing_in) {
  dir_.add("file", 3000, 1);
  auto wanted = content(1, 0, 3000);
  const mount m(dir_.path(), writing());
  players groups(m.ref(), one());
  script s;
  const std::vector<std::byte> zeros(10);
  s.open(0, "file", O_GWRONCE);
  s.pwrite(0, zeros, 100);
  s.pwrite(0, content(2, 600, 900), 600);
  const auto read = s.pread(0, 10, 0);
  const auto close = s.close(0);
  put(wanted, zeros, 100);
  put(wanted, content(2, 600, 900), 600);
  const auto got = play(groups, s);
  EXPECT_EQ(got[read].value, -EBADF) << "it is not for reading";
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(dir_.read("file"), wanted) << "also bytes that are zeros";
  EXPECT_EQ(m.counters().host_reads, 0u);
  expect_all_written(m);
}

TEST_P(writes, truncation_both_ways) {
  dir_.add("file", 3000, 1);
  const mount m(dir_.path(), writing());
  players groups(m.ref(), one());
  script s;
  s.open(0, "file", O_RDWR);
  s.pread(0, 3000, 0);
  s.pwrite(0, content(2, 2000, 1500), 2000);
  const auto cut = s.ftruncate(0, 1100);
  const auto short_read = s.pread(0, 3000, 0);
  const auto grow = s.ftruncate(0, 2500);
  const auto long_read = s.pread(0, 3000, 0);
  const auto bad = s.ftruncate(0, -1);
  const auto close = s.close(0);
  auto wanted = content(1, 0, 1100);
  const auto got = play(groups, s);
  EXPECT_EQ(got[cut].value, 0);
  EXPECT_EQ(got[short_read].value, 1100);
  EXPECT_EQ(got[grow].value, 0);
  EXPECT_EQ(got[long_read].value, 2500);
  wanted.resize(2500);
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), got[long_read].bytes.begin())) << "zeros, not what was cut";
  EXPECT_EQ(got[bad].value, -EINVAL);
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(dir_.read("file"), wanted);
  expect_all_written(m);
}

TEST_P(writes, mapped_pages) {
  dir_.add("file", 3 * page - 100, 1);
  auto wanted = content(1, 0, 3 * page - 100);
  const mount m(dir_.path(), writing(6));
  players groups(m.ref(), one());
  script s;
  s.open(0, "file", O_RDWR);
  const auto map = s.map_write(0, 0, page + 10);
  const auto last = s.map_write(0, 1, 2 * page);
  const auto beyond = s.map_write(0, 2, 3 * page - 100);
  const auto negative = s.map_write(0, 2, -1);
  s.store(0, content(2, page + 10, 3), 0);
  s.store(0, content(2, page + 100, 64), 90);
  const auto read = s.pread(0, 3 * page, 0);
  const auto sync = s.msync(0, durability::page_cache);
  s.store(0, content(3, page + 102, 2), 92);
  s.store(1, content(3, 3 * page - 101, 1), page - 101);
  const auto unmap = s.unmap_write(0);
  const auto again = s.unmap_write(0);
  const auto synced_after = s.msync(0);
  s.unmap_write(1);
  const auto close = s.close(0);
  put(wanted, content(2, page + 10, 3), page + 10);
  put(wanted, content(2, page + 100, 64), page + 100);
  const auto seen = wanted;
  put(wanted, content(3, page + 102, 2), page + 102);
  put(wanted, content(3, 3 * page - 101, 1), 3 * page - 101);
  const auto got = play(groups, s);
  EXPECT_EQ(got[map].value, page - 10);
  EXPECT_EQ(got[last].value, page - 100);
  EXPECT_EQ(got[beyond].value, -ENXIO);
  EXPECT_EQ(got[negative].value, -EINVAL);
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), got[read].bytes.begin())) << "stores are seen at once";
  EXPECT_EQ(got[sync].value, 0);
  EXPECT_EQ(got[unmap].value, 0);
  EXPECT_EQ(got[again].value, -EBADF);
  EXPECT_EQ(got[synced_after].value, -EBADF);
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(dir_.read("file"), wanted);
  EXPECT_LE(m.counters().bytes_written_back, 3u + 64 + 2 + 1) << "only what changed";
  expect_all_written(m);
}

TEST_P(writes, what_must_be_refused) {
  dir_.add("file", 100, 1);
  const mount m(dir_.path(), writing());
  const mount reader(dir_.path(), {.cache_nbytes = 64 * 4096});
  players groups(m.ref(), one()), readers(reader.ref(), one());
  const auto bytes = content(3, 0, 10);
  script s;
  const auto number = s.open(0, "file");
  const auto read_only = s.pwrite(0, bytes, 0);
  const auto read_only_append = s.append(0, bytes);
  const auto read_only_sync = s.fsync(0);
  const auto read_only_cut = s.ftruncate(0, 0);
  const auto exclusive = s.open(1, "file", O_RDWR | O_CREAT | O_EXCL);
  const auto absent = s.open(1, "absent", O_RDWR);
  const auto create_to_read = s.open(1, "other", O_RDONLY | O_CREAT);
  const auto both = s.open(1, "file", O_WRONLY | O_RDWR);
  const auto outside = s.open(1, "../out", O_RDWR | O_CREAT);
  s.open(1, "file", O_RDWR);
  const auto negative = s.pwrite(1, bytes, -1);
  const auto null = s.pwrite_from_null(1, 1, 0);
  const auto nothing = s.pwrite_from_null(1, 0, 0);
  const auto overflow = s.pwrite_from_null(1, 2, std::int64_t{0x7fffffffffffffff});
  const auto large = s.pwrite(1, bytes, std::int64_t{page} << 32);
  const auto exclusive_again = s.open(2, "file", O_RDWR | O_CREAT | O_EXCL);
  const auto close = s.close(1);
  const auto closed = s.pwrite(1, bytes, 0);
  s.close(0);
  const auto got = play(groups, s);
  EXPECT_GE(got[number].value, 0);
  EXPECT_EQ(got[read_only].value, -EBADF);
  EXPECT_EQ(got[read_only_append].value, -EBADF);
  EXPECT_EQ(got[read_only_sync].value, -EBADF);
  EXPECT_EQ(got[read_only_cut].value, -EBADF);
  EXPECT_EQ(got[exclusive].value, -EEXIST);
  EXPECT_EQ(got[absent].value, -ENOENT);
  EXPECT_EQ(got[create_to_read].value, -EINVAL);
  EXPECT_EQ(got[both].value, -EINVAL);
  EXPECT_EQ(got[outside].value, -EXDEV);
  EXPECT_EQ(got[negative].value, -EINVAL);
  EXPECT_EQ(got[null].value, -EFAULT);
  EXPECT_EQ(got[nothing].value, 0);
  EXPECT_EQ(got[overflow].value, -EOVERFLOW);
  EXPECT_EQ(got[large].value, -EFBIG);
  EXPECT_EQ(got[exclusive_again].value, -EEXIST);
  EXPECT_EQ(got[close].value, 0);
  EXPECT_EQ(got[closed].value, -EBADF);
  EXPECT_EQ(dir_.read("file"), content(1, 0, 100));
  script t;
  for (const int flags : {O_RDWR, O_WRONLY, O_RDWR | O_CREAT, O_GWRONCE, O_RDONLY | O_TRUNC}) t.open(0, "file", flags);
  for (const outcome& o : play(readers, t)) EXPECT_EQ(o.value, -EROFS) << "a mount that may not write";
  expect_all_written(m);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
