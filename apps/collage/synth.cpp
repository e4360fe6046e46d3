// SPDX-License-Identifier: Apache-2.0
#include "apps/collage/synth.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "apps/collage/lsh.hpp"
#include "apps/parallel.hpp"
#include "apps/simd_clones.hpp"

namespace gpufs::apps::collage {
namespace {

constexpr std::uint32_t batch = 8192;  // images in memory, 24 MiB
constexpr std::uint32_t share = 64;    // images a thread takes at a time

// Places are in 1 / subpixel of a pixel, so that a square of `side` pixels has its 32 x 32 parts at whole numbers.
constexpr std::uint32_t subpixel = tile_side;

// Colours become gain * value + offset. Gains are in 4096ths: 0.75 to 1.25; offsets are whole: -24 to 24.
constexpr std::uint32_t gain_one = 4096;
constexpr std::uint32_t least_gain = 3072;
constexpr std::uint32_t gain_range = 2049;
constexpr std::int64_t most_offset = 24;

// An image's random numbers: outputs of SplitMix64, whose seed is itself the image's output of a SplitMix64.
class generator {
 public:
  generator(std::uint64_t seed, std::uint64_t index, std::uint32_t attempt)
      : seed_(splitmix64(seed, index)), next_(std::uint64_t{attempt} << 8) {}
  // 0 to n - 1. Uneven by less than n / 2^64.
  std::uint64_t below(std::uint64_t n) {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<wide>(splitmix64(seed_, next_++)) * n) >> 64);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_;
};

// Which of the parts that end there a number below the last end falls into.
std::size_t part_of(const std::uint64_t* begin, const std::uint64_t* end, std::uint64_t number) {
  return static_cast<std::size_t>(std::upper_bound(begin, end, number) - begin);
}

struct square {
  std::uint32_t x, y, side;
};

using sum4 = std::uint32_t __attribute__((vector_size(16)));  // R, G, B, and what lies behind them

sum4 load(const std::uint32_t* at) {
  sum4 sums;
  std::memcpy(&sums, at, sizeof sums);
  return sums;
}

// The sums of the square's 32 x 32 equal parts: of parts of pixels, parts of their values. In units that make a part's mean
// its sum divided by side^2; exact, as all arithmetic modulo 2^32 whose result is below that: 255 * 4096^2 < 2^32.
GPUFS_SIMD_CLONES void add_up_parts(const std::uint32_t* sums, std::size_t row, const square& at, std::uint32_t* out) {
  sum4 above[tile_side + 1] = {};
  for (std::uint32_t j = 0; j <= tile_side; ++j) {
    const std::uint32_t y = at.y * subpixel + j * at.side;
    const std::uint32_t y_part = y % subpixel;
    const std::uint32_t* upper = sums + y / subpixel * row;
    const std::uint32_t* lower = y_part == 0 ? upper : upper + row;
    sum4 left{};
    for (std::uint32_t i = 0; i <= tile_side; ++i) {
      const std::uint32_t x = at.x * subpixel + i * at.side;
      const std::size_t p = std::size_t{x / subpixel} * 3;
      const auto column = [&](std::size_t q) {  // between the two rows
        const sum4 u = load(upper + q);
        return u * subpixel + (load(lower + q) - u) * y_part;
      };
      const sum4 here = column(p);
      const sum4 inside = here * subpixel + (column(p + 3) - here) * (x % subpixel);
      if (i != 0 && j != 0) {
        const sum4 part = inside - left - above[i] + above[i - 1];
        std::memcpy(out + ((j - 1) * tile_side + i - 1) * 3, &part, 3 * sizeof(std::uint32_t));
      }
      if (i != 0) above[i - 1] = left;
      left = inside;
    }
    above[tile_side] = left;
  }
}

}  // namespace

synthesizer::synthesizer(std::uint64_t seed) : seed_(seed) {
  // A side's weight is its inverse: so sides are distributed evenly by their logarithm, without floating-point numbers.
  std::uint64_t end = 0;
  for (std::uint32_t side = tile_side; side <= max_synth_side; ++side) side_ends_.push_back(end += (std::uint64_t{1} << 40) / side);
}

void synthesizer::add_photo(const std::uint8_t* pixels, std::uint32_t width, std::uint32_t height, std::uint32_t source,
                            std::uint32_t reduction) {
  if (std::min(width, height) < tile_side || std::min(width, height) > max_synth_side || reduction == 0) {
    throw error("a photograph for synthetic images has 32 to 4096 pixels in its shorter side");
  }
  const std::size_t row = (std::size_t{width} + 1) * 3;
  photo_sums photo{width, height, source, reduction, {}};
  // The last load goes over the end by a pixel and a channel; what it reads there counts zero times.
  photo.sums.resize((std::size_t{height} + 1) * row + 4);
  for (std::uint32_t y = 0; y < height; ++y) {
    const std::uint32_t* above = photo.sums.data() + y * row + 3;
    std::uint32_t* sums = photo.sums.data() + (y + 1) * row + 3;
    std::uint32_t of_row[3] = {};
    for (std::size_t i = 0; i < std::size_t{width} * 3; i += 3) {
      for (std::size_t c = 0; c < 3; ++c) sums[i + c] = above[i + c] + (of_row[c] += *pixels++);
    }
  }
  photos_.push_back(std::move(photo));
  const std::uint64_t area = std::uint64_t{width} * height * reduction * reduction;
  area_ends_.push_back((area_ends_.empty() ? 0 : area_ends_.back()) + area);
}

image_origin synthesizer::draw(std::uint64_t index, std::uint32_t attempt, std::uint8_t* out) const {
  generator random(seed_, index, attempt);
  const std::size_t which = part_of(area_ends_.data(), area_ends_.data() + area_ends_.size(), random.below(area_ends_.back()));
  const photo_sums& photo = photos_[which];
  const std::uint32_t nsides = std::min(photo.width, photo.height) - tile_side + 1;
  square at{};
  at.side = tile_side + static_cast<std::uint32_t>(
                            part_of(side_ends_.data(), side_ends_.data() + nsides, random.below(side_ends_[nsides - 1])));
  at.x = static_cast<std::uint32_t>(random.below(photo.width - at.side + 1));
  at.y = static_cast<std::uint32_t>(random.below(photo.height - at.side + 1));
  const bool mirrored = random.below(2) != 0;

  std::uint32_t sums[tile_nbytes];
  add_up_parts(photo.sums.data(), (std::size_t{photo.width} + 1) * 3, at, sums);
  // Fixed point, so that all machines give the same: sum * gain / side^2 in 2^16ths, rounded to the nearest value.
  std::uint64_t factor[3];
  std::int64_t offset[3];
  for (int c = 0; c < 3; ++c) {
    factor[c] = ((least_gain + random.below(gain_range)) << 36) / (std::uint64_t{at.side} * at.side);
    offset[c] = ((static_cast<std::int64_t>(random.below(2 * most_offset + 1)) - most_offset) << 16) + (1 << 15);
  }
  static_assert(gain_one == 1 << 12, "2^12 * 2^36 / 2^32 is 2^16");
  for (std::uint32_t y = 0; y < tile_side; ++y) {
    const std::uint32_t* from = sums + y * tile_side * 3;
    std::uint8_t* to = out + y * tile_side * 3;
    for (std::uint32_t x = 0; x < tile_side; ++x) {
      std::uint8_t* pixel = to + (mirrored ? tile_side - 1 - x : x) * 3;
      for (std::uint32_t c = 0; c < 3; ++c) {
        const auto value = static_cast<std::int64_t>((*from++ * factor[c]) >> 32) + offset[c];
        pixel[c] = static_cast<std::uint8_t>(std::clamp<std::int64_t>(value >> 16, 0, 255));
      }
    }
  }
  return {photo.source, at.x * photo.reduction, at.y * photo.reduction, at.side * photo.reduction};
}

void add_synthetic(library_builder& builder, const synthesizer& images, std::uint64_t nimages, unsigned nthreads,
                   const progress_function& progress) {
  if (nimages < 1 || nimages > max_nimages) throw error("a library holds 1 to 2^31 images");
  if (builder.nimages() != 0) throw error("there are images in the library already");
  if (images.nphotos() == 0) throw error("there are no photographs to cut images from");
  const std::uint32_t most = static_cast<std::uint32_t>(std::min<std::uint64_t>(batch, nimages));
  std::vector<std::uint8_t> thumbnails(std::size_t{most} * tile_nbytes);
  std::vector<image_origin> origins(most);
  for (std::uint64_t first = 0; first < nimages; first += batch) {
    const auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(batch, nimages - first));
    parallel_for(thread_count(nthreads), (n + share - 1) / share, [&](std::size_t s) {
      for (std::size_t i = s * share; i < std::min<std::size_t>(n, (s + 1) * share); ++i) {
        origins[i] = images.draw(first + i, 0, thumbnails.data() + i * tile_nbytes);
      }
    });
    std::size_t drawn_again = n;
    std::uint32_t attempt = 0;
    builder.add(thumbnails.data(), origins.data(), n, [&](std::size_t i) {
      attempt = i == drawn_again ? attempt + 1 : 1;
      drawn_again = i;
      if (attempt == synth_attempts) {
        throw error("the photographs are too small or too uniform for " + std::to_string(nimages) + " different images: image " +
                    std::to_string(first + i) + " was like one before it in " + std::to_string(synth_attempts) + " draws");
      }
      origins[i] = images.draw(first + i, attempt, thumbnails.data() + i * tile_nbytes);
      return true;
    });
    if (progress) progress(first + n, nimages);
  }
}

}  // namespace gpufs::apps::collage
