// SPDX-License-Identifier: Apache-2.0
// What is wrong with an ext4 file system's structures, or with its device, and what a store then says.
#include "ext4_fixture.hpp"

namespace gpufs::test {
namespace {

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
