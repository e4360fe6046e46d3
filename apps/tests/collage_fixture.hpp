// SPDX-License-Identifier: Apache-2.0
// Libraries and photographs for the collage's tests.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "apps/collage/builder.hpp"
#include "apps/collage/match.hpp"

namespace gpufs::apps::collage::testing {

// A folder that goes away with its object.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs-collage-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw error("no temporary folder");
    path_ = name;
  }
  ~temporary_folder() { std::filesystem::remove_all(path_); }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A picture of a colour, a gradient and noise: some are alike, none are equal.
inline std::vector<std::uint8_t> paint(std::mt19937& random, std::uint32_t width, std::uint32_t height) {
  const auto draw = [&](int low, int high) { return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)); };
  int base[3];
  int slope[3];
  for (int c = 0; c < 3; ++c) {
    base[c] = 16 * draw(0, 15);
    slope[c] = draw(-2, 2);
  }
  const int noise = draw(1, 12);
  std::vector<std::uint8_t> pixels;
  pixels.reserve(std::size_t{width} * height * 3);
  for (std::uint32_t y = 0; y < height; ++y) {
    for (std::uint32_t x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        const int value = base[c] + slope[c] * static_cast<int>(x + y) / 2 + draw(-noise, noise);
        pixels.push_back(static_cast<std::uint8_t>(std::clamp(value, 0, 255)));
      }
    }
  }
  return pixels;
}

inline void build(const std::string& path, std::uint32_t nimages, const builder_options& options, unsigned seed = 1) {
  std::mt19937 random(seed);
  library_builder builder(path, options);
  const std::uint32_t source = builder.add_source("test");
  while (builder.nimages() < nimages) {
    const auto pixels = paint(random, tile_side, tile_side);
    const image_origin origin{source, 0, 0, tile_side};
    builder.add(pixels.data(), &origin, 1);
  }
  builder.finish();
}

// ThreadSanitizer takes some 9 us for every switch of a lane, AddressSanitizer five times as long as without, compute-sanitizer a
// hundred times a kernel's time: there, a few blocks must do. (GPUFS_SANITIZER: bench/on_gpu.sh)
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
inline const bool slow = true;
#else
inline const bool slow = std::getenv("GPUFS_SANITIZER") != nullptr;
#endif

// A photograph of painted blocks, and its pixels.
struct test_photo {
  test_photo(std::uint32_t nblocks_x, std::uint32_t nblocks_y, unsigned seed) : picture{nullptr, nblocks_x, nblocks_y} {
    std::mt19937 random(seed);
    pixels.resize(picture.row_nbytes() * tile_side * nblocks_y);
    for (std::uint32_t b = 0; b < picture.nblocks(); ++b) {
      const auto block = paint(random, tile_side, tile_side);
      auto* corner = pixels.data() + b / nblocks_x * tile_side * picture.row_nbytes() + b % nblocks_x * tile_side * 3;
      for (std::uint32_t y = 0; y < tile_side; ++y) {
        std::copy_n(block.data() + y * tile_side * 3, tile_side * 3, corner + y * picture.row_nbytes());
      }
    }
    picture.pixels = pixels.data();
  }
  std::vector<std::uint8_t> pixels;
  photo picture;
};

}  // namespace gpufs::apps::collage::testing
