// SPDX-License-Identifier: Apache-2.0
// Labels the regions of an image: pixels that hang together and are alike. In kernels, by the two algorithms of Hillis and Steele,
// "Data parallel algorithms" (CACM 1986), "Region labeling". docs/design/data-parallel.md
#pragma once
#include "gpufs/par/choices.hpp"
#include "gpufs/par/detail/region_labels.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// An image has height * width pixels, row by row. A region is all pixels that are equal (==; so a NaN is one by itself) and can be
// reached from each other by pixels of the same kind that touch; so what is called background elsewhere is regions, too. labels[i]
// becomes the number of the first pixel of i's region, row by row: the least one. (The paper takes the greatest; it is the same
// from the other end.) By a thread, a tile, a warp or a block, all threads of which call with equal arguments. pixels: memory that
// they reach, trivially copyable; labels: global memory, no others'. Nothing is waited for but the group. A thread reads others'
// pixels from the beginning: if others have written them, the group syncs before the call, as it does after it, before a thread
// reads others' labels.
//
// Errors: -EINVAL (2^30 pixels or more, or as many rows or columns; the space is too small): nothing is written.

// By boundaries: pointer jumping along the edges of all regions and holes at once, then along columns and from hole to hole,
// whatever the shapes are, snakes and spirals too: at most ceil(log2(4n)) + ceil(log2 n) + 2 rounds, each of which goes through 4n
// edges, or n pixels, and has a barrier. space: scan_space::nbytes_to_label(n) bytes of global memory.
template <simt::group Group, class T>
GPUFS_DEVICE list_result label_regions(Group group, const T* pixels, std::uint64_t height, std::uint64_t width, touching how,
                                       std::uint32_t* labels, const scan_space& space) {
  const simt::group_call call(group, "par::label_regions(pixels, height, width, how, labels, space, nbytes)",
                              simt::memory_of_all{pixels, height * width}, height, width, how,
                              simt::memory_of_all{labels, height * width}, simt::memory_of_all{space.data, height * width},
                              space.nbytes);
  if (!detail::is_room_to_label(space, height, width, 1)) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  return detail::label_by_boundaries(detail::team<Group>(group), detail::label_image<T>(pixels, height, width, how), labels,
                                     pieces);
}

// By neighbours: in each round a pixel takes the least label of those that touch it, until nothing changes. So many rounds as the
// way is long within a region to its first pixel, and one more: few where regions are small and round, up to n in a snake. Needs no
// space, and goes through n pixels a round.
template <simt::group Group, class T>
GPUFS_DEVICE list_result label_regions_by_neighbours(Group group, const T* pixels, std::uint64_t height, std::uint64_t width,
                                                     touching how, std::uint32_t* labels) {
  const simt::group_call call(group, "par::label_regions_by_neighbours(pixels, height, width, how, labels)",
                              simt::memory_of_all{pixels, height * width}, height, width, how,
                              simt::memory_of_all{labels, height * width});
  if (!detail::can_be_labelled(height, width)) return {-EINVAL, 0};
  return detail::label_by_neighbours(detail::team<Group>(group), detail::label_image<T>(pixels, height, width, how), labels);
}

// The same by all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results. What any of
// them has written before, all see in the call, and what the call has written, all see after it. space: nbytes_to_label(n, blocks),
// by neighbours nbytes_to_send(0, blocks).
template <class T>
GPUFS_DEVICE list_result label_regions(simt::grid grid, const T* pixels, std::uint64_t height, std::uint64_t width, touching how,
                                       std::uint32_t* labels, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::label_regions(pixels, height, width, how, labels, space, nbytes)",
                              simt::memory_of_all{pixels, height * width}, height, width, how,
                              simt::memory_of_all{labels, height * width}, simt::memory_of_all{space.data}, space.nbytes);
  if (!detail::is_room_to_label(space, height, width, simt::grid_size())) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  const detail::team<simt::grid> all(grid, pieces);
  return detail::label_by_boundaries(all, detail::label_image<T>(pixels, height, width, how), labels, pieces);
}
template <class T>
GPUFS_DEVICE list_result label_regions_by_neighbours(simt::grid grid, const T* pixels, std::uint64_t height, std::uint64_t width,
                                                     touching how, std::uint32_t* labels, const scan_space& space) {
  const simt::group_call call(grid.this_block(),
                              "par::label_regions_by_neighbours(pixels, height, width, how, labels, space, nbytes)",
                              simt::memory_of_all{pixels, height * width}, height, width, how,
                              simt::memory_of_all{labels, height * width}, simt::memory_of_all{space.data}, space.nbytes);
  const bool has_room = space.nbytes >= scan_space::nbytes_to_send(0, simt::grid_size());
  if (!detail::can_be_labelled(height, width) || !has_room) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  return detail::label_by_neighbours(detail::team<simt::grid>(grid, pieces), detail::label_image<T>(pixels, height, width, how),
                                     labels);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
