// SPDX-License-Identifier: Apache-2.0
// Files of ext2, ext3 and ext4 by their own structures, as the host sees them. Kernels: tests/nvme/ext4_test.cpp.
#include "ext4_fixture.hpp"

namespace gpufs::test {
namespace {

struct format {
  const char* name;
  const char* options;
};
void PrintTo(const format& f, std::ostream* out) { *out << f.name; }

class ext4_formats : public ext4, public testing::WithParamInterface<format> {};

TEST_P(ext4_formats, give_each_file_its_bytes) {
  add_tree(GetParam().options);
  image_.make(GetParam().options, 16 << 10);
  const auto files = mounted();
  expect_tree(*files);
}

INSTANTIATE_TEST_SUITE_P(made, ext4_formats,
                         testing::Values(format{"ext2_of_1_kib", "-t ext2 -b 1024"},
                                         format{"ext2_of_4_kib", "-t ext2 -b 4096 -I 128"}, format{"ext3", "-t ext3 -b 1024"},
                                         format{"ext4_of_1_kib", "-t ext4 -b 1024"}, format{"ext4_of_4_kib", "-t ext4 -b 4096"},
                                         format{"ext4_with_checksums", "-t ext4 -b 4096 -O 64bit,metadata_csum"},
                                         format{"ext4_without_checksums", plain},
                                         format{"ext4_inline", "-t ext4 -b 4096 -I 256 -O inline_data"},
                                         format{"ext4_clusters", "-t ext4 -b 1024 -C 8192 -O bigalloc,^has_journal,^resize_inode"},
                                         format{"ext4_meta_bg", "-t ext4 -b 1024 -O meta_bg,^resize_inode"}),
                         [](const testing::TestParamInfo<format>& f) { return std::string(f.param.name); });

TEST_F(ext4, of_files_larger_than_4_gib_has_bytes_and_holes) {
  constexpr std::uint64_t far = (std::uint64_t{9} << 30) + 4096;
  image_.dir.add_sparse("tree/huge", far, 10'000, 5);
  image_.make("-t ext4 -b 4096", 16 << 10);
  int error = 0;
  const auto files = mounted();
  const auto file = files->open("huge", O_RDONLY, &error);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->info().nbytes, static_cast<std::int64_t>(far + 10'000));
  std::vector<std::byte> got(20'000);
  EXPECT_EQ(file->pread(got, static_cast<std::int64_t>(far) - 5000), 15'000);
  EXPECT_EQ(std::count(got.begin(), got.begin() + 5000, std::byte{0}), 5000);
  const auto wanted = content(5, far, 10'000);
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), got.begin() + 5000));
  extent runs[4];
  std::int64_t at = 0;
  ASSERT_EQ(file->extents(&at, runs), 1);
  EXPECT_EQ(runs[0].offset, static_cast<std::int64_t>(far));
  EXPECT_EQ(runs[0].nbytes, 12'288);
  EXPECT_EQ(file->extents(&at, runs), 0);
}

// Trees of two levels below the root and maps of three levels of blocks.
TEST_F(ext4, of_many_extents_gives_all) {
  for (const char* const options : {"-t ext4 -b 1024", "-t ext2 -b 1024"}) {
    std::filesystem::remove(image_.tree("combed"));
    image_.add_combed("combed", 3000);
    image_.make(options, 16 << 10);
    const auto files = mounted();
    expect_tree(*files);
    int error = 0;
    const auto file = files->open("combed", O_RDONLY, &error);
    std::vector<extent> runs(1000);
    std::uint64_t n = 0;
    const unique_fd device(::open(image_.path().c_str(), O_RDONLY | O_CLOEXEC));
    for (std::int64_t at = 0, got = 0; (got = file->extents(&at, runs)) != 0; n += static_cast<std::uint64_t>(got)) {
      ASSERT_GT(got, 0);
      for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i) {
        ASSERT_EQ(runs[i].offset, static_cast<std::int64_t>((n + i) * 2048));
        ASSERT_EQ(runs[i].nbytes, 1024);
        std::vector<std::byte> block(1024);
        ASSERT_EQ(::pread(device.get(), block.data(), block.size(), runs[i].device_offset), 1024);
        ASSERT_TRUE(block == content(9, (n + i) * 2048, 1024)) << n + i;
      }
    }
    EXPECT_EQ(n, 3000u);
    std::int64_t within = 2048 * 10 + 100;
    ASSERT_EQ(file->extents(&within, std::span(runs).first(1)), 1);
    EXPECT_EQ(runs[0].offset, 2048 * 10 + 100);
    EXPECT_EQ(runs[0].nbytes, 924);
    EXPECT_EQ(within, 2048 * 10 + 1024);
  }
}

TEST_F(ext4, of_what_was_allocated_and_never_written_gives_zeros) {
  image_.dir.add("tree/file", 2000, 3);
  image_.make(plain, 4 << 10);
  image_.debug({"fallocate file 2 20", "sif file size 15000"});
  const auto files = mounted();
  int error = 0;
  const auto file = files->open("file", O_RDONLY, &error);
  ASSERT_TRUE(file);
  auto wanted = content(3, 0, 2000);
  wanted.resize(15'000);
  EXPECT_TRUE(read_all(*file) == wanted);
  extent runs[4];
  std::int64_t at = 0;
  ASSERT_GE(file->extents(&at, runs), 2);
  EXPECT_EQ(runs[0].flags, 0u);
  EXPECT_EQ(runs[1].flags, extent_unwritten);
  at = -1;
  EXPECT_EQ(file->extents(&at, runs), -EINVAL);
}

TEST_F(ext4, of_files_in_inodes_says_that_they_have_no_place) {
  image_.dir.add("tree/small", 50, 3);
  image_.make("-t ext4 -b 1024 -I 256 -O inline_data", 4 << 10);
  const auto files = mounted();
  int error = 0;
  const auto file = files->open("small", O_RDONLY, &error);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->info().kind, source_kind::staged);
  EXPECT_NE(file->info().reason.find("in its inode"), std::string::npos);
  extent runs[2];
  std::int64_t at = 10;
  ASSERT_EQ(file->extents(&at, runs), 1);
  EXPECT_EQ(runs[0].flags, extent_elsewhere);
  EXPECT_EQ(file->extents(&at, runs), 0);
}

TEST_F(ext4, follows_links_inside_the_file_system_and_none_that_leads_out) {
  image_.dir.add("tree/d/e/f", 5000, 7);
  image_.dir.add("tree/a", 100, 6);
  link("d/e", "to_e");
  link("../a", "d/to_a");
  link("d/../d/./e/f", "to_f");
  link("./////////////////////////////////////////////////////////////////////////////////////////////a", "slow");
  link("none", "dangling");
  link("loop", "loop");
  link("/a", "absolute");
  link("../outside", "out");
  link("to_e/", "to_directory");
  link("a/", "to_no_directory");
  ASSERT_EQ(::mkfifo(image_.tree("fifo").c_str(), 0600), 0);
  image_.make("-t ext4 -b 1024", 4 << 10);
  const auto files = mounted();
  for (const char* const path : {"d/e/f", "to_e/f", "to_f", "/to_directory/f", "to_e/./../e/f"}) {
    int error = 0;
    const auto file = files->open(path, O_RDONLY, &error);
    ASSERT_TRUE(file) << path << " " << error;
    EXPECT_TRUE(read_all(*file) == content(7, 0, 5000)) << path;
  }
  for (const char* const path : {"slow", "d/to_a", "to_e/../to_a"}) EXPECT_EQ(opened(*files, path).first, 0) << path;
  const std::pair<const char*, int> wrong[] = {
      {"dangling", -ENOENT},         {"loop", -ELOOP},        {"absolute", -EXDEV}, {"out", -EXDEV},     {"to_e", -EISDIR},
      {"to_no_directory", -ENOTDIR}, {"a/b", -ENOTDIR},       {"a/", -ENOTDIR},     {"a/.", -ENOTDIR},   {"none/../a", -ENOENT},
      {"fifo", -EOPNOTSUPP},         {"lost+found", -EISDIR}, {"d/..", -EISDIR},    {"d/../..", -EXDEV}, {"to_e/x", -ENOENT}};
  for (const auto& [path, error] : wrong) EXPECT_EQ(opened(*files, path).first, error) << path;
  EXPECT_EQ(error_of(*files, "to_f", O_NOFOLLOW), -ELOOP);
  EXPECT_EQ(error_of(*files, "to_e/f", O_NOFOLLOW), 0);
  store::path_status status;
  ASSERT_EQ(files->status("to_f", true, &status), 0);
  EXPECT_TRUE(S_ISLNK(status.mode));
  ASSERT_EQ(files->status("to_f", false, &status), 0);
  EXPECT_TRUE(S_ISREG(status.mode));
  EXPECT_EQ(status.nbytes, 5000);
  for (const char* const root : {"", "/", "."}) {
    ASSERT_EQ(files->status(root, false, &status), 0);
    EXPECT_TRUE(S_ISDIR(status.mode));
  }
  EXPECT_EQ(files->unlink("a", false), -EROFS);
  EXPECT_EQ(files->make_directory("new", 0755), -EROFS);
}

TEST_F(ext4, lists_a_directory_of_ten_thousand_files) {
  image_.dir.add("tree/n0", 0, 0);
  for (int i = 1; i < 10'000; ++i) ASSERT_EQ(::link(image_.tree("n0").c_str(), image_.tree("n" + std::to_string(i)).c_str()), 0);
  image_.make("-t ext4 -b 4096 -O ^has_journal,metadata_csum", 16 << 10);
  image_.check("-D");  // which makes it a tree of hashes
  const auto files = mounted();
  std::vector<std::byte> part(10'000);
  std::map<std::string, directory_entry> entries;
  std::int64_t position = 0, n = 0;
  while ((n = files->read_directory("/", &position, part)) > 0) {
    for (std::int64_t at = 0; at < n;) {
      directory_entry entry;
      std::memcpy(&entry, part.data() + at, sizeof entry);
      entries[reinterpret_cast<const char*>(part.data() + at + sizeof entry)] = entry;
      at += entry.entry_nbytes;
    }
  }
  EXPECT_EQ(n, 0);
  EXPECT_EQ(entries.size(), 10'001u);
  EXPECT_TRUE(S_ISDIR(entries["lost+found"].mode));
  EXPECT_TRUE(S_ISREG(entries["n9999"].mode));
  store::path_status status;
  ASSERT_EQ(files->status("n9999", false, &status), 0);
  EXPECT_EQ(status.inode, entries["n9999"].inode);
  EXPECT_EQ(status.mtime_ns, entries["n9999"].mtime_ns);
  position = 0;
  EXPECT_EQ(files->read_directory("/", &position, std::span(part).first(8)), -EINVAL);
  EXPECT_EQ(files->read_directory("n1", &position, part), -ENOTDIR);
  position = -1;
  EXPECT_EQ(files->read_directory("/", &position, part), -EINVAL);
}

TEST_F(ext4, that_is_none_or_cannot_be_read_as_it_is_is_refused_with_what_helps) {
  image_.dir.add("tree/a", 5000, 1);
  image_.dir.add("image", 1 << 20, 3);
  expect_refused(EINVAL, "neither ext2 nor ext3 or ext4");
  image_.dir.add("image", 1000, 3);
  expect_refused(EINVAL, "the device has 1000 bytes");
  std::filesystem::remove(image_.path());
  expect_refused(ENOENT, "the file image: it cannot be opened");

  const auto with = [&](std::uint64_t at, auto value, int error, const char* words) {
    image_.make(plain, 4 << 10);
    EXPECT_EQ(refused(), "mounted");
    image_.patch(1024 + at, value);
    expect_refused(error, words);
  };
  with(0x60, std::uint32_t{0x10'0000 | 0x42}, EOPNOTSUPP, "s_feature_incompat is 0x100042");
  with(0x4c, std::uint32_t{2}, EOPNOTSUPP, "s_rev_level is 0x2");
  with(0x60, std::uint32_t{0x0246}, EROFS, "its journal has what was not written");
  with(0x3a, std::uint16_t{0}, EBUSY, "it was not unmounted");
  with(0xe8, std::uint32_t{12}, EBUSY, "it was not unmounted");
  with(0x3a, std::uint16_t{3}, EUCLEAN, "Linux has noted errors");
  with(0x04, std::uint32_t{8 << 10}, ENXIO, "8192 blocks of 1024 bytes, and the device 4194304 bytes");
  with(0x18, std::uint32_t{77}, EUCLEAN, "its superblock cannot be used");
  with(1024, std::uint32_t{0x7fff'0000}, EUCLEAN, "its groups' descriptors are damaged");
  image_.make("-t ext4 -b 1024 -O metadata_csum", 4 << 10);
  EXPECT_EQ(refused(), "mounted");
  image_.patch(1024 + 0x78, std::uint64_t{0x41});
  expect_refused(EUCLEAN, "the checksum of its superblock is wrong");
  image_.make("-t ext4 -b 1024 -O metadata_csum", 4 << 10);
  image_.patch(2048 + 0x0c, std::uint16_t{5});
  expect_refused(EUCLEAN, "the checksum of group 0 is wrong");

  image_.make(plain, 4 << 10);
  for (const auto& [error, words] : {std::pair{ENOMEM, "there is not enough memory"},
                                     {ENXIO, "the device cannot be read"},
                                     {EIO, "the device cannot be read"}}) {
    for (const int nread : {0, 1}) {  // of the superblock, of groups
      int left = nread;
      const auto before = [&left, failed = error] { return left-- == 0 ? -failed : 0; };
      try {
        store::make_ext4_store(simt::cpu_platform(), std::make_shared<odd_device>(image_.dir.read("image"), before));
        ADD_FAILURE() << "it was read";
      } catch (const std::system_error& refusal) {
        EXPECT_EQ(refusal.code().value(), error) << nread;
        EXPECT_NE(std::string(refusal.what()).find(words), std::string::npos) << refusal.what();
      }
    }
  }
  try {
    store::make_ext4_store(simt::cpu_platform(),
                           std::make_shared<store::posix_store>(image_.dir.path(), store::posix_options{.writable = true}),
                           {.file = "image"});
    ADD_FAILURE() << "of a store that may write";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), EINVAL);
    EXPECT_NE(std::string(error.what()).find("may write, and must not"), std::string::npos);
  }
}

TEST_F(ext4, with_files_that_are_kept_in_another_way_says_so) {
  image_.dir.add("tree/a", 5000, 1);
  for (const auto& [flag, words] : {std::pair{0x800u, "is encrypted"}, {0x10'0000u, "has fs-verity"}, {0x4u, "is compressed"}}) {
    image_.make("-t ext4 -b 1024", 4 << 10);
    char line[40];
    std::snprintf(line, sizeof line, "sif a flags 0x%x", 0x8'0000 | flag);
    image_.debug({line});
    const auto files = mounted();
    const auto [error, why] = opened(*files, "a");
    EXPECT_EQ(error, -EOPNOTSUPP) << words;
    EXPECT_NE(why.find(words), why.npos) << why;
  }
}

}  // namespace
}  // namespace gpufs::test
