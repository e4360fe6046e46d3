// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a file lie that is made of namespaces: one, a part of one, several in stripes, equal copies, or stripes of
// copies; or in extents of one of these. docs/design/nvme.md, "Where a file's bytes lie".
#pragma once
#include "gpufs/nvme/detail/layout.hpp"

namespace gpufs::nvme {

// Bytes of a column that lie together.
struct file_run {
  std::uint32_t column, first_copy;  // which of its copies is asked first
  std::uint64_t offset, nbytes;      // from each copy's own beginning on
};

// Units of a file go to its columns in turn, and each of a column's copies has all of the column. For kernels and the host.
struct file_shape {
  std::uint32_t unit_shift;         // a unit has 1 << unit_shift bytes
  std::uint32_t ncolumns, ncopies;  // of each column
  std::uint32_t reserved;

  // Where byte `offset` lies, and how many of nbytes on from there lie together.
  GPUFS_HOST_DEVICE constexpr file_run locate(std::uint64_t offset, std::uint64_t nbytes) const {
    const std::uint64_t unit = offset >> unit_shift, begin = unit << unit_shift;
    const std::uint64_t row = ncolumns == 1 ? unit : unit / ncolumns, left = (std::uint64_t{1} << unit_shift) - (offset - begin);
    return {static_cast<std::uint32_t>(unit - row * ncolumns), ncopies == 1 ? 0 : static_cast<std::uint32_t>(row % ncopies),
            (row << unit_shift) + (offset - begin), nbytes < left ? nbytes : left};
  }
};
static_assert(sizeof(file_shape) == 16 && offsetof(file_shape, unit_shift) == 0 && offsetof(file_shape, ncolumns) == 4);
static_assert(offsetof(file_shape, ncopies) == 8 && offsetof(file_shape, reserved) == 12);

inline constexpr std::uint32_t no_unit_shift = 63;  // of a file of one column: all of it is one unit

// One copy of a column.
struct file_part {
  const namespace_layout* space;  // device memory
  std::uint64_t begin;            // its first byte in the namespace; begins a block
  const std::uint32_t* left_out;  // pinned memory; the host's: not 0, it is not read any more. Null where there is one copy
};
static_assert(sizeof(file_part) == 24 && offsetof(file_part, space) == 0 && offsetof(file_part, begin) == 8);
static_assert(offsetof(file_part, left_out) == 16);

// Bytes of a file that lie together, elsewhere than at the file's own offsets.
struct file_extent {
  std::uint64_t offset, nbytes;  // in the file
  std::uint64_t begin;           // where they lie: in the shape
};
static_assert(sizeof(file_extent) == 24 && offsetof(file_extent, offset) == 0 && offsetof(file_extent, nbytes) == 8);
static_assert(offsetof(file_extent, begin) == 16);

// Bytes that are all in one extent, or all in none: these are zeros.
struct extent_run {
  bool is_zeros;
  std::uint64_t begin, nbytes;
};

// Of nbytes from byte `offset` on, those that the first of n extents has that reaches so far, or those before it. For kernels and
// the host. extents: by offset, none meets the next.
GPUFS_HOST_DEVICE constexpr extent_run find_extent(const file_extent* extents, std::uint64_t n, std::uint64_t offset,
                                                   std::uint64_t nbytes) {
  std::uint64_t at = 0;  // so many begin at `offset` or before
  for (std::uint64_t end = n; at < end;) {
    const std::uint64_t middle = at + (end - at) / 2;
    if (extents[middle].offset <= offset) {
      at = middle + 1;
    } else {
      end = middle;
    }
  }
  if (at != 0 && offset - extents[at - 1].offset < extents[at - 1].nbytes) {
    const file_extent& in = extents[at - 1];
    const std::uint64_t left = in.nbytes - (offset - in.offset);
    return {false, in.begin + (offset - in.offset), nbytes < left ? nbytes : left};
  }
  const std::uint64_t before = at != n && extents[at].offset - offset < nbytes ? extents[at].offset - offset : nbytes;
  return {true, 0, before};
}

// What file_info::pull_base of kind nvme points to.
struct file_layout {
  const file_part* parts;      // device memory: [column * ncopies + copy]
  std::uint64_t share_nbytes;  // what warps of a block that read together begin at: a command's bytes, or a unit's
  file_shape shape;
  const file_extent* extents = nullptr;  // pinned memory; null: bytes lie in the shape at the file's own offsets
  std::uint64_t nextents = 0;
};
static_assert(sizeof(file_layout) == 48 && offsetof(file_layout, parts) == 0 && offsetof(file_layout, share_nbytes) == 8);
static_assert(offsetof(file_layout, shape) == 16 && offsetof(file_layout, extents) == 32 && offsetof(file_layout, nextents) == 40);

}  // namespace gpufs::nvme
