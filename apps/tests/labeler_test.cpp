// SPDX-License-Identifier: Apache-2.0
// Regions of images, numbered, by host code and by kernels, at once and by strips: those of a union-find, in the order of their
// first pixels.
#include "apps/label/labeler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "apps/label/strip_regions.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/simt/config.hpp"
#include "par/label_images.hpp"

namespace gpufs::apps::label {
namespace {

using test::image;

// By host code, and by kernels.
std::unique_ptr<labeler> make_labeler(bool kernels, const label_options& options) {
  if (!kernels) return make_labeler_cpu(options);
#if GPUFS_ON_CUDA
  return make_labeler_cuda(options);
#else
  return make_labeler_simt(options);
#endif
}

// Of a union-find. Returns how many regions there are.
std::int32_t number(const image& of, const std::vector<std::uint32_t>& firsts, std::optional<std::uint32_t> background,
                    std::vector<std::int32_t>& labels) {
  labels.assign(of.n(), 0);
  std::int32_t nregions = 0;
  for (std::uint32_t i = 0; i < of.n(); ++i) {
    if (background == of.pixels[i]) continue;
    labels[i] = firsts[i] == i ? ++nregions : labels[firsts[i]];
  }
  return nregions;
}

TEST(labelers, number_regions_by_their_first_pixels) {
  std::mt19937_64 draw(7);
  const std::vector<image> images = test::some_images(draw);
  std::uint64_t most = 0;
  for (const image& what : images) most = std::max(most, what.n());
  for (const bool corners : {false, true}) {
    for (const bool kernels : {false, true}) {
      const std::unique_ptr<labeler> by = make_labeler(kernels, {.npixels = most, .corners = corners});
      for (const image& what : images) {
        const std::vector<std::uint32_t> firsts = what.labels(corners);
        for (const std::optional<std::uint32_t> background : {std::optional<std::uint32_t>{}, {0}, {1}}) {
          SCOPED_TRACE(testing::Message() << what.name << ", corners " << corners << ", by kernels " << kernels);
          std::vector<std::int32_t> want, got(what.n(), -7);
          const std::int32_t nregions = number(what, firsts, background, want);
          const image_view of{what.pixels.data(), static_cast<std::uint64_t>(what.height), static_cast<std::uint64_t>(what.width)};
          EXPECT_EQ(by->label(of, background, got.data()), static_cast<std::uint64_t>(nregions));
          EXPECT_EQ(got, want);
        }
      }
    }
  }
}

std::string refusal(const std::function<void()>& what) {
  try {
    what();
  } catch (const error& why) {
    return why.what();
  }
  return "it is done";
}

TEST(labelers, refuse_what_is_too_large) {
  for (const bool kernels : {false, true}) {
    EXPECT_EQ(refusal([&] { make_labeler(kernels, {.npixels = most_pixels + 1}); }),
              "an image of 2^30 pixels or more is too large to be labelled at once");
    const std::unique_ptr<labeler> by = make_labeler(kernels, {.npixels = 35});
    for (const auto& [height, width] : {std::pair<std::uint64_t, std::uint64_t>{6, 6}, {1, 36}, {1u << 31, 1ull << 33}}) {
      EXPECT_EQ(refusal([&] {
                  by->label({nullptr, height, width}, {}, nullptr);
                }),
                "an image of " + std::to_string(height) + " x " + std::to_string(width) +
                    " pixels is too large to be labelled at once: there is room for 35");
    }
  }
}

// All labels by strips of so many rows.
template <class Label>
std::uint64_t label_by_strips(const image& what, bool corners, std::optional<std::uint32_t> background, std::uint64_t nrows,
                              std::vector<Label>& labels) {
  const auto height = static_cast<std::uint64_t>(what.height), width = static_cast<std::uint64_t>(what.width);
  strip_regions regions(width, corners);
  const std::unique_ptr<labeler> by = make_labeler_cpu({.npixels = nrows * width, .corners = corners});
  labels.assign(what.n(), -7);
  for (std::uint64_t row = 0; row < height; row += nrows) {
    const image_view strip{what.pixels.data() + row * width, std::min(nrows, height - row), width};
    std::vector<std::int32_t> found(strip.height * width);
    const std::uint64_t nregions = by->label(strip, background, found.data());
    regions.add(found.data(), strip.height, nregions, row == 0 ? nullptr : strip.pixels - width);
    std::copy(found.begin(), found.end(), labels.begin() + static_cast<std::ptrdiff_t>(row * width));
  }
  const std::uint64_t nregions = regions.number();
  for (std::uint64_t row = 0; row < height; row += nrows) {
    regions.renumber(row / nrows, labels.data() + row * width, std::min(nrows, height - row) * width);
  }
  return nregions;
}

TEST(strips, have_the_regions_of_the_whole) {
  std::mt19937_64 draw(11);
  std::vector<image> images = test::some_images(draw);
  for (unsigned i = 0; i < 40; ++i) images.push_back(test::drawn(draw, 25, 18, 50 + i % 20, 1 + i % 2));
  for (const image& what : images) {
    if (what.n() == 0) continue;
    for (const bool corners : {false, true}) {
      const std::vector<std::uint32_t> firsts = what.labels(corners);
      for (const std::optional<std::uint32_t> background : {std::optional<std::uint32_t>{}, {0}, {1}}) {
        std::vector<std::int32_t> want;
        const auto wanted = static_cast<std::uint64_t>(number(what, firsts, background, want));
        for (const std::uint64_t nrows : {1, 2, 3, 7, 60}) {
          SCOPED_TRACE(testing::Message() << what.name << ", corners " << corners << ", by " << nrows << " rows");
          std::vector<std::int32_t> got;
          EXPECT_EQ(label_by_strips(what, corners, background, nrows, got), wanted);
          EXPECT_EQ(got, want);
          std::vector<std::int64_t> wide;
          EXPECT_EQ(label_by_strips(what, corners, background, nrows, wide), wanted);
          EXPECT_EQ(wide, std::vector<std::int64_t>(want.begin(), want.end()));
        }
      }
    }
  }
}

// Strips of one row with two regions at their edges of as many as a strip can have, of which the second goes on below.
TEST(strips, have_more_regions_together_than_32_bits_count) {
  constexpr std::uint64_t nregions = most_pixels, nstrips = 9;
  const std::int32_t last = nregions;
  const std::vector<std::int32_t> row = {1, 0, last};
  const std::vector<std::uint32_t> seam = {1, 0, 2, 3, 0, 2};
  strip_regions regions(row.size(), true);
  for (std::uint64_t i = 0; i < nstrips; ++i) regions.add(row.data(), 1, nregions, seam.data());
  EXPECT_EQ(regions.number(), nstrips * nregions - (nstrips - 1));
  std::vector<std::int64_t> some = {0, 1, 2, 3};
  regions.renumber(nstrips - 1, some.data(), some.size());
  const std::int64_t before = static_cast<std::int64_t>((nstrips - 1) * nregions - (nstrips - 2));
  EXPECT_EQ(some, (std::vector<std::int64_t>{0, before + 1, before + 2, before + 3}));
}

TEST(strips, refuse_labels_that_are_none_of_theirs) {
  strip_regions regions(2, false);
  const std::vector<std::int32_t> row = {1, 2};
  regions.add(row.data(), 1, 2, nullptr);
  EXPECT_EQ(regions.number(), 2u);
  for (const std::int32_t wrong : {3, -1}) {
    std::vector<std::int32_t> labels = {1, wrong};
    EXPECT_EQ(refusal([&] { regions.renumber(0, labels.data(), 2); }),
              "these labels are none of their strip: was the file of labels changed by others?");
    EXPECT_EQ(labels, (std::vector<std::int32_t>{1, wrong}));
  }
}

}  // namespace
}  // namespace gpufs::apps::label
