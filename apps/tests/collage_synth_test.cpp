// SPDX-License-Identifier: Apache-2.0
// Synthetic images, mostly for the sanitizers: tests/python compares every value with a second implementation.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "apps/collage/synth.hpp"
#include "apps/parallel.hpp"
#include "collage_fixture.hpp"

namespace gpufs::apps::collage {
namespace {

using namespace testing;

std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// A photograph of one colour: images differ in their colours' shifts only.
synthesizer plain_photo(std::uint8_t value) {
  synthesizer images(1);
  const std::vector<std::uint8_t> pixels(tile_nbytes, value);
  images.add_photo(pixels.data(), tile_side, tile_side, 0, 1);
  return images;
}

TEST(synthesizer, squares_lie_in_the_photograph) {
  std::mt19937 random(3);
  const std::pair<std::uint32_t, std::uint32_t> sizes[] = {{32, 32}, {33, 32}, {32, 33}, {47, 90}, {64, 64}};
  for (const auto& [width, height] : sizes) {
    synthesizer images(width);
    const auto pixels = paint(random, width, height);
    images.add_photo(pixels.data(), width, height, 7, 3);
    std::uint32_t largest = 0;
    for (std::uint64_t i = 0; i < 500; ++i) {
      std::vector<std::uint8_t> tile(tile_nbytes);
      const image_origin o = images.draw(i, 0, tile.data());
      EXPECT_EQ(o.source, 7u);
      EXPECT_GE(o.side, 3 * tile_side);
      EXPECT_LE(o.x + o.side, 3 * width);
      EXPECT_LE(o.y + o.side, 3 * height);
      largest = std::max(largest, o.side);
    }
    EXPECT_EQ(largest, 3 * std::min(width, height));
  }
}

TEST(synthesizer, threads_draw_the_same) {
  std::mt19937 random(4);
  synthesizer images(5);
  const auto pixels = paint(random, 100, 80);
  images.add_photo(pixels.data(), 100, 80, 0, 1);
  constexpr std::size_t n = 200;
  std::vector<std::uint8_t> one(n * tile_nbytes);
  std::vector<std::uint8_t> many(n * tile_nbytes);
  parallel_for(1, n, [&](std::size_t i) { images.draw(i, 0, one.data() + i * tile_nbytes); });
  parallel_for(7, n, [&](std::size_t i) { images.draw(n - 1 - i, 0, many.data() + (n - 1 - i) * tile_nbytes); });
  EXPECT_EQ(one, many);
}

TEST(add_synthetic, gives_all_different_images_for_any_number_of_threads) {
  const temporary_folder folder;
  const synthesizer images = plain_photo(128);
  for (const unsigned nthreads : {1u, 5u}) {
    library_builder builder(folder.file(std::to_string(nthreads)), {.nthreads = nthreads});
    builder.add_source("grey");
    add_synthetic(builder, images, 9000, nthreads);  // more than one batch; some are drawn again
    EXPECT_EQ(builder.nimages(), 9000u);
    builder.finish();
  }
  EXPECT_EQ(contents(folder.file("1")), contents(folder.file("5")));
  library(folder.file("1")).check_sums();
  library(folder.file("1")).check_contents();
}

TEST(add_synthetic, what_ends_it_leaves_nothing) {
  const temporary_folder folder;
  const synthesizer images = plain_photo(0);
  {
    library_builder builder(folder.file("l"), {});
    builder.add_source("black");
    EXPECT_THROW(add_synthetic(builder, images, 100, 2, [](std::uint64_t, std::uint64_t) { throw std::runtime_error("enough"); }),
                 std::runtime_error);
  }
  {
    library_builder builder(folder.file("l"), {});
    builder.add_source("black");
    EXPECT_THROW(add_synthetic(builder, images, 15626, 2), error);  // there are 25^3
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(library_builder, replaces_what_equals_one_before) {
  const temporary_folder folder;
  library_builder builder(folder.file("l"), {.nthreads = 2});
  builder.add_source("x");
  std::vector<std::uint8_t> pixels(5 * tile_nbytes);  // values 0 0 1 1 2
  std::vector<image_origin> origins(5, image_origin{0, 0, 0, tile_side});
  for (std::uint8_t i = 0; i < 5; ++i) std::memset(pixels.data() + i * tile_nbytes, i / 2, tile_nbytes);
  std::vector<std::size_t> asked;
  EXPECT_EQ(builder.add(pixels.data(), origins.data(), 5,
                        [&](std::size_t i) {
                          asked.push_back(i);
                          const int value = i == 1 ? 1 : 9;  // 1 makes place 2 a duplicate
                          std::memset(pixels.data() + i * tile_nbytes, value, tile_nbytes);
                          origins[i].x = static_cast<std::uint32_t>(asked.size());
                          return asked.size() < 4;
                        }),
            4u);
  // Place 3 asks for another one twice (9 is taken by place 2), and is left out then.
  EXPECT_EQ(asked, (std::vector<std::size_t>{1, 2, 3, 3}));
  builder.finish();
  const library made(folder.file("l"));
  made.check_contents();
  std::vector<std::uint8_t> stored(4 * tile_nbytes);
  const std::uint32_t ids[] = {0, 1, 2, 3};
  made.read_thumbnails(ids, 4, stored.data());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(stored[i * tile_nbytes], (std::vector<int>{0, 1, 9, 2})[i]);
  EXPECT_EQ(made.origin(1).x, 1u);
  EXPECT_EQ(made.origin(2).x, 2u);
  EXPECT_EQ(made.origin(3).x, 0u);
}

}  // namespace
}  // namespace gpufs::apps::collage
