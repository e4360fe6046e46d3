// SPDX-License-Identifier: Apache-2.0
// Synthetic images for large libraries: squares of photographs at random places, of random sizes, mirrored or not, with shifted
// colours. docs/guide/collage.md says which. Host code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "apps/collage/builder.hpp"
#include "apps/collage/format.hpp"
#include "apps/collage/library.hpp"

namespace gpufs::apps::collage {

inline constexpr std::uint32_t max_synth_side = 4096;  // pixels; of a photograph's shorter side. Sums of a square fit 32 bits.
inline constexpr std::uint32_t synth_attempts = 64;    // draws for one image before the photographs count as too uniform

// Draws images from photographs that are held as sums (12 bytes a pixel). Image i depends on the photographs, their order, the
// seed and i only: every image has a random number generator of its own.
class synthesizer {
 public:
  explicit synthesizer(std::uint64_t seed);

  // pixels: height rows of width RGB pixels, both at least tile_side, the smaller at most max_synth_side. The photograph is one of
  // `source` that was made `reduction` times smaller; its images' origins are in pixels of the original. Photographs are drawn with
  // a probability proportional to their area, the original's. Throws gpufs::error.
  void add_photo(const std::uint8_t* pixels, std::uint32_t width, std::uint32_t height, std::uint32_t source,
                 std::uint32_t reduction);
  std::size_t nphotos() const { return photos_.size(); }

  // Writes tile_nbytes bytes. attempt: 0, or another one for an image that equals one before it. Thread-safe; needs a photograph.
  image_origin draw(std::uint64_t index, std::uint32_t attempt, std::uint8_t* out) const;

 private:
  struct photo_sums {
    std::uint32_t width, height;
    std::uint32_t source, reduction;
    // [height + 1][width + 1][3]: sums, modulo 2^32, of the pixels above and to the left
    std::vector<std::uint32_t> sums;
  };

  std::uint64_t seed_;
  std::vector<photo_sums> photos_;
  std::vector<std::uint64_t> area_ends_;  // of the originals, added up
  std::vector<std::uint64_t> side_ends_;  // of the weights of the sides from tile_side, added up
};

// Adds nimages images, none equal to another, to an empty builder that knows the photographs' sources. An image that equals one
// before it is drawn again, so the images are the same for every nthreads, and the first of a longer run are those of a
// shorter. Holds a few thousand thumbnails at a time. Throws gpufs::error; `progress` may throw.
void add_synthetic(library_builder& builder, const synthesizer& images, std::uint64_t nimages, unsigned nthreads,
                   const progress_function& progress = {});

}  // namespace gpufs::apps::collage
