// SPDX-License-Identifier: Apache-2.0
// Rows of files, by host threads and by kernels, by many threads at once, and in streams.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "apps/arrays/background.hpp"
#include "apps/arrays/row_pieces.hpp"
#include "apps/arrays/rows.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/row_batch.hpp"

namespace gpufs::apps::arrays {
namespace {

using bytes = std::vector<std::byte>;
using numbers = std::vector<std::int64_t>;

constexpr std::uint64_t row_nbytes = 100, nrows = 300, begin = 7;

// The file's byte at this offset.
std::byte byte_at(unsigned file, std::uint64_t offset) { return static_cast<std::byte>((offset * 31 + file * 17) >> 2); }

class array_rows : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs_rows_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    for (unsigned i = 0; i < 4; ++i) make(i);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void make(unsigned i) const {
    bytes content(begin + row_nbytes * nrows);
    for (std::uint64_t k = 0; k < content.size(); ++k) content[k] = byte_at(i, k);
    std::ofstream(path(i), std::ios::binary).write(reinterpret_cast<const char*>(content.data()), std::ssize(content));
  }
  std::string path(unsigned i) const { return root_ + "/" + std::to_string(i); }
  bytes content(unsigned i) const {
    std::ifstream file(path(i), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    return {data, data + text.size()};
  }

  // By host threads; and by kernels of this machine.
  std::vector<std::unique_ptr<row_mount>> mounts(bool writable) const {
    std::vector<std::unique_ptr<row_mount>> all;
    all.push_back(make_mount_cpu(root_));
    all.push_back(on_device(writable));
    return all;
  }
  std::unique_ptr<row_mount> on_device(bool writable) const {
    mount_options options;
    options.cache_nbytes = 64 << 10;
    options.page_nbytes = 512;
    options.writable = writable;
    return on_device(options);
  }
  std::unique_ptr<row_mount> on_device(const mount_options& options) const {
#if GPUFS_ON_CUDA
    return make_mount_cuda(root_, options);
#else
    return make_mount_simt(root_, options);
#endif
  }
  static std::unique_ptr<row_file> open(row_mount& mount, unsigned i, bool writable = false) {
    return mount.open(std::to_string(i), {row_nbytes, nrows, {{0, begin}}}, writable);
  }
  static bytes expected(unsigned file, const numbers& ids) {
    bytes all;
    for (std::int64_t id : ids) {
      if (id < 0) id += nrows;
      for (std::uint64_t k = 0; k < row_nbytes; ++k)
        all.push_back(id < 0 || id >= static_cast<std::int64_t>(nrows)
                          ? std::byte{0}
                          : byte_at(file, begin + static_cast<std::uint64_t>(id) * row_nbytes + k));
    }
    return all;
  }
  static row_list list(const numbers& ids) { return {ids.data(), 0, ids.size()}; }
  static stream_handle handle(const simt::stream& stream) {
#if GPUFS_ON_CUDA
    return reinterpret_cast<stream_handle>(stream.get());
#else
    return reinterpret_cast<stream_handle>(&stream);
#endif
  }
  static void wait(const row_file& file) {
    while (!file.ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::string root_;
};

void in_threads(unsigned n, const std::function<void(unsigned)>& work) {
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < n; ++i) threads.emplace_back([&work, i] { work(i); });
}

TEST_F(array_rows, are_read_by_many_threads_from_many_files) {
  for (const auto& mount : mounts(false)) {
    std::vector<std::unique_ptr<row_file>> files;
    for (unsigned i = 0; i < 4; ++i) files.push_back(open(*mount, i));
    in_threads(4, [&](unsigned k) {
      for (unsigned turn = 0; turn < 3; ++turn) {
        const unsigned i = (k + turn) % 4;
        numbers ids;
        for (unsigned j = 0; j < 40; ++j) ids.push_back(static_cast<std::int64_t>(j * 37 + k * 11 + turn) % 600 - 300);
        bytes out(ids.size() * row_nbytes);
        files[i]->read(list(ids), out.data());
        EXPECT_EQ(out, expected(i, ids)) << mount->way();
        numbers range(50);
        std::iota(range.begin(), range.end(), 20 * k);
        bytes together(range.size() * row_nbytes);
        files[i]->read({nullptr, 20 * k, range.size()}, together.data());
        EXPECT_EQ(together, expected(i, range)) << mount->way();
      }
    });
    for (const auto& file : files) file->close();
  }
}

// Pages begin where rows do, behind a header, whichever way they come.
TEST_F(array_rows, lie_in_a_page_each) {
  constexpr std::uint64_t page = 64 << 10, header = 128, n = 16;
  bytes whole(header + n * page);
  for (std::uint64_t k = 0; k < whole.size(); ++k) whole[k] = byte_at(9, k);
  std::ofstream(root_ + "/pages", std::ios::binary).write(reinterpret_cast<const char*>(whole.data()), std::ssize(whole));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // its stamps settle
  const bytes all(whole.begin() + header, whole.end());
  mount_options options;
  options.page_nbytes = page;
  options.cache_nbytes = 4 * n * page;
  for (const bool copies : {false, true}) {
    for (const bool prepares : {false, true}) {
      options.copy_engine = copies;
      const auto mount = on_device(options);
      const auto file = mount->open("pages", {page, n, {{0, header}}}, false);
      if (prepares) file->prepare();
      bytes out(all.size());
      for (std::uint64_t i = 0; i < n; ++i) file->read({nullptr, i, 1}, out.data() + i * page);
      EXPECT_EQ(out, all) << copies << prepares;
      if (!copies) {  // one that the engine does not bring in time is asked for again
        EXPECT_EQ(mount->counters().faults, n);
      }
      if (copies && prepares) {
        EXPECT_GT(mount->counters().host_copies, 0u);
      }
      ASSERT_EQ(mount->files().size(), 1u);
      EXPECT_EQ(mount->files()[0].path, "pages");
      EXPECT_EQ(mount->files()[0].nbytes, std::ssize(whole));
      file->close();
    }
  }
}

TEST_F(array_rows, are_written_by_many_threads) {
  for (const auto& mount : mounts(true)) {
    make(0);
    const auto file = open(*mount, 0, true);
    in_threads(4, [&](unsigned k) {
      for (unsigned turn = 0; turn < 2; ++turn) {
        numbers ids;
        for (std::int64_t id = k; id < static_cast<std::int64_t>(nrows); id += 4) ids.push_back(id);
        const bytes mine(ids.size() * row_nbytes, static_cast<std::byte>(k + 1));
        file->write(list(ids), mine.data());
        bytes out(mine.size());
        file->read(list(ids), out.data());
        EXPECT_EQ(out, mine) << mount->way();
      }
      file->flush(false);
    });
    file->close();
    const bytes now = content(0);
    ASSERT_EQ(now.size(), begin + row_nbytes * nrows);
    for (std::uint64_t k = 0; k < now.size(); ++k) {
      const std::byte wanted = k < begin ? byte_at(0, k) : static_cast<std::byte>((k - begin) / row_nbytes % 4 + 1);
      ASSERT_EQ(now[k], wanted) << "at " << k << ", " << mount->way();
    }
  }
}

TEST_F(array_rows, are_what_they_were_while_prefetches_come_and_go) {
  for (const auto& mount : mounts(false)) {
    const auto file = open(*mount, 1);
    for (unsigned turn = 0; turn < 5; ++turn) {
      prefetcher ahead(*file);
      in_threads(3, [&](unsigned k) {
        ahead.add({5, 200, static_cast<std::int64_t>(k)}, 0, 3);
        ahead.add({}, 10, nrows - 10);
        const numbers ids{5, 6, static_cast<std::int64_t>(turn)};
        bytes out(ids.size() * row_nbytes);
        file->read(list(ids), out.data());
        EXPECT_EQ(out, expected(1, ids));
      });
    }  // stops the prefetches that are under way
    file->close();
  }
}

TEST_F(array_rows, are_what_they_were_once_the_file_is_prepared) {
  for (const bool writable : {false, true}) {
    for (const auto& mount : mounts(writable)) {
      const auto file = open(*mount, 1, writable);
      const numbers ids{5, 200, -1};
      bytes out(ids.size() * row_nbytes);
      file->read(list(ids), out.data());
      in_threads(2, [&](unsigned) { file->prepare(); });
      file->read(list(ids), out.data());
      EXPECT_EQ(out, expected(1, ids));
      file->close();
    }
  }
  const auto mount = on_device(false);
  const auto file = open(*mount, 2);
  std::filesystem::remove(path(2));
  try {
    file->prepare();
    ADD_FAILURE() << "it is gone";
  } catch (const file_error& gone) {
    EXPECT_EQ(gone.number(), ENOENT);
    EXPECT_EQ(gone.path(), path(2));
  }
  file->close();
}

TEST_F(array_rows, are_moved_in_streams_by_many_threads) {
  const auto mount = on_device(true);
  const auto file = open(*mount, 2, true);
  in_threads(3, [&](unsigned k) {
    const simt::stream stream;
    const numbers mine{static_cast<std::int64_t>(k) * 10, static_cast<std::int64_t>(k) * 10 + 1};
    const numbers looks{-1, 150, 299, static_cast<std::int64_t>(nrows) + 5, 200};
    const bytes values(mine.size() * row_nbytes, static_cast<std::byte>(k + 1));
    const simt::device_array<std::int64_t> ids{std::span<const std::int64_t>(mine)};
    const simt::device_array<std::int64_t> others{std::span<const std::int64_t>(looks)};
    const simt::device_array<std::byte> src{std::span<const std::byte>(values)}, out(values.size());
    file->prefetch_on(handle(stream), {others.get(), 0, 3});
    file->write_on(handle(stream), {ids.get(), 0, mine.size()}, src.get());
    file->read_on(handle(stream), {ids.get(), 0, mine.size()}, out.get());  // behind the write
    stream.wait();
    EXPECT_EQ(out.read(), values);
  });
  wait(*file);
  file->check();
  {
    const simt::stream stream;
    const numbers looks{-1, 150, static_cast<std::int64_t>(nrows) + 5, 200, -1000};
    const bytes values(row_nbytes);
    const simt::device_array<std::int64_t> ids{std::span<const std::int64_t>(looks)};
    const simt::device_array<std::byte> out(looks.size() * row_nbytes);
    file->read_on(handle(stream), {ids.get(), 0, looks.size()}, out.get());
    wait(*file);
    EXPECT_EQ(out.read(), expected(2, looks));
    EXPECT_THROW(file->check(), std::out_of_range);
    file->check();                                                // told once
    file->read_on(handle(stream), {ids.get(), 2, 1}, out.get());  // of ids, `first` is none
    wait(*file);
    file->check();
    file->write_on(handle(stream), {ids.get() + 2, 0, 1}, out.get());
    wait(*file);
    EXPECT_THROW(file->write({nullptr, 299, 1}, values.data()), std::out_of_range) << "the next call tells it";
  }
  file->flush(false);
  file->close();
  for (unsigned k = 0; k < 3; ++k) EXPECT_EQ(content(2)[begin + k * 10 * row_nbytes], static_cast<std::byte>(k + 1));
}

// Rows of 40 bytes in pieces of many sizes, from the file's end to its beginning, and where each is.
struct rows_in_pieces {
  row_place place{40, nrows, {}};
  std::vector<std::uint64_t> offsets;

  rows_in_pieces() {
    constexpr std::uint64_t sizes[] = {1, 5, 2, 100, 1, 1, 3};
    std::uint64_t end = begin + row_nbytes * nrows;
    for (std::uint64_t k = 0; offsets.size() < nrows; ++k) {
      const std::uint64_t n = std::min(sizes[k % std::size(sizes)], nrows - offsets.size());
      end -= n * place.row_nbytes + 3;
      place.pieces.push_back({offsets.size(), end});
      for (std::uint64_t i = 0; i < n; ++i) offsets.push_back(end + i * place.row_nbytes);
    }
  }
  bytes expected(unsigned file, const numbers& ids) const {
    bytes all;
    for (const std::int64_t id : ids) {
      for (std::uint64_t k = 0; k < place.row_nbytes; ++k)
        all.push_back(byte_at(file, offsets[static_cast<std::size_t>(id < 0 ? id + std::int64_t{nrows} : id)] + k));
    }
    return all;
  }
};

TEST(pieces_of_rows, each_byte_is_found) {
  const rows_in_pieces rows;
  const row_pieces pieces(rows.place);
  EXPECT_EQ(pieces.file_end(), begin + row_nbytes * nrows - 3);
  EXPECT_EQ(pieces.file_end(0), pieces.file_end()) << "pieces that do not ascend need all of the file";
  for (std::uint64_t i = 0; i < nrows; ++i) {
    std::uint64_t left = 0;  // of the rows that lie together
    while (i + left < nrows && rows.offsets[i + left] == rows.offsets[i] + left * 40) ++left;
    for (const std::uint64_t k : {0, 1, 39}) {
      const byte_run run = pieces.map().at(i * 40 + k);
      EXPECT_EQ(run.offset, rows.offsets[i] + k) << i;
      EXPECT_EQ(run.nbytes, left * 40 - k) << i;
    }
  }
  const row_pieces ascending({10, 100, {{0, 5}, {1, 100}, {98, 5000}}});
  EXPECT_EQ(ascending.file_end(0), 15u);
  EXPECT_EQ(ascending.file_end(97), 1070u);
  EXPECT_EQ(ascending.file_end(), 5020u);
}

TEST_F(array_rows, in_several_pieces_are_moved) {
  const rows_in_pieces rows;
  for (const auto& mount : mounts(true)) {
    make(0);
    const auto file = mount->open("0", rows.place, true);
    numbers ids;
    for (unsigned j = 0; j < 200; ++j) ids.push_back(static_cast<std::int64_t>(j * 37) % 600 - 300);
    bytes out(ids.size() * 40);
    const std::atomic<bool> stop{false};
    file->prefetch(list(ids), stop);
    file->read(list(ids), out.data());
    EXPECT_EQ(out, rows.expected(0, ids)) << mount->way();
    for (const std::uint64_t first : {0, 7, 150}) {
      numbers range(120);
      std::iota(range.begin(), range.end(), first);
      bytes together(range.size() * 40);
      file->prefetch({nullptr, first, range.size()}, stop);
      file->read({nullptr, first, range.size()}, together.data());
      EXPECT_EQ(together, rows.expected(0, range)) << mount->way();
    }
    bytes wanted = content(0);
    const auto write = [&](const row_list& which, std::byte value) {
      const bytes values(which.n * 40, value);
      file->write(which, values.data());
      for (std::uint64_t i = 0; i < which.n; ++i) {
        const std::uint64_t id = which.ids != nullptr ? static_cast<std::uint64_t>(which.ids[i]) : which.first + i;
        std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(rows.offsets[id]), 40, value);
      }
    };
    const numbers some{299, 0, 1, 2, 3, 7, 8, 107};
    write(list(some), std::byte{1});
    write({nullptr, 5, 130}, std::byte{2});
    file->close();
    EXPECT_EQ(content(0), wanted) << mount->way();
  }
}

TEST_F(array_rows, in_several_pieces_are_moved_in_streams) {
  const rows_in_pieces rows;
  const auto mount = on_device(true);
  const auto file = mount->open("1", rows.place, true);
  const simt::stream stream;
  for (const std::size_t n : {std::size_t{10}, std::size_t{row_batch::usually_unsorted} + 100}) {  // row by row; as a batch
    numbers looks;
    for (std::size_t j = 0; j < n; ++j) looks.push_back(static_cast<std::int64_t>(j * 37) % 600 - 300);
    bytes wanted = rows.expected(1, looks);
    // What is prefetched is there: of other rows a prefetch may tell first.
    const simt::device_array<std::int64_t> there{std::span<const std::int64_t>(looks)};
    looks[n / 2] = nrows;
    std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(n / 2 * 40), 40, std::byte{0});
    const simt::device_array<std::int64_t> ids{std::span<const std::int64_t>(looks)};
    const simt::device_array<std::byte> out(n * 40);
    file->prefetch_on(handle(stream), {there.get(), 0, n});
    file->read_on(handle(stream), {ids.get(), 0, n}, out.get());
    wait(*file);
    EXPECT_EQ(out.read(), wanted);
    try {
      file->check();
      ADD_FAILURE();
    } catch (const std::out_of_range& error) {
      EXPECT_NE(std::string(error.what()).find("index " + std::to_string(n / 2) + " "), std::string::npos) << error.what();
    }
  }
  const numbers mine{0, 1, 299};
  const bytes values(mine.size() * 40, std::byte{7});
  const simt::device_array<std::int64_t> ids{std::span<const std::int64_t>(mine)};
  const simt::device_array<std::byte> src{std::span<const std::byte>(values)};
  file->write_on(handle(stream), {ids.get(), 0, mine.size()}, src.get());
  wait(*file);
  file->close();
  for (const std::int64_t id : mine) EXPECT_EQ(content(1)[rows.offsets[static_cast<std::size_t>(id)] + 39], std::byte{7});
}

TEST_F(array_rows, files_are_read_whole) {
  for (const auto& mount : mounts(false)) {
    in_threads(2, [&](unsigned k) {
      std::vector<whole_file> files;
      bytes wanted;
      for (unsigned i = 0; i < 40; ++i) {
        const bytes one = content((i + k) % 4);
        files.push_back({std::to_string((i + k) % 4), one.size(), wanted.size()});
        wanted.insert(wanted.end(), one.begin(), one.end());
      }
      bytes out(wanted.size());
      mount->read_files(files, out.data(), false);
      EXPECT_EQ(out, wanted) << mount->way();
    });
    const whole_file wrong[] = {{"0", begin + row_nbytes * nrows, 0}, {"none", 1, 0}, {"1", 5, 0}};
    bytes out(begin + row_nbytes * nrows);
    for (const int number : {ENOENT, ESTALE}) {
      const std::span part = std::span<const whole_file>(wrong).subspan(number == ESTALE ? 2 : 0);
      try {
        mount->read_files(part, out.data(), false);
        ADD_FAILURE() << mount->way();
      } catch (const file_error& error) {
        EXPECT_EQ(error.number(), number) << mount->way();
      }
    }
  }
}

TEST_F(array_rows, what_is_wrong_is_told) {
  for (const auto& mount : mounts(true)) {
    EXPECT_THROW((void)mount->open("none", {1, 1, {{0, 0}}}, false), file_error);
    EXPECT_THROW((void)mount->open("0", {row_nbytes, nrows + 1, {{0, begin}}}, false), file_error) << "it ends before";
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    const row_place none[] = {
        {row_nbytes, nrows, {}},
        {row_nbytes, nrows, {{1, begin}}},
        {row_nbytes, nrows, {{0, begin}, {0, begin}}},
        {row_nbytes, nrows, {{0, begin}, {nrows, begin}}},
        {row_nbytes, nrows, {{0, begin}, {20, begin}, {10, begin}}},
        {row_nbytes, nrows, {{0, most - row_nbytes}, {1, begin}, {2, most - row_nbytes}}},
        {row_nbytes, most / 2, {{0, begin}}},
    };
    for (const row_place& place : none) EXPECT_THROW((void)mount->open("0", place, false), std::invalid_argument);
    const auto file = open(*mount, 3, true);
    bytes out(10 * row_nbytes);
    const numbers wrong{1, nrows};
    EXPECT_THROW(file->read(list(wrong), out.data()), std::out_of_range);
    EXPECT_THROW(file->read({nullptr, nrows - 1, 2}, out.data()), std::out_of_range);
    EXPECT_THROW(file->write({nullptr, nrows, 1}, out.data()), std::out_of_range);
    std::filesystem::resize_file(path(3), begin + row_nbytes);
    for (const std::function<void()>& use : {std::function<void()>([&] {
                                               file->write({nullptr, 200, 1}, out.data());
                                             }),
                                             std::function<void()>([&] { file->flush(false); })}) {
      try {
        use();
        ADD_FAILURE() << mount->way();
      } catch (const file_error& error) {
        EXPECT_EQ(error.number(), ESTALE);
        EXPECT_EQ(error.path(), path(3));
      }
    }
    file->close();
    make(3);
  }
}

}  // namespace
}  // namespace gpufs::apps::arrays
