// SPDX-License-Identifier: Apache-2.0
// The regions of an image that is labelled by horizontal strips, one below the other: those that touch across a seam are joined,
// and all are numbered as if there had been no strips.
#pragma once
#include <cstdint>
#include <vector>

namespace gpufs::apps::label {

// Takes 16 bytes for each region that is in the first or the last row of its strip, and 32 a strip, whatever else there is.
class strip_regions {
 public:
  // corners: pixels that meet at a corner touch, too.
  strip_regions(std::uint64_t width, bool corners) : width_(width), corners_(corners) {}

  // The next strip below, of one row at least: what a labeler said of it, and the kinds of the pixels along its seam: of the last
  // row of the strip above, then of its own first row. Of the first strip nobody reads them.
  void add(const std::int32_t* labels, std::uint64_t height, std::uint64_t nregions, const std::uint32_t* seam);

  // Numbers the regions, from 1 on in the order of their first pixels. Returns how many there are. Once, after the last strip.
  std::uint64_t number();

  // n labels of a strip become the numbers of their regions. Label: std::int32_t, std::int64_t; it has room for the last number.
  // After number(). Throws gpufs::error: they are none of that strip's.
  template <class Label>
  void renumber(std::uint64_t which, Label* labels, std::uint64_t n) const;

 private:
  // Regions of strips have numbers before they are joined: theirs in their strip, and as many more as the strips above have.
  struct strip {
    std::uint64_t nregions_before, first_edge;
    std::uint64_t njoined_before = 0;  // how many in strips above are not the first of those that they were joined with
    std::uint64_t nregions;
  };
  // Of a region at a strip's edge, which must be there.
  std::uint64_t edge_of(const strip& of, std::int32_t label) const;
  std::uint64_t first_of(std::uint64_t edge);
  void join(std::uint64_t i, std::uint64_t j);

  const std::uint64_t width_;
  const bool corners_;
  std::uint64_t nregions_ = 0;  // of all strips, before they are joined
  std::vector<strip> strips_;
  std::vector<std::int32_t> above_;       // the last row of the last strip
  std::vector<std::uint64_t> numbers_;    // before, of the regions at edges: they rise
  std::vector<std::uint64_t> joined_to_;  // of each of them one further ahead, or itself; after number() its number
};

}  // namespace gpufs::apps::label
