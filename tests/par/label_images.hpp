// SPDX-License-Identifier: Apache-2.0
// Images to label, and their regions by a union-find on the host.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace gpufs::test {

struct image {
  std::string name;
  std::int64_t height, width;
  std::vector<std::uint32_t> pixels;

  image(std::string called, std::int64_t h, std::int64_t w, std::uint32_t kind = 0)
      : name(std::move(called)), height(h), width(w), pixels(static_cast<std::size_t>(h * w), kind) {}
  std::uint32_t& at(std::int64_t row, std::int64_t column) { return pixels[static_cast<std::size_t>(row * width + column)]; }
  std::uint64_t n() const { return pixels.size(); }

  // work(i, j) for each two pixels that are alike and touch, each pair once.
  template <class Work>
  void each_pair(bool corners, const Work& work) const {
    for (std::int64_t row = 0; row < height; ++row) {
      for (std::int64_t column = 0; column < width; ++column) {
        const auto i = static_cast<std::uint32_t>(row * width + column);
        const auto meet = [&](std::int64_t down, std::int64_t on) {
          if (row + down >= height || column + on >= width || column + on < 0) return;
          const auto j = static_cast<std::uint32_t>((row + down) * width + column + on);
          if (pixels[i] == pixels[j]) work(i, j);
        };
        meet(0, 1);
        meet(1, 0);
        if (corners) meet(1, -1);
        if (corners) meet(1, 1);
      }
    }
  }
  // Of each pixel the first one of its region.
  std::vector<std::uint32_t> labels(bool corners) const {
    std::vector<std::uint32_t> parent(n());
    std::iota(parent.begin(), parent.end(), 0u);
    const auto root = [&](std::uint32_t i) {
      while (parent[i] != i) i = parent[i] = parent[parent[i]];
      return i;
    };
    each_pair(corners, [&](std::uint32_t i, std::uint32_t j) {
      const std::uint32_t a = root(i), b = root(j);
      parent[std::max(a, b)] = std::min(a, b);
    });
    std::vector<std::uint32_t> found(n());
    for (std::uint32_t i = 0; i < n(); ++i) found[i] = root(i);
    return found;
  }
  // The most steps from a region's first pixel to one of its pixels.
  unsigned longest_way(bool corners) const {
    std::vector<std::vector<std::uint32_t>> touching(n());
    each_pair(corners, [&](std::uint32_t i, std::uint32_t j) {
      touching[i].push_back(j);
      touching[j].push_back(i);
    });
    const std::vector<std::uint32_t> first = labels(corners);
    std::vector<std::uint32_t> now;
    std::vector<bool> seen(n());
    for (std::uint32_t i = 0; i < n(); ++i) {
      if (first[i] == i) now.push_back(i);
    }
    unsigned steps = 0;
    for (const std::uint32_t i : now) seen[i] = true;
    for (;; ++steps) {
      std::vector<std::uint32_t> next;
      for (const std::uint32_t i : now) {
        for (const std::uint32_t j : touching[i]) {
          if (!seen[j]) next.push_back(j);
          seen[j] = true;
        }
      }
      if (next.empty()) return steps;
      now = std::move(next);
    }
  }
};

// Goes to and fro through the image, and touches itself nowhere.
inline image snake(std::int64_t height, std::int64_t width) {
  image is("a snake", height, width);
  for (std::int64_t row = 0; row < height; ++row) {
    for (std::int64_t column = 0; column < width; ++column) {
      is.at(row, column) = row % 2 == 0 || column == (row % 4 == 1 ? width - 1 : 0);
    }
  }
  return is;
}
// From a corner to the middle.
inline image spiral(std::int64_t size) {
  image is("a spiral", size, size);
  std::int64_t row = 0, column = -1, side = 0, steps = size, turns = 0;
  constexpr std::int64_t down[] = {0, 1, 0, -1}, on[] = {1, 0, -1, 0};
  while (steps > 0) {
    for (std::int64_t i = 0; i < steps; ++i) {
      row += down[side];
      column += on[side];
      is.at(row, column) = 1;
    }
    side = (side + 1) % 4;
    steps = turns == 0 ? size - 1 : turns % 2 == 0 ? steps - 2 : steps;
    ++turns;
  }
  return is;
}
// Rings in rings, of two kinds by turns, with something inside of each.
inline image nested(std::int64_t height, std::int64_t width) {
  image is("nested rings", height, width);
  for (std::int64_t row = 0; row < height; ++row) {
    for (std::int64_t column = 0; column < width; ++column) {
      is.at(row, column) = static_cast<std::uint32_t>(std::min({row, column, height - 1 - row, width - 1 - column}) / 2 % 2);
    }
  }
  return is;
}
// Holes side by side in one region, one below the other, and some in others' shade.
inline image sieve(std::int64_t height, std::int64_t width) {
  image is("a sieve", height, width, 1);
  for (std::int64_t row = 1; row < height - 1; ++row) {
    for (std::int64_t column = 1; column < width - 1; ++column) is.at(row, column) = row % 3 != 1 || (column + row / 3) % 4 == 0;
  }
  return is;
}
// Teeth that hang together in the last row alone.
inline image comb(std::int64_t height, std::int64_t width) {
  image is("a comb", height, width);
  for (std::int64_t row = 0; row < height; ++row) {
    for (std::int64_t column = 0; column < width; ++column) is.at(row, column) = column % 2 == 0 || row == height - 1;
  }
  return is;
}
inline image drawn(std::mt19937_64& draw, std::int64_t height, std::int64_t width, unsigned percent, unsigned nkinds) {
  image is(std::to_string(percent) + " % drawn of " + std::to_string(nkinds) + " kinds", height, width);
  for (std::uint32_t& pixel : is.pixels) {
    if (draw() % 100 < percent) pixel = 1 + static_cast<std::uint32_t>(draw() % nkinds);
  }
  return is;
}
inline image checkerboard(std::int64_t height, std::int64_t width) {
  image is("a checkerboard", height, width);
  for (std::int64_t row = 0; row < height; ++row) {
    for (std::int64_t column = 0; column < width; ++column) is.at(row, column) = static_cast<std::uint32_t>((row + column) % 2);
  }
  return is;
}

inline std::vector<image> some_images(std::mt19937_64& draw) {
  std::vector<image> all = {image("nothing", 0, 0),
                            image("no rows", 0, 7),
                            image("no columns", 7, 0),
                            image("a pixel", 1, 1),
                            image("one region", 9, 14),
                            snake(13, 17),
                            spiral(21),
                            nested(22, 19),
                            sieve(17, 23),
                            comb(14, 19),
                            checkerboard(10, 11),
                            drawn(draw, 1, 60, 50, 1),
                            drawn(draw, 60, 1, 50, 1)};
  for (const unsigned percent : {30u, 50u, 60u, 70u}) {
    all.push_back(drawn(draw, 5 + static_cast<std::int64_t>(draw() % 20), 5 + static_cast<std::int64_t>(draw() % 20), percent, 1));
    all.push_back(drawn(draw, 5 + static_cast<std::int64_t>(draw() % 20), 5 + static_cast<std::int64_t>(draw() % 20), percent, 3));
  }
  return all;
}

}  // namespace gpufs::test
