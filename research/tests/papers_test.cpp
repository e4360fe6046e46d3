// SPDX-License-Identifier: Apache-2.0
// The programs that make the papers' tables and figures, on the CPU machine and a small library: every report is whole, its
// collages are checked, and its counts add up. What they measure there means nothing.
#include "research/papers/bench.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "apps/tests/collage_fixture.hpp"

namespace gpufs::papers {
namespace {

using namespace apps::collage::testing;

class paper_figures : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new temporary_folder;
    build(folder_->file("test.lib"), 300, {.shortlist_goal = 32, .key_nbits = 12});
    const test_photo painted(2, 1, 7);
    write_ppm("photo.ppm", painted.pixels, 64, 32);
  }
  static void TearDownTestSuite() { delete folder_; }

  static void write_ppm(const char* name, const std::vector<std::uint8_t>& pixels, unsigned width, unsigned height) {
    std::FILE* stream = std::fopen(folder_->file(name).c_str(), "wb");
    ASSERT_NE(stream, nullptr);
    std::fprintf(stream, "P6\n%u %u\n255\n", width, height);
    std::fwrite(pixels.data(), 1, pixels.size(), stream);
    std::fclose(stream);
  }

  static double number(const cell& value) {
    if (const auto* real = std::get_if<double>(&value)) return *real;
    return static_cast<double>(std::get<std::uint64_t>(value));
  }

  // The report, after what must hold of each.
  static report make(report (*what)(const inputs&), std::uint64_t cache_nbytes) {
    const apps::collage::library lib(folder_->file("test.lib"));
    inputs in{.lib = lib, .images = {}};
    in.images.push_back(std::make_unique<image>(folder_->file("photo.ppm")));
    in.cache_nbytes = cache_nbytes;
    in.big_cache_nbytes = 64 << 20;
    in.repeats = 1;
    const report r = what(in);
    EXPECT_TRUE(r.verified) << r.name;
    EXPECT_FALSE(r.rows.empty()) << r.name;
    for (const row& one : r.rows) {
      EXPECT_EQ(one.size(), r.columns.size()) << r.name;
      for (const cell& value : one) {
        EXPECT_TRUE(std::holds_alternative<std::string>(value) || number(value) >= 0) << r.name;
      }
    }
    EXPECT_FALSE(r.paper.empty()) << r.name;
    for (const row& one : r.paper) EXPECT_EQ(one.size(), r.paper_columns.size()) << r.name;
    EXPECT_FALSE(to_text(r).empty());
    return r;
  }

  static temporary_folder* folder_;
};

temporary_folder* paper_figures::folder_ = nullptr;

constexpr std::uint64_t fits = 32 << 20, evicts = 96 * 4096;

TEST_F(paper_figures, shares_are_shares) {
  for (auto* table : {table_1, table_2, table_3}) {
    const report r = make(table, fits);
    for (std::size_t i = 0; i < r.columns.size(); ++i) {
      if (r.columns[i].find("_share") == std::string::npos) continue;
      EXPECT_LE(number(r.rows[0][i]), 1.0) << r.name << ' ' << r.columns[i];
    }
  }
}

TEST_F(paper_figures, misses_and_transfers_add_up) {
  const report misses = make(figure_4, evicts);
  const row& one = misses.rows.at(0);
  EXPECT_GE(number(one[1]), number(one[2])) << "accesses, misses";
  EXPECT_GE(number(one[2]), number(one[4])) << "misses, unique pages";
  EXPECT_LE(number(one[4]), 300.0) << "unique pages, of 300 histograms";
  const report transfers = make(figure_5, evicts);
  ASSERT_EQ(transfers.rows.size(), 5u);
  EXPECT_EQ(number(transfers.rows[0][3]), number(one[4]) * 3072) << "what is needed";
  for (const row& page : transfers.rows) EXPECT_GE(number(page[4]), 4.0 / 3 - 1e-9);
}

TEST_F(paper_figures, batches_and_rings_are_swept) {
  for (auto* figure : {figure_6, figure_7}) {
    const report r = make(figure, fits);
    EXPECT_EQ(number(r.rows[0][1]), 1.0) << "the first has batches of one";
    EXPECT_LE(number(r.rows[0][5]), 1.0);
  }
  const report rings = make(figure_8, evicts);
  std::set<double> counts;
  for (const row& one : rings.rows) counts.insert(number(one[0]));
  EXPECT_EQ(counts, (std::set<double>{1, 2, 4}));
  EXPECT_GT(number(rings.rows[0].back()), 0.0) << "there is eviction";
}

TEST_F(paper_figures, times_of_a_block_are_compared_by_implementation) {
  const report r = make(figure_9, evicts);
  ASSERT_EQ(r.rows.size(), 1u);
  const row& one = r.rows[0];
  EXPECT_EQ(number(one[1]), 2.0) << "blocks";
  for (const std::size_t us : {2u, 3u, 4u, 5u, 6u, 7u}) EXPECT_GT(number(one[us]), 0.0) << r.columns[us];
  EXPECT_NEAR(number(one[8]), number(one[4]) / number(one[6]), 1e-9) << "the original";
  EXPECT_NEAR(number(one[9]), number(one[2]) / number(one[6]), 1e-9) << "the CPU";
  EXPECT_NEAR(number(one[10]), number(one[3]) / number(one[6]), 1e-9) << "both";
  EXPECT_NEAR(number(one[11]), number(one[7]) / number(one[6]), 1e-9) << "pointers";
}

// One matcher for photographs of several sizes: what it keeps of one does not show in the next.
TEST_F(paper_figures, both_machines_without_gpufs_find_what_the_cpu_finds) {
  const apps::collage::library lib(folder_->file("test.lib"));
  const auto both = matcher_by_both(lib);
  for (const unsigned nblocks : {2u, 3u, 1u}) {
    const test_photo painted(nblocks, 1, 20 + nblocks);
    const apps::collage::photo picture{painted.pixels.data(), nblocks, 1};
    const auto expected = match_cpu(lib, picture, {}).matches;
    const auto found = both->find(picture, {}).matches;
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t b = 0; b < expected.size(); ++b) {
      EXPECT_EQ(found[b].id, expected[b].id);
      EXPECT_EQ(found[b].distance, expected[b].distance);
      EXPECT_EQ(found[b].nbuckets, expected[b].nbuckets);
      EXPECT_EQ(found[b].nshortlist, expected[b].nshortlist);
    }
  }
}

TEST_F(paper_figures, slowdown_is_the_ratio_of_its_ends) {
  const report r = make(original_slowdown, fits);
  ASSERT_EQ(r.rows.size(), 6u);
  EXPECT_NEAR(r.figure, number(r.rows[0][1]) / number(r.rows[5][1]), 1e-9);
  EXPECT_EQ(r.bound, ">= 5.6");
}

TEST_F(paper_figures, pointers_are_compared_on_the_same_input) {
  const report r = make(pointer_collage, evicts);
  ASSERT_EQ(r.rows.size(), 4u);
  for (const std::size_t first : {0u, 2u}) EXPECT_GT(number(r.rows[first][6]), 0.0) << "faults";
  EXPECT_EQ(number(r.rows[2][6]), number(r.rows[3][6])) << "with a cache that holds all, both bring in the same pages";
  EXPECT_NEAR(r.figure, number(r.rows[1][5]) - 1, 1e-9);
  EXPECT_EQ(r.bound, "<= 0.01");
}

TEST_F(paper_figures, json_is_whole_and_holds_what_it_was_given) {
  report r;
  r.name = "n";
  r.title = "a \"quoted\" \\ title\nof two lines";
  r.columns = {"text", "real", "whole", "no number"};
  r.rows = {{"x", 0.5, std::uint64_t{12345678901234}, 0.0 / 0.0}};
  r.bound = ">= 1";
  r.figure = 2;
  const std::string json = to_json(r, {"machine", "driver", "commit", "command"});
  EXPECT_NE(json.find(R"("title": "a \"quoted\" \\ title of two lines")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"([ "x", 0.5, 12345678901234, null])"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("figure": 2,)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("paper": {"columns": [], "rows": []})"), std::string::npos) << json;
}

TEST_F(paper_figures, bad_inputs_are_refused) {
  EXPECT_THROW(image("/no/such/file.ppm"), error);
  write_ppm("short.ppm", std::vector<std::uint8_t>(100), 64, 32);
  EXPECT_THROW(image(folder_->file("short.ppm")), error);
  write_ppm("small.ppm", std::vector<std::uint8_t>(31 * 31 * 3), 31, 31);
  EXPECT_THROW(image(folder_->file("small.ppm")), error);
  EXPECT_THROW(image(folder_->file("test.lib")), error);
}

TEST_F(paper_figures, images_are_cut_to_whole_blocks) {
  std::vector<std::uint8_t> pixels(70 * 40 * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7);
  write_ppm("odd.ppm", pixels, 70, 40);
  const image odd(folder_->file("odd.ppm"));
  EXPECT_EQ(odd.size(), "64x32");
  for (std::size_t y = 0; y < 32; ++y) {
    for (std::size_t x = 0; x < 64 * 3; ++x) ASSERT_EQ(odd.photo().pixels[y * 64 * 3 + x], pixels[y * 70 * 3 + x]);
  }
}

}  // namespace
}  // namespace gpufs::papers
