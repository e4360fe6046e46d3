// SPDX-License-Identifier: Apache-2.0
// The kernel on this machine finds what the plain engine finds, to the bit, whatever the layout of the library, the pages, the
// cache, the launch and the schedule.
#include <gtest/gtest.h>

#include <filesystem>

#include "apps/collage/match_device.hpp"
#include "collage_fixture.hpp"
#include "leftovers.hpp"

namespace gpufs::apps::collage {
namespace {

using namespace testing;

bool same(const match& a, const match& b) {
  return a.id == b.id && a.distance == b.distance && a.nbuckets == b.nbuckets && a.nshortlist == b.nshortlist;
}

class collage_kernel : public ::testing::Test {
 protected:
  void SetUp() override { gpufs::test::expect_leftovers("the library stays open for the kernels to come"); }
  static void SetUpTestSuite() {
    folder_ = new temporary_folder;
    build(folder_->file("plain.lib"), 1200, {.shortlist_goal = 48, .key_nbits = 14});
    build(folder_->file("packed.lib"), 1200, {.packed = true, .shortlist_goal = 48, .key_nbits = 14});
    build(folder_->file("small.lib"), 9, {.shortlist_goal = 256});
    picture_ = slow ? new test_photo(2, 1, 77) : new test_photo(5, 3, 77);
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete picture_;
  }

  static void expect_equal(const std::string& name, const engine_options& options) {
    const library lib(folder_->file(name));
    const auto expected = match_cpu(lib, picture_->picture, {});
    const auto found = device_matcher(lib, options, 64).find(picture_->picture, {});
    ASSERT_EQ(found.matches.size(), expected.matches.size());
    for (std::size_t b = 0; b < found.matches.size(); ++b) {
      EXPECT_TRUE(same(found.matches[b], expected.matches[b]))
          << name << ", block " << b << ": image " << found.matches[b].id << " at " << found.matches[b].distance << " of "
          << found.matches[b].nshortlist << ", expected " << expected.matches[b].id << " at " << expected.matches[b].distance
          << " of " << expected.matches[b].nshortlist;
    }
    ASSERT_TRUE(found.counters.has_value());
    EXPECT_EQ(found.counters->errors, 0u);
    EXPECT_EQ(found.counters->pinned_frames, 0u);
    EXPECT_FALSE(found.source.empty());
  }

  static temporary_folder* folder_;
  static test_photo* picture_;
};

temporary_folder* collage_kernel::folder_ = nullptr;
test_photo* collage_kernel::picture_ = nullptr;

TEST_F(collage_kernel, every_page_size_both_layouts) {
  for (const char* name : {"plain.lib", "packed.lib"}) {
    for (std::uint32_t page_nbytes = 512; page_nbytes <= 65536; page_nbytes *= slow ? 16 : 2) {
      expect_equal(name, {.cache_nbytes = std::uint64_t{64} * page_nbytes, .page_nbytes = page_nbytes});
    }
  }
}

TEST_F(collage_kernel, everything_in_the_cache) {
  for (const char* name : {"plain.lib", "packed.lib", "small.lib"}) {
    if (slow && name[0] == 's') break;
    expect_equal(name, {.cache_nbytes = 32 << 20});
  }
}

TEST_F(collage_kernel, both_stores) {
  for (const store_kind store : {store_kind::posix, store_kind::mapped}) {
    expect_equal("plain.lib", {.cache_nbytes = 64 * 4096, .store = store});
  }
}

TEST_F(collage_kernel, every_launch) {
  for (const unsigned threads : {32u, 64u, 256u, 1024u}) {
    if (slow && threads > 64) break;
    expect_equal("small.lib", {.cache_nbytes = 8 << 20, .block_threads = threads});
    expect_equal("packed.lib", {.cache_nbytes = 8 << 20, .block_threads = threads, .grid = 2});
  }
  expect_equal("plain.lib", {.cache_nbytes = 8 << 20, .grid = 64});
  expect_equal("plain.lib", {.cache_nbytes = 8 << 20, .blocks_per_launch = 4});
}

TEST_F(collage_kernel, every_schedule) {
  for (const auto order : {simt::block_order::in_order, simt::block_order::reversed, simt::block_order::random}) {
    for (std::uint64_t seed = slow ? 3 : 1; seed <= 3; ++seed) {
      engine_options options{.nthreads = static_cast<unsigned>(seed), .cache_nbytes = 64 * 4096};
      options.schedule.seed = seed;
      options.schedule.order = order;
      options.schedule.resident_blocks = seed == 2 ? 1 : 0;
      expect_equal(seed == 3 ? "small.lib" : "plain.lib", options);
    }
  }
}

TEST_F(collage_kernel, damage_is_reported) {
  const std::string name = folder_->file("damaged.lib");
  std::filesystem::copy_file(folder_->file("plain.lib"), name);
  const library lib(name);
  const section& histograms = lib.find(section_kind::histograms);
  {
    const std::vector<float> wrong(histograms.nbytes / sizeof(float), -1e30f);
    std::FILE* stream = std::fopen(name.c_str(), "r+b");
    ASSERT_NE(stream, nullptr);
    std::fseek(stream, static_cast<long>(histograms.offset), SEEK_SET);
    std::fwrite(wrong.data(), sizeof(float), wrong.size(), stream);
    std::fclose(stream);
  }
  EXPECT_THROW(device_matcher(lib, {}, 64).find(picture_->picture, {}), library_error);
  EXPECT_THROW(match_cpu(lib, picture_->picture, {}), library_error);
}

TEST_F(collage_kernel, missing_and_replaced_files_are_reported) {
  const std::string name = folder_->file("victim.lib");
  std::filesystem::copy_file(folder_->file("small.lib"), name);
  const library lib(name);
  std::filesystem::copy_file(folder_->file("small.lib"), folder_->file("other.lib"));
  std::filesystem::rename(folder_->file("other.lib"), name);
  EXPECT_THROW(device_matcher(lib, {}, 64).find(picture_->picture, {}), library_error);
  std::filesystem::remove(name);
  try {
    device_matcher(lib, {}, 64).find(picture_->picture, {});
    FAIL();
  } catch (const library_error& e) {
    EXPECT_EQ(std::string(e.what()), name + ": opening the library failed: No such file or directory (errno 2)");
  }
}

TEST_F(collage_kernel, the_next_photograph_finds_the_pages_of_the_last) {
  const library lib(folder_->file("plain.lib"));
  device_matcher engine(lib, {}, 64);
  const auto first = engine.find(picture_->picture, {});
  const auto again = engine.find(picture_->picture, {});
  EXPECT_GT(first.counters->faults, 0u);
  EXPECT_EQ(again.counters->faults, first.counters->faults);
  const test_photo other(2, 2, 78);
  const auto found = engine.find(other.picture, {}), expected = match_cpu(lib, other.picture, {});
  for (std::size_t b = 0; b < found.matches.size(); ++b) EXPECT_TRUE(same(found.matches[b], expected.matches[b])) << "block " << b;
}

}  // namespace
}  // namespace gpufs::apps::collage
