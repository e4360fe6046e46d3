// SPDX-License-Identifier: Apache-2.0
// Regions of images, numbered, by host code and by kernels: those of a union-find, in the order of their first pixels.
#include "apps/label/labeler.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "gpufs/mount.hpp"
#include "gpufs/simt/config.hpp"
#include "par/label_images.hpp"

namespace gpufs::apps::label {
namespace {

using test::image;

// By host code, and by kernels.
std::uint64_t label_by(bool kernels, const image_view& of, const label_options& options, std::int32_t* labels) {
  if (!kernels) return label_cpu(of, options, labels);
#if GPUFS_ON_CUDA
  return label_cuda(of, options, labels);
#else
  return label_simt(of, options, labels);
#endif
}

TEST(labelers, number_regions_by_their_first_pixels) {
  std::mt19937_64 draw(7);
  for (const image& what : test::some_images(draw)) {
    for (const bool corners : {false, true}) {
      const std::vector<std::uint32_t> firsts = what.labels(corners);
      for (const label_options& options : {label_options{corners, {}}, label_options{corners, 0}, label_options{corners, 1}}) {
        std::vector<std::int32_t> want(what.n());
        std::int32_t nregions = 0;
        for (std::uint32_t i = 0; i < what.n(); ++i) {
          if (options.background == what.pixels[i]) continue;
          want[i] = firsts[i] == i ? ++nregions : want[firsts[i]];
        }
        for (const bool kernels : {false, true}) {
          SCOPED_TRACE(testing::Message() << what.name << ", corners " << corners << ", by kernels " << kernels);
          std::vector<std::int32_t> got(what.n(), -7);
          const image_view of{what.pixels.data(), static_cast<std::uint64_t>(what.height), static_cast<std::uint64_t>(what.width)};
          EXPECT_EQ(label_by(kernels, of, options, got.data()), static_cast<std::uint64_t>(nregions));
          EXPECT_EQ(got, want);
        }
      }
    }
  }
}

TEST(labelers, refuse_what_is_too_large) {
  for (const bool kernels : {false, true}) {
    for (const auto& [height, width] : {std::pair<std::uint64_t, std::uint64_t>{1u << 15, 1u << 15}, {1u << 31, 1u << 31}}) {
      try {
        label_by(kernels, {nullptr, height, width}, {}, nullptr);
        FAIL() << "it is done";
      } catch (const error& why) {
        EXPECT_EQ(std::string(why.what()), "an image of " + std::to_string(height) + " x " + std::to_string(width) +
                                               " pixels is too large to be labelled: cut it into parts of less than 2^30 pixels");
      }
    }
  }
}

}  // namespace
}  // namespace gpufs::apps::label
