// SPDX-License-Identifier: Apache-2.0
// Labelling by host code: a union-find in two passes, by one thread. The first joins each pixel with those before it that it
// touches, the second numbers the first pixels and gives the others their numbers.
#include <string>
#include <vector>

#include "apps/label/labeler.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::label {
namespace {

class forest {
 public:
  explicit forest(std::uint64_t n) : parents_(n) {}
  void add(std::uint32_t i) { parents_[i] = i; }
  // The least of those that i was joined with.
  std::uint32_t first_of(std::uint32_t i) {
    while (parents_[i] != i) i = parents_[i] = parents_[parents_[i]];
    return i;
  }
  void join(std::uint32_t i, std::uint32_t j) {
    const std::uint32_t a = first_of(i), b = first_of(j);
    (a < b ? parents_[b] : parents_[a]) = a < b ? a : b;
  }

 private:
  std::vector<std::uint32_t> parents_;
};

}  // namespace

void check_size(const image_view& image) {
  if (image.height < most_pixels && image.width < most_pixels && image.n() < most_pixels) return;
  throw error("an image of " + std::to_string(image.height) + " x " + std::to_string(image.width) +
                  " pixels is too large to be labelled: cut it into parts of less than 2^30 pixels",
              EFBIG);
}

std::uint64_t label_cpu(const image_view& image, const label_options& options, std::int32_t* labels) {
  check_size(image);
  const std::uint32_t* const pixels = image.pixels;
  const auto width = static_cast<std::uint32_t>(image.width), n = static_cast<std::uint32_t>(image.n());
  forest regions(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    regions.add(i);
    const std::uint32_t column = i % width;
    const auto meet = [&](std::uint32_t back) {
      if (pixels[i] == pixels[i - back]) regions.join(i, i - back);
    };
    if (column != 0) meet(1);
    if (i < width) continue;
    meet(width);
    if (options.corners && column != 0) meet(width + 1);
    if (options.corners && column != width - 1) meet(width - 1);
  }
  std::int32_t nregions = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t first = regions.first_of(i);
    if (pixels[i] == options.background) {
      labels[i] = 0;
    } else {
      labels[i] = first == i ? ++nregions : labels[first];
    }
  }
  return static_cast<std::uint64_t>(nregions);
}

}  // namespace gpufs::apps::label
