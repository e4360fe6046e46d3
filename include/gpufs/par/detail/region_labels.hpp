// SPDX-License-Identifier: Apache-2.0
// Regions of images, labelled along their boundaries. Each side of a pixel behind which there is another kind of pixel, or nothing,
// is an edge. Who goes along it with the region on the right comes to one other edge, so edges are in circles: one around each
// region, and one around each hole in it. All edges of a circle find the uppermost one by pointer jumping. Of a region's own circle
// that is an edge above a pixel, the region's first; of a hole's the one below a pixel that lies above the hole, and this pixel's
// column leads up to another circle of the region, which begins higher. So all of them lead to the first pixel, as lists, which are
// jumped along too (pointer_jumping.hpp). Hillis and Steele, "Data parallel algorithms" (CACM 1986), "Region labeling".
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/par/detail/pointer_jumping.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

namespace detail {

// n pixels: an edge's number (four a pixel) fits into 4 bytes, and so does twice a place in a row more.
GPUFS_DEVICE bool can_be_labelled(std::uint64_t height, std::uint64_t width) {
  constexpr std::uint64_t most = std::uint64_t{1} << 30;
  return height < most && width < most && height * width < most;
}

GPUFS_DEVICE bool is_room_to_label(const scan_space& space, std::uint64_t height, std::uint64_t width, unsigned nblocks) {
  return can_be_labelled(height, width) && space.nbytes >= scan_space::nbytes_to_label(height * width, nblocks);
}

template <class T>
class label_image {
 public:
  GPUFS_DEVICE label_image(const T* pixels, std::uint64_t height, std::uint64_t width, touching how)
      : pixels_(pixels), height_(static_cast<std::int64_t>(height)), width_(static_cast<std::int64_t>(width)), how_(how) {}

  GPUFS_DEVICE std::uint64_t n() const { return static_cast<std::uint64_t>(height_ * width_); }
  GPUFS_DEVICE std::uint32_t width() const { return static_cast<std::uint32_t>(width_); }

  // Sides of a pixel, clockwise; also the way that leads out by it. Opposite: + 2.
  enum : unsigned { above, right, below, left };

  struct place {
    std::int64_t row, column;
    GPUFS_DEVICE place by(unsigned side) const {
      return {row + (side == below) - (side == above), column + (side == right) - (side == left)};
    }
  };
  GPUFS_DEVICE place place_of(std::uint64_t pixel) const {
    const auto i = static_cast<std::int64_t>(pixel);
    return {i / width_, i % width_};
  }
  GPUFS_DEVICE std::uint32_t pixel_at(place at) const { return static_cast<std::uint32_t>(at.row * width_ + at.column); }
  // Whether there is a pixel at b, of the kind of the one at a.
  GPUFS_DEVICE bool is_alike(place a, place b) const {
    const bool is_there = b.row >= 0 && b.row < height_ && b.column >= 0 && b.column < width_;
    return is_there && pixels_[pixel_at(a)] == pixels_[pixel_at(b)];
  }

  // The edge behind the one at this side of the pixel, clockwise around the region: the region goes on to the left, straight on, or
  // not at all.
  GPUFS_DEVICE std::uint32_t edge_after(place at, unsigned side) const {
    const unsigned forward = (side + 1) % 4;
    const place ahead = at.by(forward), across = ahead.by(side);
    const bool goes_on = is_alike(at, ahead);
    if ((goes_on || how_ == touching::corners) && is_alike(at, across)) return edge(across, (side + 3) % 4);
    return goes_on ? edge(ahead, side) : edge(at, forward);
  }
  GPUFS_DEVICE std::uint32_t edge(place at, unsigned side) const { return 4 * pixel_at(at) + side; }

  // The least label among those of the pixel and of what touches it, while others change theirs.
  GPUFS_DEVICE std::uint32_t least_around(std::uint64_t pixel, std::uint32_t* labels) const {
    const place at = place_of(pixel);
    std::uint32_t least = labels[pixel];
    for (std::int64_t down = -1; down <= 1; ++down) {
      for (std::int64_t on = -1; on <= 1; ++on) {
        if (how_ == touching::sides && down != 0 && on != 0) continue;
        const place there{at.row + down, at.column + on};
        if (!is_alike(at, there)) continue;
        const std::uint32_t theirs = simt::atomic_ref(labels[pixel_at(there)]).load_relaxed();
        if (theirs < least) least = theirs;
      }
    }
    return least;
  }

 private:
  const T* pixels_;
  std::int64_t height_, width_;
  touching how_;
};

// How far an edge has looked along its circle: to `next`, which it has not looked at, and the highest it has seen. One word, so
// that who reads it in the round in which it is written gets what belongs together: then it sees farther, and misses nothing.
struct seen_edges {
  std::uint64_t word;
  GPUFS_DEVICE seen_edges(std::uint64_t of) : word(of) {}
  GPUFS_DEVICE seen_edges(std::uint32_t highest, std::uint32_t next) : word(std::uint64_t{highest} << 32 | next) {}
  GPUFS_DEVICE std::uint32_t highest() const { return static_cast<std::uint32_t>(word >> 32); }
  GPUFS_DEVICE std::uint32_t next() const { return static_cast<std::uint32_t>(word); }
};
// Of edges above and below pixels: twice the place where they lie, and 1 of those below. Others are never the highest.
inline constexpr std::uint32_t no_height = ~std::uint32_t{0};

template <class Group, class T>
GPUFS_DEVICE list_result label_by_boundaries(const team<Group>& all, const label_image<T>& image, std::uint32_t* labels,
                                             pieces_of_space& pieces) {
  using image_type = label_image<T>;
  const std::uint64_t n = image.n();
  auto* const edges = pieces.take<std::uint64_t>(4 * n);
  auto* const ends = pieces.take<std::uint32_t>(n);
  all.begin();
  all.each(4 * n, [&](std::uint64_t i) {
    const auto side = static_cast<unsigned>(i % 4);
    const auto pixel = static_cast<std::uint32_t>(i / 4);
    const auto at = image.place_of(pixel);
    const auto self = static_cast<std::uint32_t>(i);
    if (image.is_alike(at, at.by(side))) {
      edges[i] = seen_edges(no_height, self).word;  // there is no edge
      return;
    }
    const std::uint32_t height = side == image_type::above   ? 2 * pixel
                                 : side == image_type::below ? 2 * (pixel + image.width()) + 1
                                                             : no_height;
    edges[i] = seen_edges(height, image.edge_after(at, side)).word;
  });
  all.sync();
  // Where nobody has seen a higher one in a whole round, each circle is of one height: what each has seen goes on to the next
  // one's, all around.
  const list_result around = jump(all, rounds_for(4 * n) + 1, [&] {
    bool goes_on = false;
    all.each(4 * n, [&](std::uint64_t i) {
      const simt::atomic_ref edge(edges[i]);
      const seen_edges mine = edge.load_relaxed();
      if (mine.next() == i) return;
      const seen_edges theirs = simt::atomic_ref(edges[mine.next()]).load_relaxed();
      const bool higher = theirs.highest() < mine.highest();
      edge.store(seen_edges(higher ? theirs.highest() : mine.highest(), theirs.next()).word, std::memory_order_relaxed);
      goes_on = goes_on || higher;
    });
    return goes_on;
  });
  // From each pixel up its column, and from the top of it, in a hole's circle, to the pixel above the hole.
  all.each(n, [&](std::uint64_t i) {
    const auto at = image.place_of(i);
    const auto pixel = static_cast<std::uint32_t>(i);
    if (image.is_alike(at, at.by(image_type::above))) {
      labels[i] = pixel - image.width();
      return;
    }
    const std::uint32_t height = seen_edges(edges[4 * i + image_type::above]).highest();
    labels[i] = height % 2 == 0 ? no_place<std::uint32_t> : height / 2 - image.width();
  });
  all.sync();
  const list_result up = find_ends(all, labels, n, ends);
  all.each(n,
           [&](std::uint64_t i) { labels[i] = seen_edges(edges[4 * std::uint64_t{ends[i]} + image_type::above]).highest() / 2; });
  all.end();
  return {around.error != 0 ? around.error : up.error, around.nrounds + up.nrounds};
}

template <class Group, class T>
GPUFS_DEVICE list_result label_by_neighbours(const team<Group>& all, const label_image<T>& image, std::uint32_t* labels) {
  const std::uint64_t n = image.n();
  all.begin();
  all.each(n, [&](std::uint64_t i) { labels[i] = static_cast<std::uint32_t>(i); });
  all.sync();
  const list_result done = jump(all, static_cast<unsigned>(n), [&] {
    bool goes_on = false;
    all.each(n, [&](std::uint64_t i) {
      const std::uint32_t least = image.least_around(i, labels);
      if (least == labels[i]) return;
      simt::atomic_ref(labels[i]).store(least, std::memory_order_relaxed);
      goes_on = true;
    });
    return goes_on;
  });
  all.end();
  return done;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
