// SPDX-License-Identifier: Apache-2.0
// Labelling by host code: a union-find in two passes, by one thread. The first joins each pixel with those before it that it
// touches, the second numbers the first pixels and gives the others their numbers.
#include <algorithm>
#include <string>
#include <vector>

#include "apps/label/labeler.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/store/mapped_store.hpp"

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

class host_labeler final : public labeler {
 public:
  explicit host_labeler(const label_options& options)
      : labeler(options.npixels), corners_(options.corners), regions_(options.npixels) {}

 private:
  std::uint64_t label_some(const image_view& image, std::optional<std::uint32_t> background, std::int32_t* labels) override {
    const std::uint32_t* const pixels = image.pixels;
    const auto width = static_cast<std::uint32_t>(image.width), n = static_cast<std::uint32_t>(image.height * image.width);
    for (std::uint32_t i = 0; i < n; ++i) {
      regions_.add(i);
      const std::uint32_t column = i % width;
      const auto meet = [&](std::uint32_t back) {
        if (pixels[i] == pixels[i - back]) regions_.join(i, i - back);
      };
      if (column != 0) meet(1);
      if (i < width) continue;
      meet(width);
      if (corners_ && column != 0) meet(width + 1);
      if (corners_ && column != width - 1) meet(width - 1);
    }
    std::int32_t nregions = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t first = regions_.first_of(i);
      if (pixels[i] == background) {
        labels[i] = 0;
      } else {
        labels[i] = first == i ? ++nregions : labels[first];
      }
    }
    return static_cast<std::uint64_t>(nregions);
  }

  const bool corners_;
  forest regions_;
};

}  // namespace

labeler::labeler(std::uint64_t npixels) : npixels_(npixels) {
  if (npixels > most_pixels) throw error("an image of 2^30 pixels or more is too large to be labelled at once", EFBIG);
}

std::uint64_t labeler::label(const image_view& image, std::optional<std::uint32_t> background, std::int32_t* labels) {
  if (image.height == 0 || image.width == 0) return 0;
  if (image.height > npixels_ / image.width) {
    throw error("an image of " + std::to_string(image.height) + " x " + std::to_string(image.width) +
                    " pixels is too large to be labelled at once: there is room for " + std::to_string(npixels_),
                EFBIG);
  }
  return label_some(image, background, labels);
}

std::unique_ptr<labeler> make_labeler_cpu(const label_options& options) { return std::make_unique<host_labeler>(options); }

std::uint64_t usual_memory_of_host() { return std::min<std::uint64_t>(store::default_pin_nbytes() / 2, std::uint64_t{8} << 30); }

}  // namespace gpufs::apps::label
