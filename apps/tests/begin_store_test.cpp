// SPDX-License-Identifier: Apache-2.0
// Files that are open from a byte of theirs on: by the store, by a service's every way to read, and beside who writes them.
#include "apps/arrays/begin_store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "file/faulty_store.hpp"
#include "gpufs/store/auto_store.hpp"
#include "service/service_fixture.hpp"

namespace gpufs::test {
namespace {

using apps::arrays::begin_store;
using apps::arrays::file_part;
using apps::arrays::windows_from;
using transport::row_buffers;

TEST(begin_store, paths_of_parts) {
  const file_part part{"d/a.npy", 128};
  EXPECT_EQ(part.to_path(), "d/a.npy/#128");
  const auto again = file_part::of(part.to_path());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->path, part.path);
  EXPECT_EQ(again->begin, part.begin);
  for (const char* path :
       {"", "a", "a#1", "/#1", "a/#", "a/#-1", "a/#+1", "a/# 1", "a/#1x", "a/#0x10", "a/#99999999999999999999", "a/#1/b"})
    EXPECT_FALSE(file_part::of(path)) << path;
}

TEST(begin_store, windows_that_have_all_their_parts_registered) {
  constexpr unsigned shift = 4;
  random_source draw(1);
  for (int round = 0; round < 20'000; ++round) {
    const auto nbytes = static_cast<std::int64_t>(draw.below(4) == 0 ? 64 << shift : 1 + draw.below(64 << shift));
    const auto begin = static_cast<std::int64_t>(draw.below(static_cast<std::uint64_t>(nbytes) + 1));
    const std::int64_t nwindows = (nbytes + 15) >> shift;
    const std::uint64_t all = nwindows == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << nwindows) - 1;
    // Few are missing, or most.
    const std::uint64_t bits = draw.below(~std::uint64_t{0}), more = draw.below(~std::uint64_t{0}) | draw.below(~std::uint64_t{0});
    const std::uint64_t registered = (draw.below(3) == 0 ? ~std::uint64_t{0} : draw.below(2) == 0 ? bits : bits | more) & all;
    std::uint64_t wanted = 0;
    for (std::int64_t w = 0; begin + (w << shift) < nbytes; ++w) {
      bool has_all = true;
      for (std::int64_t at = begin + (w << shift); at < std::min(nbytes, begin + ((w + 1) << shift)); ++at)
        has_all = has_all && (registered >> (at >> shift) & 1) != 0;
      if (has_all) wanted |= std::uint64_t{1} << w;
    }
    const store::registered_windows got = windows_from(begin, nbytes, {registered, shift});
    ASSERT_EQ(got.registered, wanted) << nbytes << " from " << begin << ", " << registered;
    ASSERT_TRUE(got.shift == shift);
  }
}

std::shared_ptr<begin_store> with_parts(std::shared_ptr<store::store> files) {
  return std::make_shared<begin_store>(std::move(files));
}

constexpr std::int64_t file_nbytes = 300'001;

class begin_of_files : public running_service {
 protected:
  begin_of_files() {
    dir_.add("a", file_nbytes, 1);
    memory_.add("a", file_nbytes, 1);
    let_file_times_pass();
  }
  static std::shared_ptr<begin_store> posix(const temp_dir& dir, store::posix_options how = {}) {
    return with_parts(std::make_shared<store::posix_store>(dir.path(), how));
  }
  static std::vector<std::byte> bytes(std::int64_t begin, std::uint64_t offset, std::size_t nbytes, std::uint64_t seed = 1) {
    return content(seed, static_cast<std::uint64_t>(begin) + offset, nbytes);
  }
  // Pages and rows all over the file, and its end.
  void expect_bytes(std::uint32_t handle, std::int64_t begin) {
    const auto end = static_cast<std::uint64_t>(file_nbytes - begin);
    std::vector<std::byte> got;
    for (std::uint64_t at = 0; at < end; at += 4096 * 7) {
      const std::size_t nbytes = std::min<std::uint64_t>(4096, end - at);
      ASSERT_EQ(client_->read(handle, static_cast<std::int64_t>(at), 4096, &got), static_cast<std::int64_t>(nbytes));
      ASSERT_TRUE(got == bytes(begin, at, nbytes)) << at;
    }
    EXPECT_EQ(client_->read(handle, static_cast<std::int64_t>(end) - 5, 100, &got), 5);
    EXPECT_EQ(got, bytes(begin, end - 5, 5));
    EXPECT_EQ(client_->read(handle, static_cast<std::int64_t>(end), 100, &got), 0);
    const row_buffers buffers = service_->row_buffers();
    const std::vector<std::uint64_t> offsets{0, 512, 1024, 100'000, end - 512, 7};
    EXPECT_EQ(client_->end_rows(buffers, client_->begin_rows(buffers, handle, offsets, 512), offsets.size() * 512, &got), 0);
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      const auto want = bytes(begin, offsets[i], 512);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + static_cast<std::ptrdiff_t>(512 * i))) << offsets[i];
    }
    const std::vector<std::uint64_t> behind{end - 511};
    EXPECT_EQ(client_->end_rows(buffers, client_->begin_rows(buffers, handle, behind, 512), 0, nullptr), -EINVAL);
  }
  void expect_parts() {
    for (const std::int64_t begin : {16, 128, 4096, 100'000}) {
      const auto file = client_->open(file_part{"a", begin}.to_path());
      ASSERT_EQ(file.result, 0) << begin;
      EXPECT_EQ(file.file_nbytes, file_nbytes - begin);
      expect_bytes(file.handle, begin);
      EXPECT_EQ(client_->close(file.handle), 0);
    }
  }
  static constexpr service::service_options wide{.nrings = 16, .nslots = 8};
  const temp_dir memory_{memory_directory()};
};

TEST_P(begin_of_files, are_read_by_each_way) {
  start(posix(dir_), wide);
  expect_parts();
  start(posix(memory_), wide);
  expect_parts();
  start(posix(dir_, {.direct = true}), wide);
  expect_parts();
  start(with_parts(mapping_store(memory_.path())), wide);
  expect_parts();
  start(with_parts(std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir_.path()), true)), wide);
  expect_parts();
}

TEST_P(begin_of_files, are_read_where_the_page_cache_lacks_them) {
  const int fd = ::open((dir_ / "a").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ::fsync(fd);
  let_file_times_pass();
  start(posix(dir_), wide);
  for (int round = 0; round < 3; ++round) {
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    expect_parts();
  }
  ::close(fd);
  EXPECT_GT(service_->counters().cold_reads, 0u) << "nothing was cold: this test tests nothing on this file system";
}

TEST_P(begin_of_files, come_along_with_the_open) {
  start(posix(dir_));
  std::vector<std::byte> along;
  const auto file = client_->open_along("a/#128", 4096, &along);
  ASSERT_EQ(file.result, 4096);
  EXPECT_TRUE(along == bytes(128, 0, 4096));
}

TEST_P(begin_of_files, are_pages_of_their_own) {
  start(posix(dir_));
  const std::uint32_t whole = open_id("a"), part = open_id("a/#128"), other = open_id("a/#144");
  EXPECT_NE(whole, part);
  EXPECT_NE(part, other);
  EXPECT_NE(whole, other);
  EXPECT_EQ(open_id("a"), whole);
  EXPECT_EQ(open_id("a/#128"), part);
  EXPECT_EQ(open_id("./a/#128"), part);
}

TEST_P(begin_of_files, are_refused_where_there_are_none) {
  dir_.add("d/#16", 100, 3);
  let_file_times_pass();
  start(posix(dir_, {.writable = true}), {.writable = true});
  EXPECT_EQ(client_->open("a/#8").result, -EINVAL);
  EXPECT_EQ(client_->open("a/#300016").result, -EINVAL);
  EXPECT_EQ(client_->open("missing/#16").result, -ENOENT);
  EXPECT_EQ(client_->open("a/#16", O_RDWR).result, -ENOTDIR);
  EXPECT_EQ(client_->open("a/#16", O_WRONLY | O_CREAT).result, -ENOTDIR);
  EXPECT_EQ(client_->open("a/16").result, -ENOTDIR);
  EXPECT_EQ(client_->open("d/#32").result, -ENOENT) << "a folder has no bytes";
  const auto file = client_->open("d/#16");
  ASSERT_EQ(file.result, 0) << "a file with such a name in a folder is that file";
  std::vector<std::byte> got;
  EXPECT_EQ(client_->read(file.handle, 0, 200, &got), 100);
  EXPECT_EQ(got, content(3, 0, 100));
  EXPECT_EQ(client_->close(file.handle), 0);
  dir_.add("even", 160, 4);
  const auto empty = client_->open("even/#160");
  EXPECT_EQ(empty.result, 0);
  EXPECT_EQ(empty.file_nbytes, 0);
  EXPECT_EQ(client_->read(empty.handle, 0, 200, &got), 0);
}

TEST_P(begin_of_files, do_not_open_beside_who_writes_the_file_and_end_when_somebody_does) {
  start(posix(dir_, {.writable = true}), {.writable = true});
  const auto writer = client_->open("a", O_RDWR);
  ASSERT_EQ(writer.result, 0);
  EXPECT_EQ(client_->open("a/#128").result, -EBUSY);
  EXPECT_EQ(client_->open("a").handle, writer.handle);
  EXPECT_EQ(service_->counters().open_files, 1u);
  EXPECT_EQ(client_->close(writer.handle), 0);
  const auto reader = client_->open("a/#128");
  ASSERT_EQ(reader.result, 0);
  expect_bytes(reader.handle, 128);
  const auto later = client_->open("a", O_RDWR);
  ASSERT_EQ(later.result, 0);
  EXPECT_EQ(client_->read(reader.handle, 0, 100), -ESTALE);
  EXPECT_EQ(client_->close(later.handle), 0);
  EXPECT_EQ(client_->read(reader.handle, 0, 100), -ESTALE);
  EXPECT_EQ(client_->close(reader.handle), 0);
}

TEST_P(begin_of_files, end_when_others_write) {
  start(posix(dir_));
  const auto before = client_->open("a/#128");
  dir_.overwrite("a", 0, 10, 7);
  EXPECT_EQ(client_->read(before.handle, 0, 100), -ESTALE);
  EXPECT_EQ(client_->close(before.handle), 0);
  dir_.resize("a", 20'000);
  let_file_times_pass();
  const auto after = client_->open("a/#128");
  EXPECT_NE(after.cache_id, before.cache_id);
  EXPECT_EQ(after.file_nbytes, 20'000 - 128);
  EXPECT_EQ(client_->close(after.handle), 0);
}

TEST_P(begin_of_files, live_through_a_rename) {
  start(posix(dir_, {.writable = true}), {.writable = true});
  const auto file = client_->open("a/#128");
  transport::request ask{};
  ask.op = opcode::rename;
  ASSERT_EQ(client_->on_path(ask, "a", "b").result, 0);
  expect_bytes(file.handle, 128);
  EXPECT_EQ(client_->close(file.handle), 0);
}

TEST_P(begin_of_files, are_registered_where_they_are_missed) {
  constexpr std::int64_t window = 64 << 10, begin = 40 << 10;
  start(with_parts(mapping_store(memory_.path())), wide);
  std::atomic<std::uint64_t> registered{0}, nwrong{0};
  service_->on_windows([&](std::uint32_t, std::uint32_t, const std::byte* base, const store::registered_windows& windows) {
    if (*base != bytes(begin, 0, 1)[0]) ++nwrong;
    registered = windows.registered;
    return true;
  });
  const auto file = client_->open(file_part{"a", begin}.to_path());
  ASSERT_EQ(file.kind, source_kind::windows);
  ASSERT_NE(file.pull_base, 0u);
  const auto read_all = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t at = first; at < end; at += 4096) EXPECT_GT(client_->read(file.handle, at, 4096), 0);
  };
  // The file's second window, and so no whole one of the part; then its third, and the part's second one has all it needs.
  read_all(window - begin, 2 * window - begin);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(registered, 0u);
  read_all(2 * window - begin, 3 * window - begin);
  EXPECT_TRUE(wait_until([&] { return registered == 2; })) << registered;
  EXPECT_TRUE(wait_until([&] {
    read_all(0, file_nbytes - begin);
    return registered == 0xf;
  })) << registered;
  const auto described = service_->describe(file.handle);
  EXPECT_TRUE(described && described->reason.rfind("windows: ", 0) == 0 && described->reason.rfind("windows: 0 ", 0) != 0);
  EXPECT_EQ(nwrong, 0u);
  const auto again = client_->open(file_part{"a", 256}.to_path());
  EXPECT_EQ(again.kind, source_kind::pull);
  EXPECT_TRUE(std::ranges::equal(std::span(reinterpret_cast<const std::byte*>(again.pull_base), 1000), bytes(256, 0, 1000)));
}

// As of an array of 2^k bytes behind a header: the file's last window has only a part of the last page.
TEST_P(begin_of_files, are_all_registered_though_no_page_begins_in_the_last_window) {
  constexpr std::int64_t window = 64 << 10, begin = 128, nbytes = 2 * window;
  memory_.add("array", static_cast<std::uint64_t>(begin + nbytes), 1);
  let_file_times_pass();
  start(with_parts(mapping_store(memory_.path())), wide);
  std::atomic<std::uint64_t> registered{0};
  service_->on_windows([&](std::uint32_t, std::uint32_t, const std::byte*, const store::registered_windows& windows) {
    registered = windows.registered;
    return true;
  });
  const auto file = client_->open(file_part{"array", begin}.to_path());
  ASSERT_EQ(file.kind, source_kind::windows);
  EXPECT_TRUE(wait_until([&] {
    for (std::int64_t at = 0; at < nbytes; at += 4096) EXPECT_EQ(client_->read(file.handle, at, 4096), 4096);
    return registered == 3;
  })) << registered;
}

INSTANTIATE_TEST_SUITE_P(io, begin_of_files, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "io_uring" : "pread"); });

}  // namespace
}  // namespace gpufs::test
