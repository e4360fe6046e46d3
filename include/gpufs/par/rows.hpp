// SPDX-License-Identifier: Apache-2.0
// Rows of equal size in a file, how a batch names them, and what it says of one that fails. For host code and kernels.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/simt.hpp"

namespace gpufs {

// Where rows of equal size lie in a file: row i takes row_nbytes from begin + i * stride_nbytes on. Any size from 1 byte, any
// alignment.
struct row_layout {
  std::uint64_t row_nbytes = 0;
  std::uint64_t nrows = 0;
  std::uint64_t begin = 0;
  std::uint64_t stride_nbytes = 0;  // from a row to the next one; 0: row_nbytes; gather (not scatter) takes less, too: rows overlap
  bool from_end = false;            // -1 names the last row, -2 the one before, as in Python; else there is no such row
};
static_assert(sizeof(row_layout) == 40 && offsetof(row_layout, row_nbytes) == 0 && offsetof(row_layout, nrows) == 8);
static_assert(offsetof(row_layout, begin) == 16 && offsetof(row_layout, stride_nbytes) == 24 &&
              offsetof(row_layout, from_end) == 32);

// The row of a batch that failed: 0, or its negative errno, and which place it has in the batch. -EDOM: its number names no row;
// -ENXIO: the file ends before it does; else as pread and pwrite.
struct row_failure {
  int error = 0;
  std::uint64_t place = 0;

  // As kernels write it down: place << 12 | errno, so that the least word is of the least place.
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  GPUFS_HOST_DEVICE static constexpr std::uint64_t word(std::uint64_t place, int error) {
    return place << 12 | (static_cast<std::uint32_t>(-error) & 0xfff);
  }
  GPUFS_HOST_DEVICE static constexpr row_failure of(std::uint64_t word) {
    if (word == none) return {};
    return {-static_cast<int>(word & 0xfff), word >> 12};
  }
};
static_assert(sizeof(row_failure) == 16 && offsetof(row_failure, error) == 0 && offsetof(row_failure, place) == 8);

// What names rows. 8-byte ones are taken as signed.
template <class T>
concept row_number = std::same_as<T, std::int32_t> || std::same_as<T, std::uint32_t> || std::same_as<T, std::int64_t> ||
    std::same_as<T, std::uint64_t>;

inline namespace GPUFS_MACHINE {
namespace detail {

// As the caller gave them.
struct numbers_of_rows {
  const void* of;
  bool wide, is_signed;

  template <row_number Number>
  GPUFS_HOST_DEVICE static numbers_of_rows make(const Number* of) {
    return {of, sizeof(Number) == 8, std::is_signed_v<Number>};
  }
};
static_assert(sizeof(numbers_of_rows) == 16 && offsetof(numbers_of_rows, of) == 0 && offsetof(numbers_of_rows, wide) == 8);
static_assert(offsetof(numbers_of_rows, is_signed) == 9);

// The row that place i names, or layout.nrows: there is no such row.
GPUFS_DEVICE std::uint64_t row_of(const numbers_of_rows& numbers, std::uint64_t i, const row_layout& layout) {
  std::int64_t number = 0;
  if (numbers.wide) {
    number = static_cast<const std::int64_t*>(numbers.of)[i];
  } else {
    const std::uint32_t bits = static_cast<const std::uint32_t*>(numbers.of)[i];
    number = numbers.is_signed ? static_cast<std::int32_t>(bits) : static_cast<std::int64_t>(bits);
  }
  if (number < 0 && layout.from_end) number += static_cast<std::int64_t>(layout.nrows);
  return number >= 0 && static_cast<std::uint64_t>(number) < layout.nrows ? static_cast<std::uint64_t>(number) : layout.nrows;
}

// Rows by number, where they lie.
struct rows_of_file {
  row_layout layout;  // with its stride; a number of layout.nrows: no row

  GPUFS_HOST_DEVICE static row_layout with_stride(row_layout layout) {
    if (layout.stride_nbytes == 0) layout.stride_nbytes = layout.row_nbytes;
    return layout;
  }
  GPUFS_DEVICE bool is_row(std::uint64_t row) const { return row < layout.nrows; }
  GPUFS_DEVICE std::uint64_t offset(std::uint64_t row) const { return layout.begin + row * layout.stride_nbytes; }
};
static_assert(sizeof(rows_of_file) == sizeof(row_layout) && offsetof(rows_of_file, layout) == 0);

// Why no file can have rows of this layout, or no batch so many of them; or null.
GPUFS_HOST_DEVICE constexpr const char* why_not_rows(const row_layout& layout, std::uint64_t n) {
  constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
  constexpr const char* beyond = "the rows end beyond 2^63 bytes";
  if (layout.nrows >= most || layout.begin > most || layout.row_nbytes > most) return beyond;
  if (layout.nrows != 0) {
    const std::uint64_t room = most - layout.begin, step = layout.stride_nbytes != 0 ? layout.stride_nbytes : layout.row_nbytes;
    if (layout.row_nbytes > room || (step != 0 && layout.nrows - 1 > (room - layout.row_nbytes) / step)) return beyond;
  }
  if (n >= std::uint64_t{1} << 52 || (layout.row_nbytes != 0 && n > most / layout.row_nbytes)) return "n is too large";
  return nullptr;
}

constexpr std::uint64_t most_by_eight = 256;  // bytes: of the rows that 8 lanes copy from or to a mapping; larger ones a warp does

// 8 lanes, or a smaller group.
template <class Group>
using up_to_eight = simt::tile<(Group::lanes < 8 ? Group::lanes : 8)>;

// In the place of a group that copies: which one, the size of a row says.
struct by_size {};

// A fair share of n rows for each of so many groups: how many rows a group's lanes look for at once.
constexpr std::uint32_t least_at_once = 4;
GPUFS_HOST_DEVICE constexpr std::uint32_t fair_at_once(std::uint32_t n, std::uint32_t ngroups) {
  std::uint32_t fair = simt::warp_lanes;
  while (fair > least_at_once && fair > n / ngroups) fair /= 2;
  return fair;
}
// Of larger rows fewer: a look is little beside the bytes, and warps that have more do not end together.
GPUFS_HOST_DEVICE constexpr std::uint32_t looked_for_at_once(std::uint64_t row_nbytes, std::uint32_t n, std::uint32_t ngroups) {
  const std::uint32_t fair = fair_at_once(n, ngroups), most = 2 * least_at_once;
  return row_nbytes > most_by_eight && fair > most ? most : fair;
}
// How many of the rows that it has looked for it takes at once that are not in the cache. Of larger rows few, so that those which
// are read at one time lie close together; there a look is little beside the bytes.
GPUFS_HOST_DEVICE constexpr std::uint32_t missed_at_once(std::uint64_t row_nbytes, std::uint32_t looked) {
  return row_nbytes > most_by_eight && looked > least_at_once ? least_at_once : looked;
}
// The same of rows that are stored, and a fence waits until they are: as many as keep the bus busy meanwhile.
GPUFS_HOST_DEVICE constexpr std::uint32_t stored_at_once(std::uint64_t row_nbytes, std::uint32_t fair) {
  constexpr std::uint64_t most_nbytes = 16384;
  const std::uint64_t most = most_nbytes / row_nbytes;
  return most >= fair ? fair : most < least_at_once ? least_at_once : static_cast<std::uint32_t>(most);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
