// SPDX-License-Identifier: Apache-2.0
// Files of ext4 file systems on a namespace, read by kernels: by extents, and no thread of the host is on the way. What is wrong
// with such a file system, and how it is refused: tests/store/ext4_store_test.cpp.
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "ext4_image.hpp"
#include "file/script.hpp"
#include "gpufs/file/extents.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/store/ext4_store.hpp"
#include "gpufs/store/nvme_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using nvme::soft_controller;
using std::chrono::seconds;

constexpr std::uint32_t page = 4096;

// A mount of the image's file system on a controller in software.
struct ext4_mount {
  explicit ext4_mount(const ext4_image& image, std::uint32_t page_nbytes = page, std::uint64_t nframes = 64,
                      std::uint32_t block_shift = 9, std::uint64_t tables_nbytes = 64 << 20)
      : soft(std::make_shared<soft_controller>(simt::this_platform(),
                                               nvme::soft_options{.image = image.path(), .block_shift = block_shift})) {
    const nvme::controller_options driver{.nqueues = 2, .depth = 64, .buffer_nbytes = 8192};
    files = store::make_ext4_store(simt::this_platform(), std::make_unique<store::nvme_store>(simt::this_platform(), soft, driver),
                                   {.file = "n1", .tables_nbytes = tables_nbytes});
    mount_options o;
    o.page_nbytes = page_nbytes;
    o.cache_nbytes = nframes * page_nbytes;
    o.custom_store = files;
    o.max_open_files = 16;
    o.io_timeout = seconds(60);
    fs = std::make_unique<mount>("", o);
  }
  ~ext4_mount() {
    EXPECT_EQ(fs->counters().pins, 0u);
    fs.reset();
    files.reset();
    EXPECT_EQ(soft->violations(), std::vector<std::string>{});
    EXPECT_EQ(soft->done().nmapped, 0u);
  }
  // What a warp's open of the path gives.
  std::int64_t error_of(const std::string& path, int flags = O_RDONLY) const {
    players warp(fs->ref(), {});
    script s;
    s.open(0, path, flags);
    s.close(0);
    return std::min<std::int64_t>(warp.run(s)[0].value, 0);
  }
  source_kind source_of(const std::string& path) const {
    players warp(fs->ref(), {});
    script s;
    s.open(0, path);
    const auto status = s.fstat(0);
    s.close(0);
    return warp.run(s)[status].status().source;
  }
  // Where it and the bytes differ that each group of this kind reads, by reads at odd places and by one page that it maps.
  void expect_bytes(const std::string& path, const std::vector<std::byte>& wanted, group_kind kind = group_kind::warp) const {
    SCOPED_TRACE(path);
    players groups(fs->ref(), {.grid = 1, .block = 64, .all = kind});
    const std::uint64_t nbytes = wanted.size(), part = nbytes / 3 + 1, shift = fs->options().page_nbytes;
    const std::uint64_t mapped = nbytes / 2 / shift * shift, there = std::min<std::uint64_t>(nbytes - mapped, shift);
    script s;
    s.open(0, path);
    std::vector<std::size_t> reads;
    for (std::uint64_t at = 0; at < nbytes; at += part) reads.push_back(s.pread(0, part, static_cast<std::int64_t>(at)));
    const auto page_of_it = nbytes == 0 ? 0 : s.map(0, 0, static_cast<std::int64_t>(mapped), there);
    if (nbytes != 0) s.unmap(0);
    s.close(0);
    for (const auto& got : groups.run_all(s)) {
      ASSERT_GE(got[0].value, 0);
      for (std::size_t i = 0; i < reads.size(); ++i) {
        const std::uint64_t at = i * part, n = std::min(part, nbytes - at);
        ASSERT_EQ(got[reads[i]].value, static_cast<std::int64_t>(n));
        EXPECT_TRUE(std::equal(wanted.begin() + static_cast<std::ptrdiff_t>(at),
                               wanted.begin() + static_cast<std::ptrdiff_t>(at + n), got[reads[i]].bytes.begin()))
            << "at " << at;
      }
      if (nbytes == 0) continue;
      ASSERT_GE(got[page_of_it].value, 0);
      EXPECT_TRUE(std::equal(got[page_of_it].bytes.begin(), got[page_of_it].bytes.begin() + static_cast<std::ptrdiff_t>(there),
                             wanted.begin() + static_cast<std::ptrdiff_t>(mapped)));
    }
  }
  bool log_has(const std::string& words) const {
    for (const std::string& line : fs->log()) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }

  std::shared_ptr<soft_controller> soft;
  std::shared_ptr<store::store> files;
  std::unique_ptr<mount> fs;
};

class nvme_ext4 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_ext4(); !why.empty()) GTEST_SKIP() << why;
  }
  const ext4_image image_;
};

TEST_F(nvme_ext4, files_are_read_by_kernels_and_by_no_thread_of_the_host) {
  for (const std::uint64_t nbytes : {0, 1, 1023, 4097, 150'001})
    image_.dir.add("tree/of_" + std::to_string(nbytes), nbytes, nbytes + 1);
  image_.dir.add("tree/d/e/f", 9000, 7);
  const std::vector<std::byte> combed = image_.add_combed("combed", 400);
  ASSERT_EQ(::symlink("d/e/f", image_.tree("link").c_str()), 0);
  struct way {
    const char* options;
    std::uint32_t page_nbytes, block_shift;
    std::uint64_t nframes;
  };
  const way ways[] = {{"-t ext4 -b 1024", page, 9, 64},
                      {"-t ext4 -b 1024", 512, 12, 300},
                      {"-t ext4 -b 4096", 65536, 9, 8},
                      {"-t ext2 -b 1024", 65536, 12, 8},
                      {"-t ext3 -b 4096", page, 12, 24}};
  for (const way& each : ways) {
    SCOPED_TRACE(each.options);
    image_.make(each.options, 8 << 10);
    const ext4_mount on(image_, each.page_nbytes, each.nframes, each.block_shift);
    for (const group_kind kind : {group_kind::thread, group_kind::tile8, group_kind::warp, group_kind::block}) {
      if (kind != group_kind::warp && each.options != ways[0].options) continue;
      on.expect_bytes("combed", combed, kind);
      on.expect_bytes("link", content(7, 0, 9000), kind);
    }
    for (const std::uint64_t nbytes : {0, 1, 1023, 4097, 150'001})
      on.expect_bytes("of_" + std::to_string(nbytes), content(nbytes + 1, 0, nbytes));
    EXPECT_EQ(on.source_of("combed"), source_kind::nvme);
    EXPECT_EQ(on.fs->counters().host_reads, 0u);
  }
}

TEST_F(nvme_ext4, files_are_mounted_as_the_guide_says) {
  image_.dir.add("tree/d/e/f", 9000, 7);
  image_.make("-t ext4", 4 << 10);
  auto& device = gpufs::simt::this_platform();
  const auto controller = std::make_shared<gpufs::nvme::soft_controller>(device, gpufs::nvme::soft_options{.image = image_.path()});
  const auto namespaces = std::make_shared<gpufs::store::nvme_store>(device, controller);
  const std::shared_ptr<gpufs::store::store> files = gpufs::store::make_ext4_store(device, namespaces, {.file = "n1"});
  const gpufs::mount fs("", {.cache_nbytes = 256 << 10, .custom_store = files});
  players warp(fs.ref(), {});
  script s;
  s.open(0, "d/e/f");
  const auto read = s.pread(0, 9000, 0);
  s.close(0);
  EXPECT_EQ(wrong_bytes(warp.run(s)[read], 9000, 7, 0), 0u);
}

// Reads of a pointer at words all over the file.
struct sum_words_of_combed {
  mount_ref fs;
  std::int64_t nwords;
  std::uint64_t* sums;

  GPUFS_DEVICE void operator()() const {
    const std::uint32_t me = simt::block_rank() * simt::block_size() + simt::thread_rank();
    const file f = open(this_warp(), fs, "combed");
    {
      const auto p = map<const std::uint64_t>(this_warp(), f);
      for (std::int64_t i = 0; i < 8; ++i) {
        if (me % 3 != 1) sums[me] += p[(me * 397 + i * 1031) % nwords];
      }
    }
    close(this_warp(), f);
  }
};

TEST_F(nvme_ext4, pointers_and_batches_of_rows_read_extents_and_holes) {
  const std::vector<std::byte> combed = image_.add_combed("combed", 200);
  image_.make("-t ext4 -b 1024", 4 << 10);
  const ext4_mount on(image_);
  constexpr std::uint32_t nlanes = 64;
  const auto nwords = static_cast<std::int64_t>(combed.size() / 8);
  const simt::device_array<std::uint64_t> sums(nlanes);
  simt::launch({.grid = 1, .block = nlanes}, sum_words_of_combed{on.fs->ref(), nwords, sums.get()});
  std::vector<std::uint64_t> wanted(nlanes);
  for (std::uint32_t me = 0; me < nlanes; ++me) {
    for (std::int64_t i = 0; me % 3 != 1 && i < 8; ++i) {
      std::uint64_t word;
      std::memcpy(&word, combed.data() + (me * 397 + i * 1031) % nwords * 8, 8);
      wanted[me] += word;
    }
  }
  EXPECT_EQ(sums.read(), wanted);

  const host_file opened(*on.fs, "combed");
  const std::uint64_t row_nbytes = 3000;
  const row_layout layout{.row_nbytes = row_nbytes, .nrows = combed.size() / row_nbytes};
  std::vector<std::int64_t> numbers;
  for (std::uint64_t i = 0; i < 40; ++i) numbers.push_back(static_cast<std::int64_t>(i * 37 % layout.nrows));
  const device_buffer<std::int64_t> asked{std::span<const std::int64_t>(numbers)};
  const device_buffer<std::byte> rows(numbers.size() * row_nbytes);
  const simt::stream turns;
  row_batch batch(*on.fs, numbers.size(), 4);
  batch.gather(opened.ref(), layout, asked.get(), numbers.size(), rows.get(), turns);
  turns.wait();
  EXPECT_EQ(batch.failure().error, 0);
  const std::vector<std::byte> got = rows.read();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto row = combed.begin() + static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(numbers[i]) * row_nbytes);
    ASSERT_TRUE(std::equal(row, row + row_nbytes, got.begin() + static_cast<std::ptrdiff_t>(i * row_nbytes))) << i;
  }
  EXPECT_EQ(on.fs->counters().host_reads, 0u);
}

struct note_extents {
  mount_ref fs;
  extent* out;
  std::int64_t* n;

  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), fs, "large");
    const extents_part part = read_extents(this_warp(), f, out, 500);
    if (this_warp().leader()) *n = part.n;
    close(this_warp(), f);
  }
};

// Its blocks lie where files between others were removed.
TEST_F(nvme_ext4, files_in_pieces_all_over_the_device_are_read) {
  for (int i = 0; i < 300; ++i) image_.dir.add("tree/small/" + std::to_string(i), 2048, 1);
  image_.dir.add("large", 200'000, 5);
  image_.make("-t ext4 -b 1024 -N 400 -O ^has_journal", 1000);
  std::vector<std::string> lines;
  for (int i = 0; i < 300; i += 2) lines.push_back("rm small/" + std::to_string(i));
  lines.push_back("write " + image_.dir.path() + "/large large");
  image_.debug(lines);
  const ext4_mount on(image_);
  int error = 0;
  const auto file = on.files->open("large", O_RDONLY, &error);
  ASSERT_TRUE(file);
  std::vector<extent> runs(500);
  std::int64_t at = 0;
  runs.resize(static_cast<std::size_t>(file->extents(&at, runs)));
  EXPECT_GE(runs.size(), 20u);
  const simt::device_array<extent> noted(500);
  const simt::device_array<std::int64_t> n(1);
  simt::launch({.grid = 1, .block = 32}, note_extents{on.fs->ref(), noted.get(), n.get()});
  ASSERT_EQ(n.read()[0], static_cast<std::int64_t>(runs.size()));
  EXPECT_EQ(std::memcmp(noted.read().data(), runs.data(), runs.size() * sizeof runs[0]), 0);
  on.expect_bytes("large", content(5, 0, 200'000));
  on.expect_bytes("small/1", content(1, 0, 2048));
  EXPECT_EQ(on.fs->counters().host_reads, 0u);
}

TEST_F(nvme_ext4, files_larger_than_4_gib_and_what_was_never_written_are_read) {
  constexpr std::int64_t far = (std::int64_t{5} << 30) + 1024;
  image_.dir.add_sparse("tree/huge", far, 3000, 5);
  image_.dir.add("tree/file", 2000, 3);
  image_.make("-t ext4 -b 1024", 4 << 10);
  image_.debug({"fallocate file 2 20", "sif file size 15000"});
  const ext4_mount on(image_);
  // What was allocated has other bytes on the device.
  int error = 0;
  extent runs[4] = {};
  std::int64_t first = 0;
  const auto file = on.files->open("file", O_RDONLY, &error);
  ASSERT_TRUE(file);
  ASSERT_GE(file->extents(&first, runs), 2);
  ASSERT_EQ(runs[1].flags, extent_unwritten);
  on.soft->write_image(static_cast<std::uint64_t>(runs[1].device_offset) / 512, content(77, 0, 1024));
  auto wanted = content(3, 0, 2000);
  wanted.resize(15'000);
  on.expect_bytes("file", wanted);

  players warp(on.fs->ref(), {});
  script s;
  s.open(0, "huge");
  const auto across = s.pread(0, 5000, far - 2000), before = s.pread(0, 3000, std::int64_t{3} << 30);
  s.close(0);
  const auto got = warp.run(s);
  ASSERT_EQ(got[across].value, 5000);
  auto tail = std::vector<std::byte>(2000);
  const auto bytes = content(5, static_cast<std::uint64_t>(far), 3000);
  tail.insert(tail.end(), bytes.begin(), bytes.end());
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), got[across].bytes.begin()));
  EXPECT_EQ(got[before].value, 3000);
  EXPECT_EQ(std::count(got[before].bytes.begin(), got[before].bytes.begin() + 3000, std::byte{0}), 3000);
}

TEST_F(nvme_ext4, files_in_their_inodes_are_read_by_the_host) {
  image_.dir.add("tree/small", 100, 3);
  image_.dir.add("tree/large", 10'000, 4);
  image_.make("-t ext4 -b 1024 -I 256 -O inline_data", 4 << 10);
  const ext4_mount on(image_);
  EXPECT_EQ(on.source_of("small"), source_kind::staged);
  EXPECT_EQ(on.source_of("large"), source_kind::nvme);
  on.expect_bytes("small", content(3, 0, 100));
  on.expect_bytes("large", content(4, 0, 10'000));
}

TEST_F(nvme_ext4, files_whose_tables_find_no_room_are_read_by_the_host_until_there_is_some) {
  image_.dir.add("tree/a", 10'000, 4);
  const std::vector<std::byte> combed = image_.add_combed("combed", 100), other = image_.add_combed("other", 100);
  image_.make("-t ext4 -b 1024", 4 << 10);
  const ext4_mount on(image_, page, 64, 9, 4096);
  const auto kind_of = [&](const store::open_file* file) { return file == nullptr ? source_kind::zero : file->info().kind; };
  int error = 0;
  auto first = on.files->open("combed", O_RDONLY, &error);
  EXPECT_EQ(kind_of(first.get()), source_kind::nvme);
  EXPECT_FALSE(on.files->lacks_room());
  const auto second = on.files->open("other", O_RDONLY, &error);
  EXPECT_EQ(kind_of(second.get()), source_kind::staged);
  EXPECT_NE(second->info().reason.find("no room"), std::string::npos);
  EXPECT_TRUE(on.files->lacks_room());
  EXPECT_EQ(kind_of(on.files->open("combed", O_RDONLY, &error).get()), source_kind::nvme) << "it has its table already";
  on.files->make_room();  // the first one is open
  EXPECT_EQ(kind_of(on.files->open("other", O_RDONLY, &error).get()), source_kind::staged);
  on.expect_bytes("other", other);
  first.reset();
  on.files->make_room();
  EXPECT_FALSE(on.files->lacks_room());
  EXPECT_EQ(kind_of(on.files->open("other", O_RDONLY, &error).get()), source_kind::nvme);
  on.expect_bytes("combed", combed);
}

TEST_F(nvme_ext4, opens_fail_as_they_do_in_a_folder_and_the_log_says_what_is_damaged) {
  image_.dir.add("tree/a", 10'000, 4);
  image_.dir.add("tree/b", 10'000, 5);
  ASSERT_EQ(::symlink("loop", image_.tree("loop").c_str()), 0);
  ASSERT_EQ(::symlink("/a", image_.tree("absolute").c_str()), 0);
  image_.make("-t ext4 -b 1024 -O ^metadata_csum", 4 << 10);
  image_.patch(image_.inode_at("b") + 0x28 + 12 + 8, std::uint32_t{4095});
  const ext4_mount on(image_);
  EXPECT_EQ(on.error_of("a"), 0);
  EXPECT_EQ(on.error_of("none"), -ENOENT);
  EXPECT_EQ(on.error_of("lost+found"), -EISDIR);
  EXPECT_EQ(on.error_of("loop"), -ELOOP);
  EXPECT_EQ(on.error_of("absolute"), -EXDEV);
  EXPECT_EQ(on.error_of("a", O_RDWR), -EROFS);
  EXPECT_EQ(on.error_of("b"), -EUCLEAN);
  EXPECT_TRUE(on.log_has("out of range, overlap, or are too many: run e2fsck"));
}

TEST_F(nvme_ext4, what_the_controller_says_of_a_files_blocks_its_reader_is_told) {
  image_.dir.add("tree/a", 20'000, 4);
  image_.make("-t ext4 -b 4096", 4 << 10);
  const ext4_mount on(image_);
  int error = 0;
  extent run{};
  std::int64_t at = 0;
  ASSERT_EQ(on.files->open("a", O_RDONLY, &error)->extents(&at, std::span(&run, 1)), 1);
  const auto lba = static_cast<std::uint64_t>(run.device_offset) / 512 + 8;  // of its second page
  on.soft->add({.opcode = 2, .first_lba = lba, .last_lba = lba + 7, .status = 0x281 | 0x4000});
  players warp(on.fs->ref(), {});
  script s;
  s.open(0, "a");
  const auto first = s.pread(0, 100, 0), second = s.pread(0, 100, page), again = s.pread(0, 100, page);
  s.close(0);
  const auto got = warp.run(s);
  EXPECT_EQ(got[first].value, 100);
  EXPECT_EQ(got[second].value, -EIO);
  EXPECT_EQ(got[again].value, 100);
  // So of blocks that the host reads to find it, once.
  const ext4_mount other(image_);
  other.soft->add({.opcode = 2, .status = 0x281 | 0x4000});
  EXPECT_EQ(other.error_of("a"), -EIO);
  EXPECT_EQ(other.error_of("a"), 0);
  const auto fails = std::make_shared<soft_controller>(simt::this_platform(), nvme::soft_options{.image = image_.path()});
  auto device = std::make_unique<store::nvme_store>(simt::this_platform(), fails);  // which has looked for partitions
  fails->add({.opcode = 2, .status = 0x281 | 0x4000});
  try {
    store::make_ext4_store(simt::this_platform(), std::move(device));
    ADD_FAILURE() << "its superblock was not read";
  } catch (const std::system_error& refused) {
    EXPECT_EQ(refused.code().value(), EIO) << refused.what();
  }
  // A namespace that is another one by now opens no file.
  on.soft->resize(4 << 10);
  std::this_thread::sleep_for(std::chrono::milliseconds(11));  // what an open saw is believed for 10
  EXPECT_EQ(on.error_of("a"), -ESTALE);
}

TEST_F(nvme_ext4, a_file_system_in_a_file_of_one_is_read_by_the_host) {
  image_.dir.add("tree/a", 20'000, 4);
  image_.make("-t ext4 -b 1024", 1 << 10);
  std::filesystem::rename(image_.path(), image_.tree("inner"));
  image_.make("-t ext4 -b 4096", 4 << 10);
  const auto soft = std::make_shared<soft_controller>(simt::this_platform(), nvme::soft_options{.image = image_.path()});
  std::shared_ptr<store::store> outer =
      store::make_ext4_store(simt::this_platform(), std::make_unique<store::nvme_store>(simt::this_platform(), soft));
  const auto inner = store::make_ext4_store(simt::this_platform(), outer, {.file = "inner"});
  int error = 0;
  const auto file = inner->open("a", O_RDONLY, &error);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->info().kind, source_kind::staged);
  std::vector<std::byte> got(20'000);
  EXPECT_EQ(file->pread(got, 0), 20'000);
  EXPECT_TRUE(got == content(4, 0, 20'000));
}

TEST_F(nvme_ext4, files_on_a_partition_and_on_a_stripe_are_read) {
  const std::vector<std::byte> combed = image_.add_combed("combed", 300);
  image_.make("-t ext4 -b 1024", 4 << 10);
  const std::vector<std::byte> bytes = image_.dir.read("image");
  const auto expect_combed = [&](const std::shared_ptr<store::store>& device, const char* file) {
    mount_options o;
    o.cache_nbytes = 64 * page;
    o.custom_store = store::make_ext4_store(simt::this_platform(), device, {.file = file});
    const mount fs("", o);
    players warp(fs.ref(), {});
    script s;
    s.open(0, "combed");
    const auto read = s.pread(0, combed.size(), 0);
    s.close(0);
    EXPECT_TRUE(warp.run(s)[read].bytes == combed) << file;
    EXPECT_EQ(fs.counters().host_reads, 0u) << file;
  };

  constexpr std::uint64_t first = 2048;  // block of the partition
  std::vector<std::byte> table(512);
  const auto put = [&](std::size_t at, std::uint64_t value, std::size_t n) { std::memcpy(table.data() + at, &value, n); };
  put(446 + 4, 0x83, 1);
  put(446 + 8, first, 4);
  put(446 + 12, bytes.size() / 512, 4);
  put(510, 0xaa55, 2);
  const auto whole =
      std::make_shared<soft_controller>(simt::this_platform(), nvme::soft_options{.nblocks = first + bytes.size() / 512});
  whole->write_image(0, table);
  whole->write_image(first, bytes);
  expect_combed(std::make_shared<store::nvme_store>(simt::this_platform(), whole), "n1p1");

  // Units of 4 KiB, so that no extent of 1 KiB lies in two, and none behind the other.
  constexpr std::uint32_t unit = 4096;
  store::nvme_store::controllers controllers;
  for (std::size_t part = 0; part < 2; ++part) {
    std::vector<std::byte> mine;
    for (std::size_t at = part * unit; at < bytes.size(); at += std::size_t{2} * unit)
      mine.insert(mine.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at),
                  bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
    auto soft = std::make_shared<soft_controller>(simt::this_platform(), nvme::soft_options{.nblocks = mine.size() / 512});
    soft->write_image(0, mine);
    controllers.push_back(std::move(soft));
  }
  const std::vector<store::nvme_volume> volumes{{"both", store::nvme_volume_kind::stripe, {"c0n1", "c1n1"}, unit}};
  expect_combed(
      std::make_shared<store::nvme_store>(simt::this_platform(), controllers, nvme::controller_options{.nqueues = 2}, volumes),
      "both");
}

// Of random tables, against a list of all bytes' places.
TEST(nvme_extents, give_each_byte_its_place) {
  random_source draw(3);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<nvme::file_extent> table;
    std::vector<std::uint64_t> places(600);  // 0: zeros
    for (std::uint64_t at = draw.below(20); at < 500;) {
      const std::uint64_t n = draw.between(1, 30), begin = draw.between(1, 1 << 20);
      table.push_back({at, n, begin});
      for (std::uint64_t i = 0; i < n; ++i) places[at + i] = begin + i;
      at += n + (draw.percent(50) ? 0 : draw.between(1, 30));
    }
    for (std::uint64_t at = 0; at < 600; ++at) {
      const std::uint64_t wanted = draw.between(1, 600 - at);
      const nvme::extent_run run = nvme::find_extent(table.data(), table.size(), at, wanted);
      ASSERT_GE(run.nbytes, 1u);
      ASSERT_LE(run.nbytes, wanted);
      for (std::uint64_t i = 0; i < run.nbytes; ++i) ASSERT_EQ(places[at + i], run.is_zeros ? 0 : run.begin + i) << at;
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
