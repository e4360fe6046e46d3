// SPDX-License-Identifier: Apache-2.0
// Files of ext2, ext3 and ext4 by their own structures, and what is wrong with these, as the host sees them. Kernels:
// tests/nvme/ext4_test.cpp.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <map>

#include "ext4_image.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {
namespace {

constexpr char plain[] = "-t ext4 -b 1024 -O ^metadata_csum,^64bit,^has_journal -I 256";  // words that can be patched

// A device of these bytes, in memory. `before` comes before each read: its -errno is the read's, and so is what it throws.
class odd_device final : public gpufs::store::store {
 public:
  odd_device(std::vector<std::byte> bytes, std::function<int()> before)
      : bytes_(std::make_shared<std::vector<std::byte>>(std::move(bytes))), before_(std::move(before)) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view, int flags, int* error) override {
    *error = flags == O_RDONLY ? 0 : -EROFS;
    return flags == O_RDONLY ? std::make_unique<file>(*this) : nullptr;
  }
  std::string_view name() const override { return "odd"; }

 private:
  struct file final : gpufs::store::open_file {
    explicit file(const odd_device& of) : bytes(of.bytes_), before(of.before_) {
      known.nbytes = static_cast<std::int64_t>(bytes->size());
    }
    const gpufs::store::file_info& info() const override { return known; }
    std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
      if (const int error = before(); error != 0) return error;
      std::memcpy(dst.data(), bytes->data() + offset, dst.size());
      return static_cast<std::int64_t>(dst.size());
    }
    std::shared_ptr<const std::vector<std::byte>> bytes;
    std::function<int()> before;
    gpufs::store::file_info known;
  };
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::function<int()> before_;
};

class ext4 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_ext4(); !why.empty()) GTEST_SKIP() << why;
  }
  std::shared_ptr<store::store> mounted() const {
    return store::make_ext4_store(simt::cpu_platform(), std::make_shared<store::posix_store>(image_.dir.path()), {.file = "image"});
  }
  // The errno of a mount that is refused, and what it says.
  std::string refused() const {
    try {
      mounted();
    } catch (const std::system_error& error) {
      return std::to_string(error.code().value()) + " " + error.what();
    }
    return "mounted";
  }
  void expect_refused(int error, const std::string& words) const {
    const std::string said = refused();
    EXPECT_EQ(said.substr(0, said.find(' ')), std::to_string(error)) << said;
    EXPECT_NE(said.find(words), said.npos) << said;
  }
  // What an open of it says.
  static std::pair<int, std::string> opened(store::store& files, const std::string& path) {
    int error = 0;
    std::string why;
    files.open_explained(path, O_RDONLY, &error, &why);
    return {error, why};
  }
  // Every file of the tree is in the file system, with its bytes.
  void expect_tree(store::store& files) const {
    std::size_t nfiles = 0;
    for (const auto& each : std::filesystem::recursive_directory_iterator(image_.tree(""))) {
      if (!each.is_regular_file() || each.is_symlink()) continue;
      const std::string path = std::filesystem::relative(each.path(), image_.tree("")).string();
      int error = 0;
      const auto file = files.open(path, O_RDONLY, &error);
      ASSERT_TRUE(file) << path << " " << error;
      struct stat st;
      ASSERT_EQ(::stat(each.path().c_str(), &st), 0);
      EXPECT_EQ(file->info().nbytes, st.st_size);
      EXPECT_EQ(file->info().mode, st.st_mode);
      EXPECT_TRUE(read_all(*file) == file_bytes(each.path())) << path;
      ++nfiles;
    }
    EXPECT_GT(nfiles, 0u);
  }
  void link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(::symlink(target.c_str(), image_.tree(name).c_str()), 0);
  }
  void add_tree(const char* options) const {
    for (const std::uint64_t nbytes : {0, 1, 60, 100, 1023, 1025, 4096, 4097, 300'001})
      image_.dir.add("tree/of_" + std::to_string(nbytes), nbytes, nbytes + 1);
    image_.dir.add("tree/d/e/f", 5000, 7);
    image_.dir.add_sparse("tree/sparse", 100'000, 5000, 8);
    // Of mke2fs with inline data the last hole is lost.
    const bool may_end_in_a_hole = std::string(options).find("inline_data") == std::string::npos;
    image_.dir.add_sparse("tree/sparse_at_both_ends", 40'000, 5000, 9);
    if (may_end_in_a_hole) image_.dir.resize("tree/sparse_at_both_ends", 200'000);
  }

  const ext4_image image_;
};

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

// Each is an error of the one file, and of nothing else.
TEST_F(ext4, with_damaged_inodes_and_extents_gives_an_error_and_no_bytes) {
  image_.dir.add("tree/a", 50'000, 1);
  image_.dir.add("tree/other", 3000, 2);
  image_.add_combed("combed", 3);
  struct damage {
    const char* file;
    std::uint64_t at;
    std::uint64_t value;
    std::size_t nbytes;
    const char* words;
  };
  constexpr std::uint64_t header = 0x28, first = header + 12, second = first + 12;
  const damage all[] = {
      {"a", header, 0, 2, "have a damaged root"},
      {"a", header + 6, 6, 2, "have a damaged root"},
      {"a", header + 2, 5, 2, "have a damaged root"},
      {"a", header + 6, 1, 2, "run e2fsck"},         // an index in a leaf's place
      {"a", first + 8, 4096, 4, "out of range"},     // behind the end
      {"a", first + 8, 4095, 4, "out of range"},     // across it
      {"a", first + 8, 0, 4, "out of range"},        // the superblock
      {"a", first + 6, 1, 2, "out of range"},        // the place's high bits
      {"a", first + 4, 0, 2, "run e2fsck"},          // no blocks
      {"combed", second, 0, 4, "out of order"},      // the first one's blocks again
      {"combed", first + 4, 3, 2, "run e2fsck"},     // reaches over the second one
      {"combed", first, 9, 4, "out of order"},       // behind the others
      {"a", 0x1a, 0, 2, "or no file's"},             // no links
      {"a", 0x6c, 0x8000'0000u, 4, "or no file's"},  // more bytes than there are numbers
  };
  for (const damage& each : all) {
    image_.make(plain, 4 << 10);
    const std::uint64_t inode = image_.inode_at(each.file);
    ASSERT_EQ(image_.word<std::uint16_t>(inode + header), 0xf30a);
    if (each.nbytes == 2) image_.patch(inode + each.at, static_cast<std::uint16_t>(each.value));
    if (each.nbytes == 4) image_.patch(inode + each.at, static_cast<std::uint32_t>(each.value));
    const auto files = mounted();
    const auto [error, why] = opened(*files, each.file);
    EXPECT_EQ(error, -EUCLEAN) << each.file << " " << each.at << " " << why;
    EXPECT_NE(why.find(each.words), why.npos) << each.at << " " << why;
    EXPECT_EQ(opened(*files, "other").first, 0);
  }
}

// Whatever is opened before and after it, and after a listing: libext2fs keeps four inodes.
TEST_F(ext4, with_one_damaged_inode_opens_the_others_as_themselves) {
  std::vector<int> order{1, 2, 3, 4, 5};
  const auto name_of = [](int i) { return "f" + std::to_string(i); };
  for (const int i : order)
    image_.dir.add("tree/" + name_of(i), 100 * static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i));
  image_.make("-t ext4 -b 1024 -N 32 -O metadata_csum,^has_journal", 300);
  const std::uint64_t owner = image_.inode_at("f3") + 2;
  image_.patch(owner, static_cast<std::uint8_t>(image_.word<std::uint8_t>(owner) ^ 1));
  std::vector<std::byte> part(1000);
  do {
    const auto files = mounted();
    for (int round = 0; round < 2; ++round) {
      for (const int i : order) {
        int error = 0;
        const auto file = files->open(name_of(i), O_RDONLY, &error);
        ASSERT_EQ(error, i == 3 ? -EUCLEAN : 0) << name_of(i);
        if (i == 3) continue;
        ASSERT_EQ(file->info().nbytes, 100 * i);
      }
      std::int64_t position = 0;
      ASSERT_GT(files->read_directory("/", &position, part), 0);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(ext4, with_damaged_nodes_of_trees_and_maps_gives_an_error) {
  image_.add_combed("combed", 250);
  image_.dir.add("tree/other", 3000, 2);
  const auto damaged = [&](const char* options, std::uint64_t at_in_inode, std::uint64_t at, auto value, const char* words) {
    image_.make(options, 8 << 10);
    const std::uint64_t node = image_.word<std::uint32_t>(image_.inode_at("combed") + at_in_inode) * std::uint64_t{1024};
    image_.patch(node + at, value);
    const auto files = mounted();
    const auto [error, why] = opened(*files, "combed");
    EXPECT_EQ(error, -EUCLEAN) << options << " " << at << " " << value;
    EXPECT_NE(why.find(words), why.npos) << why;
    EXPECT_EQ(opened(*files, "other").first, 0);
  };
  constexpr std::uint64_t first_leaf = 0x28 + 12 + 4, ind_block = 0x28 + 4 * 12;
  damaged(plain, first_leaf, 0, std::uint16_t{0}, "run e2fsck");    // its magic number
  damaged(plain, first_leaf, 2, std::uint16_t{0}, "run e2fsck");    // no entries
  damaged(plain, first_leaf, 2, std::uint16_t{999}, "run e2fsck");  // more than it has room for
  damaged(plain, first_leaf, 6, std::uint16_t{1}, "have a node of another depth");
  damaged(plain, first_leaf, 12 + 12, std::uint32_t{0}, "out of order");  // the second before the first
  damaged("-t ext4 -b 1024 -O metadata_csum", first_leaf, 12 + 8, std::uint32_t{700}, "checksum");
  damaged("-t ext2 -b 1024", ind_block, 8, std::uint32_t{0x7fff'ffff}, "run e2fsck");
  damaged("-t ext2 -b 1024", ind_block, 8, std::uint32_t{8 << 10}, "run e2fsck");

  // A tree that leads back to its own node.
  image_.make(plain, 8 << 10);
  const std::uint64_t inode = image_.inode_at("combed");
  const std::uint32_t leaf = image_.word<std::uint32_t>(inode + first_leaf);
  image_.patch(inode + 0x28 + 6, std::uint16_t{2});
  const std::uint64_t node = leaf * std::uint64_t{1024};
  image_.patch(node + 6, std::uint16_t{1});
  image_.patch(node + 12 + 4, leaf);
  image_.patch(node + 12 + 8, std::uint32_t{0});
  const auto files = mounted();
  const auto [error, why] = opened(*files, "combed");
  EXPECT_EQ(error, -EUCLEAN);
  EXPECT_NE(why.find("run e2fsck"), why.npos) << why;
}

// Of a file and of a directory: a block whose words all lead to one that leads to an empty one, with no data anywhere.
TEST_F(ext4, with_maps_that_lead_to_nothing_all_over_has_an_end) {
  image_.dir.add("tree/a", 100, 1);
  image_.dir.add("tree/d/name", 100, 2);
  image_.dir.add("tree/other", 3000, 3);
  image_.make("-t ext2 -b 1024", 4 << 10);
  constexpr std::uint32_t first = 3000;
  for (std::uint64_t word = 0; word < 256; ++word) {
    image_.patch(first * 1024 + word * 4, first + 1);
    image_.patch((first + 1) * 1024 + word * 4, first + 2);
  }
  for (const std::string name : {"a", "d"}) image_.debug({"sif " + name + " block[TIND] " + std::to_string(first)});
  const auto files = mounted();
  for (const char* const path : {"a", "d/name"}) {
    const auto [error, why] = opened(*files, path);
    EXPECT_EQ(error, -EUCLEAN);
    EXPECT_NE(why.find("out of range, or too many"), why.npos) << why;
  }
  EXPECT_EQ(opened(*files, "other").first, 0);
}

// With checksums, whatever byte is another one: a file is right, or it cannot be opened.
TEST_F(ext4, with_any_byte_changed_gives_right_bytes_or_an_error) {
  for (const std::uint64_t nbytes : {10, 5000, 40'000}) image_.dir.add("tree/d/of_" + std::to_string(nbytes), nbytes, nbytes);
  image_.add_combed("d/combed", 250);
  image_.make("-t ext4 -b 1024 -I 256 -N 64 -O metadata_csum,64bit,^has_journal", 600);
  const std::vector<std::byte> image = image_.dir.read("image");
  const auto opened_of = [](const std::vector<std::byte>& bytes) {
    auto device = std::make_unique<store::mem_store>(simt::cpu_platform(), source_kind::staged);
    device->put("n1", bytes);
    return store::make_ext4_store(simt::cpu_platform(), std::move(device));
  };
  const std::vector<std::string> paths{"d/of_10", "d/of_5000", "d/of_40000", "d/combed"};
  // Bytes of files, which have no checksums.
  std::vector<bool> is_data(image.size());
  std::vector<std::vector<std::byte>> wanted;
  const auto whole = opened_of(image);
  for (const std::string& path : paths) {
    int error = 0;
    const auto file = whole->open(path, O_RDONLY, &error);
    ASSERT_TRUE(file);
    wanted.push_back(file_bytes(image_.tree(path)));
    std::vector<extent> runs(500);
    std::int64_t at = 0;
    runs.resize(static_cast<std::size_t>(file->extents(&at, runs)));
    for (const extent& run : runs) std::fill_n(is_data.begin() + run.device_offset, run.nbytes, true);
  }
  random_source draw(11);
  std::uint64_t nrefused = 0, nerrors = 0;
  for (int trial = 0; trial < 300; ++trial) {
    // Where there is something: else nearly all changes are in free blocks.
    std::uint64_t at = 0;
    do {
      at = draw.between(1024, image.size() - 1);
    } while (is_data[at] || (image[at] == std::byte{0} && !draw.percent(2)));
    std::vector<std::byte> changed = image;
    changed[at] ^= static_cast<std::byte>(draw.between(1, 255));
    std::unique_ptr<store::store> files;
    try {
      files = opened_of(changed);
    } catch (const std::system_error&) {
      ++nrefused;
      continue;
    }
    for (std::size_t i = 0; i < paths.size(); ++i) {
      int error = 0;
      const auto file = files->open(paths[i], O_RDONLY, &error);
      nerrors += file == nullptr ? 1 : 0;
      if (file == nullptr) continue;
      ASSERT_TRUE(read_all(*file) == wanted[i]) << paths[i] << " with byte " << at;
    }
  }
  EXPECT_GE(nrefused, 1u);
  EXPECT_GT(nerrors, 20u);
}

// Each read of the device in turn.
TEST_F(ext4, of_a_device_whose_reads_throw_throws_that_and_goes_on) {
  image_.dir.add("tree/d/in_a_map", 300'000, 1);
  image_.make("-t ext2 -b 1024", 1 << 10);
  int left = 0;
  const auto before = [&left] {
    if (left-- == 0) throw std::runtime_error("the device is odd");
    return 0;
  };
  const auto device = std::make_shared<odd_device>(image_.dir.read("image"), before);
  int nthrown = 0;
  for (bool ends = false; !ends; nthrown += ends ? 0 : 1) {
    left = nthrown;
    std::unique_ptr<store::store> files;
    try {
      files = store::make_ext4_store(simt::cpu_platform(), device);
      ASSERT_EQ(opened(*files, "d/in_a_map").first, 0);
      ends = true;
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the device is odd");
    }
    EXPECT_EQ(files == nullptr ? 0 : opened(*files, "d/in_a_map").first, 0) << nthrown;
  }
  EXPECT_GE(nthrown, 6) << "superblock, groups, inodes, directories, a map";
}

TEST_F(ext4, of_no_device_says_so) {
  EXPECT_THROW((void)store::make_ext4_store(simt::this_platform(), nullptr), std::invalid_argument);
}

TEST_F(ext4, with_damaged_directories_gives_an_error) {
  image_.dir.add("tree/d/name", 100, 1);
  image_.dir.add("tree/other", 100, 1);
  image_.make(plain, 4 << 10);
  const std::uint64_t block = image_.word<std::uint32_t>(image_.inode_at("d") + 0x28 + 12 + 8) * std::uint64_t{1024};
  ASSERT_EQ(image_.word<char>(block + 24 + 8), 'n');
  // inode: of the one entry that is listed, of which nothing else is known; 0: none is.
  const auto expect = [&](int error, std::uint32_t inode) {
    const auto files = mounted();
    EXPECT_EQ(opened(*files, "d/name").first, error);
    EXPECT_EQ(opened(*files, "other").first, 0);
    std::vector<std::byte> part(1000);
    std::int64_t position = 0;
    const std::int64_t listed = files->read_directory("d", &position, part);
    directory_entry entry{};
    std::memcpy(&entry, part.data(), sizeof entry);
    EXPECT_EQ(listed, inode == 0 ? -EUCLEAN : entry.entry_nbytes);
    EXPECT_EQ(entry.inode, inode);
    EXPECT_EQ(entry.mode, 0u);
    EXPECT_STREQ(reinterpret_cast<const char*>(part.data() + sizeof entry), inode == 0 ? "" : "name");
  };
  image_.patch(block + 24 + 9, '/');
  expect(-EUCLEAN, 0);
  image_.patch(block + 24 + 9, '\0');
  expect(-EUCLEAN, 0);
  image_.patch(block + 24 + 9, 'a');
  image_.patch(block + 24, std::uint32_t{0x7fff'ffff});  // an inode that there is not
  expect(-EUCLEAN, 0x7fff'ffff);
  image_.patch(block + 24, std::uint32_t{200});  // one that is no file's
  expect(-EUCLEAN, 200);
  const auto nbytes = image_.word<std::uint16_t>(block + 24 + 4);
  for (const int wrong : {0, 3, 8, nbytes - 1, nbytes + 4}) {  // less than its name has, or more than there is
    image_.patch(block + 24 + 4, static_cast<std::uint16_t>(wrong));
    expect(-EUCLEAN, 0);
  }
}

}  // namespace
}  // namespace gpufs::test
