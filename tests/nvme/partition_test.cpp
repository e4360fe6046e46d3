// SPDX-License-Identifier: Apache-2.0
// Partitions that a namespace's table names: those that are right, and of damaged tables none that is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>

#include "../../src/nvme/partitions.hpp"
#include "nvme/tables.hpp"

namespace gpufs::test {
namespace {

using nvme::partition;
using nvme::partition_table;

// `fails`: this block cannot be read.
partition_table read(const table_image& image, std::uint64_t fails = ~std::uint64_t{0}) {
  return nvme::read_partitions(image.nblocks, image.block, [&](std::uint64_t lba, std::span<std::byte> to) {
    EXPECT_EQ(to.size() % image.block, 0u);
    const std::uint64_t n = to.size() / image.block;
    if (lba > image.nblocks || n > image.nblocks - lba) {
      ADD_FAILURE() << n << " blocks from " << lba << " on are read, and there are " << image.nblocks;
      return -ENXIO;
    }
    if (fails >= lba && fails < lba + n) return -EIO;
    std::memcpy(to.data(), image.bytes.data() + lba * image.block, to.size());
    return 0;
  });
}
void expect_says(const partition_table& table, const std::string& words) {
  EXPECT_NE(table.why.find(words), std::string::npos) << table.why;
}

const std::vector<table_image::entry> three{{40, 99}, {0, 0}, {100, 100}, {0, 0}, {200, 400}};
const std::vector<partition> as_three{{1, 40, 60}, {3, 100, 1}, {5, 200, 201}};

table_image gpt(std::uint32_t block = 512, const std::vector<table_image::entry>& entries = three) {
  table_image made(1000, block);
  made.put_gpt(entries);
  return made;
}

TEST(nvme_partitions, have_the_crc_of_the_specification) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32_of(reinterpret_cast<const std::byte*>(digits.data()), digits.size()), 0xcbf43926u);
}

TEST(nvme_partitions, of_a_gpt_are_numbered_by_their_entries) {
  for (const std::uint32_t block : {512u, 4096u}) {
    const partition_table got = read(gpt(block));
    EXPECT_EQ(got.all, as_three);
    EXPECT_EQ(got.why, "");
  }
}

TEST(nvme_partitions, come_from_the_backup_where_the_first_header_or_its_entries_are_damaged) {
  const std::uint64_t in_header[] = {0, 12, 16, 24, 40, 72, 80, 84, 88, 91};
  for (const std::uint64_t at : in_header) {
    table_image image = gpt();
    image.bytes[512 + at] ^= std::byte{4};
    EXPECT_EQ(read(image).all, as_three) << at;
  }
  for (const std::uint64_t at : {0, 33, 128 * 127}) {
    table_image image = gpt();
    image.bytes[2 * 512 + at] ^= std::byte{1};
    EXPECT_EQ(read(image).all, as_three) << at;
  }
  EXPECT_EQ(read(gpt(), 1).all, as_three) << "a header that cannot be read";
  EXPECT_EQ(read(gpt(), 5).all, as_three) << "entries that cannot be read";
}

// With CRCs that are right: lengths and places are not believed.
TEST(nvme_partitions, come_from_the_backup_where_the_first_header_leads_nowhere) {
  const auto with = [](std::uint64_t at, auto value) {
    table_image image = gpt();
    image.put(512 + at, value);
    image.put(512 + 16, std::uint32_t{0});
    image.put(512 + 16, crc32_of(image.bytes.data() + 512, 92));
    return image;
  };
  EXPECT_EQ(read(with(72, std::uint64_t{999})).all, as_three);
  EXPECT_EQ(read(with(72, ~std::uint64_t{0} - 3)).all, as_three);
  EXPECT_EQ(read(with(72, std::uint64_t{0})).all, as_three);
  EXPECT_EQ(read(with(80, ~std::uint32_t{0})).all, as_three);
  EXPECT_EQ(read(with(84, std::uint32_t{64})).all, as_three);
  EXPECT_EQ(read(with(84, std::uint32_t{1u << 31})).all, as_three);
  EXPECT_EQ(read(with(48, std::uint64_t{1000})).all, as_three);
  EXPECT_EQ(read(with(40, std::uint64_t{967})).all, as_three);
  EXPECT_EQ(read(with(24, std::uint64_t{999})).all, as_three);
  EXPECT_EQ(read(with(12, std::uint32_t{513})).all, as_three);
}

TEST(nvme_partitions, are_none_where_both_tables_are_damaged) {
  table_image image = gpt();
  image.bytes[512 + 40] ^= std::byte{1};
  image.bytes[999 * 512 + 40] ^= std::byte{1};
  const partition_table got = read(image);
  EXPECT_EQ(got.all, std::vector<partition>{});
  expect_says(got, "is damaged: its header's CRC is another one");
  image = gpt();
  image.bytes[2 * 512 + 700] ^= std::byte{1};
  image.bytes[999 * 512] ^= std::byte{1};
  EXPECT_EQ(read(image).all, std::vector<partition>{});
  expect_says(read(image), "its entries' CRC is another one; and the backup's its header is none");
}

TEST(nvme_partitions, that_are_out_of_range_or_meet_are_left_out_and_others_are_there) {
  const table_image plain(1000, 512);
  const std::uint64_t last = plain.last_usable();
  const partition_table got = read(
      gpt(512, {{40, 99}, {33, 39}, {900, last + 1}, {500, 499}, {600, 400}, {~std::uint64_t{0}, ~std::uint64_t{0}}, {950, last}}));
  EXPECT_EQ(got.all, (std::vector<partition>{{1, 40, 60}, {7, 950, last - 949}}));
  for (const char* each : {"2", "3", "4", "5", "6"}) expect_says(got, std::string("partition ") + each + " is not within");
  // The first meets all of the next three, of which two do not meet each other.
  const partition_table meet = read(gpt(512, {{100, 200}, {120, 130}, {140, 150}, {200, 210}, {211, 220}, {50, 99}}));
  EXPECT_EQ(meet.all, (std::vector<partition>{{5, 211, 10}, {6, 50, 50}}));
  expect_says(meet, "partitions 1 and 2 have blocks in common");
  expect_says(meet, "partitions 1 and 4 have blocks in common");
}

TEST(nvme_partitions, of_a_large_table_are_its_first_and_what_is_said_stays_short) {
  const auto large = [](std::uint64_t apart, std::uint64_t nblocks) {
    table_image made(10'000, 512);
    made.nentries = 1500;
    std::vector<table_image::entry> entries;
    for (std::uint64_t i = 0; i < made.nentries; ++i) {
      entries.push_back({made.first_usable() + i * apart, made.first_usable() + i * apart + nblocks - 1});
    }
    made.put_gpt(entries);
    return read(made);
  };
  const partition_table got = large(2, 1);
  ASSERT_EQ(got.all.size(), 1024u);
  EXPECT_EQ(got.all.front().number, 1u);
  EXPECT_EQ(got.all.back().number, 1024u);
  EXPECT_EQ(got.why, "partitions from number 1025 on are not there, as 1024 of a namespace are the most");
  const partition_table meeting = large(2, 3);
  EXPECT_EQ(meeting.all, std::vector<partition>{});
  expect_says(meeting, "partitions 1 and 2 have blocks in common");
  EXPECT_LT(meeting.why.size(), 520u);
  EXPECT_EQ(meeting.why.substr(meeting.why.size() - 4), " ...");
}

TEST(nvme_partitions, of_an_mbr_are_its_primary_ones) {
  table_image image(1000, 512);
  image.put_mbr_entry(0, 0x83, 10, 90, 0x80);
  image.put_mbr_entry(1, 0x05, 100, 100);
  image.put_mbr_entry(2, 0x83, 200, 0);
  image.put_mbr_entry(3, 0x07, 300, 700);
  const partition_table got = read(image);
  EXPECT_EQ(got.all, (std::vector<partition>{{1, 10, 90}, {4, 300, 700}}));
  EXPECT_EQ(got.why, "partition 2 is an extended one, whose parts are not read");
  image.put_mbr_entry(3, 0x07, 300, 701);
  EXPECT_EQ(read(image).all, (std::vector<partition>{{1, 10, 90}}));
  image.put_mbr_entry(3, 0x07, 0, 5);
  EXPECT_EQ(read(image).all, (std::vector<partition>{{1, 10, 90}}));
  image.put_mbr_entry(3, 0x07, 99, 5);
  EXPECT_EQ(read(image).all, std::vector<partition>{});
}

TEST(nvme_partitions, are_none_where_there_is_no_table) {
  const auto expect_none = [](const table_image& image) {
    EXPECT_EQ(read(image).all, std::vector<partition>{});
    EXPECT_EQ(read(image).why, "");
  };
  expect_none(table_image(1000, 512));
  expect_none(table_image(1, 512));
  expect_none(table_image(0, 512));
  table_image boot(1000, 512);  // a file system's first block
  boot.put_mbr_entry(0, 0x83, 10, 90, 0x41);
  expect_none(boot);
  table_image unsaid = gpt();  // its MBR was written over
  unsaid.put(510, std::uint16_t{0});
  expect_none(unsaid);
  expect_says(read(gpt(), 0), "block 0 cannot be read");
}

// Of what only looks like a table nothing comes that is not in the namespace, or twice, and nothing beyond it is read.
TEST(nvme_partitions, of_tables_that_are_damaged_at_random_lie_apart_in_the_namespace) {
  std::mt19937_64 random(11);
  std::size_t nfound = 0;
  for (int i = 0; i < 1000; ++i) {
    table_image image(300, 512);
    std::vector<table_image::entry> entries;
    for (int e = 0; e < 6; ++e) entries.push_back({random() % 300, random() % 300});
    image.put_gpt(entries);
    for (const std::uint64_t lba : {std::uint64_t{1}, image.nblocks - 1}) {
      const std::uint64_t array = lba == 1 ? 2 : image.nblocks - 1 - image.array_nblocks();
      for (std::uint64_t n = random() % 3; n != 0; --n) {
        image.put(lba * 512 + 4 * (random() % 23), static_cast<std::uint32_t>(random() % 2 == 0 ? random() : random() % 400));
      }
      if (random() % 4 != 0) image.seal(lba, array);
    }
    const partition_table got = read(image);
    nfound += got.all.size();
    std::vector<int> users(300);
    for (const partition& each : got.all) {
      ASSERT_TRUE(each.nblocks != 0 && each.first < 300 && each.nblocks <= 300 - each.first) << i;
      for (std::uint64_t at = each.first; at < each.first + each.nblocks; ++at) ASSERT_EQ(++users[at], 1) << i;
    }
  }
  EXPECT_GT(nfound, 150u) << "most of them have no table at all";
}

}  // namespace
}  // namespace gpufs::test
