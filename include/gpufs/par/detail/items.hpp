// SPDX-License-Identifier: Apache-2.0
// What a thread has of an array while a block goes through it: some elements side by side.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/par/group_scan.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/unroll.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Elements of an array in memory. A thread's N side by side go by accesses of 16 bytes, or of 8, where they lie so.
template <class T, unsigned N = scan_space::items_a_row(sizeof(T))>
struct array_items {
  using element = std::remove_const_t<T>;  // of the array
  using value = element;                   // of the scan
  static constexpr unsigned n = N;
  static constexpr unsigned width = n * sizeof(T) % 16 == 0 ? 16 : n * sizeof(T) % 8 == 0 ? 8 : 1;  // 1: never
  T* all;

  // What a thread has of a row.
  struct row {
    value items[n];
    GPUFS_DEVICE const value& operator[](unsigned k) const { return items[k]; }
  };

  GPUFS_DEVICE bool is_wide(std::uint64_t first) const {
    return width != 1 && reinterpret_cast<std::uintptr_t>(all + first) % width == 0;
  }
  // items[k] = all[first + k]; wide: is_wide(first).
  GPUFS_DEVICE void load_wide(std::uint64_t first, value (&items)[n]) const {
    std::memcpy(static_cast<void*>(items), __builtin_assume_aligned(all + first, width), sizeof items);
  }
  GPUFS_DEVICE void load(std::uint64_t first, unsigned valid, value (&items)[n]) const {
    if (valid == n && is_wide(first)) {
      load_wide(first, items);
      return;
    }
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) items[k] = all[first + k];
    }
  }
  GPUFS_DEVICE void store(std::uint64_t first, unsigned valid, const value (&items)[n]) const {
    if (valid == n && is_wide(first)) {
      std::memcpy(__builtin_assume_aligned(static_cast<void*>(all + first), width), items, sizeof items);
      return;
    }
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) all[first + k] = items[k];
    }
  }

  // Rows of a scan, of which all n elements are there, and is_wide(first); or `valid` of them, and others are `nothing`.
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const { load_wide(first, to.items); }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, const value& nothing, row& to) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) to.items[k] = k < valid ? all[first + k] : nothing;
  }
};

// The elements of a segmented scan. heads(i): whether a segment begins at element i.
template <class T, class Heads>
struct segmented_items {
  using element = T;
  using value = with_head<T>;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T));
  array_items<const T> all;
  Heads heads;

  struct row {
    typename array_items<const T>::row values;
    std::uint32_t heads;  // bit k of element k: a register for all of them
    GPUFS_DEVICE value operator[](unsigned k) const { return {values.items[k], (heads >> k & 1) != 0}; }
  };

  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return all.is_wide(first); }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const {
    all.load_row(first, to.values);
    if constexpr (requires { heads.template several<n>(first); }) {
      to.heads = heads.template several<n>(first);
    } else {
      to.heads = some_heads(first, n);
    }
  }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, const value& nothing, row& to) const {
    all.load_row(first, valid, nothing.of, to.values);
    to.heads = some_heads(first, valid);
  }

 private:
  GPUFS_DEVICE std::uint32_t some_heads(std::uint64_t first, unsigned valid) const {
    std::uint32_t bits = 0;
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid && static_cast<bool>(heads(first + k))) bits |= 1u << k;
    }
    return bits;
  }
};

// Whether all threads of a block have met since it scanned a tile before.
enum class block_has { not_met, met };

// What a group takes of an array at a time, in registers: its lanes go through some rows, a warp of a block through rows of its
// own. (Sengupta, Harris, Garland, section 4, have eight elements a thread side by side; then a warp's access to memory has gaps.)
// All threads of the group make it, and call its members.
template <class Group, class Items, scan_operator Op>
class scan_tile {
  using T = typename Op::value;
  static constexpr bool by_block = std::is_same_v<Group, simt::block>;
  static constexpr unsigned n = Items::n, nrows = scan_space::rows_a_thread(sizeof(typename Items::element));

 public:
  // Of the elements from `begin` to `end`, as many as there are threads for.
  GPUFS_DEVICE scan_tile(Group group, const Items& from, std::uint64_t begin, std::uint64_t end, const Op& op,
                         block_has met = block_has::not_met)
      : first_(begin + lanes_of(group).rank() * n), end_(end), stride_(lanes_of(group).size() * n), left_(op.identity()) {
    const auto lanes = lanes_of(group);
    if constexpr (by_block) first_ += std::uint64_t{simt::warp_rank()} * stride_ * nrows;
    is_full_ = begin <= end && end - begin >= size(group);
    if (is_full_ && from.is_wide(begin)) {
      GPUFS_UNROLL
      for (unsigned r = 0; r < nrows; ++r) from.load_row(first_of(r), rows_[r]);
    } else {
      GPUFS_UNROLL
      for (unsigned r = 0; r < nrows; ++r) from.load_row(first_of(r), valid_of(r), op.identity(), rows_[r]);
    }
    GPUFS_UNROLL
    for (unsigned r = 0; r < nrows; ++r) {
      T mine = rows_[r][0];
      GPUFS_UNROLL
      for (unsigned k = 1; k < n; ++k) mine = op(mine, rows_[r][k]);
      const scanned<T> of_row = detail::scan(lanes, mine, op);
      below_[r] = r == 0 ? of_row.below : op(all_, of_row.below);
      all_ = r == 0 ? of_row.all : op(all_, of_row.all);
    }
    if constexpr (by_block) {
      const scanned<T> of_warps = scan_warps(group, all_, op, met == block_has::met);
      left_ = of_warps.below;
      all_ = of_warps.all;
    }
  }
  GPUFS_DEVICE static std::uint64_t size(Group group) { return std::uint64_t{group.size()} * n * nrows; }

  // All elements of it, combined.
  GPUFS_DEVICE const T& all() const { return all_; }
  // put(first, valid, row, below), for each of the caller's rows: `valid` elements from number `first` on, and for each of them all
  // to its left, where `before` is all that is to the left of the tile.
  template <class Put>
  GPUFS_DEVICE void finish(const T& before, const Op& op, const Put& put) const {
    const T left = by_block ? op(before, left_) : before;
    GPUFS_UNROLL
    for (unsigned r = 0; r < nrows; ++r) {
      T below[n], running = op(left, below_[r]);
      GPUFS_UNROLL
      for (unsigned k = 0; k < n; ++k) {
        below[k] = running;
        if (k + 1 < n) running = op(running, rows_[r][k]);
      }
      put(first_of(r), valid_of(r), rows_[r], below);
    }
  }

 private:
  GPUFS_DEVICE static auto lanes_of(Group group) {
    if constexpr (by_block) {
      return group.warp();
    } else {
      return group;
    }
  }
  GPUFS_DEVICE std::uint64_t first_of(unsigned row) const { return first_ + std::uint64_t{row} * stride_; }
  GPUFS_DEVICE unsigned valid_of(unsigned row) const {
    if (is_full_) return n;
    const std::uint64_t first = first_of(row);
    return first >= end_ ? 0 : end_ - first < n ? static_cast<unsigned>(end_ - first) : n;
  }

  std::uint64_t first_, end_;
  unsigned stride_;  // from a row to the next
  bool is_full_;
  typename Items::row rows_[nrows];
  T below_[nrows];  // of the lanes' elements: all that is left of the caller's in that row
  T left_, all_;    // of a block: all that is left of the caller's warp
};

// What becomes of a tile's elements: nothing.
struct put_nothing {
  template <class... Arguments>
  GPUFS_DEVICE void operator()(const Arguments&...) const {}
};
// An inclusive or an exclusive scan in memory.
template <bool Inclusive, scan_operator Op>
struct put_scan {
  using T = typename Op::value;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T));
  T* out;
  const Op& op;  // the caller's

  template <class Row>
  GPUFS_DEVICE void operator()(std::uint64_t first, unsigned valid, const Row& row, const T (&below)[n]) const {
    if constexpr (Inclusive) {
      T results[n];
      GPUFS_UNROLL
      for (unsigned k = 0; k < n; ++k) results[k] = op(below[k], row[k]);
      array_items<T>{out}.store(first, valid, results);
    } else {
      array_items<T>{out}.store(first, valid, below);
    }
  }
};
template <bool Inclusive, scan_operator Op>
struct put_segmented_scan {
  using T = typename Op::value;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T));
  T* out;
  const Op& op;

  template <class Row>
  GPUFS_DEVICE void operator()(std::uint64_t first, unsigned valid, const Row& row, const with_head<T> (&below)[n]) const {
    T results[n];
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      const with_head<T> item = row[k];
      const T left = item.is_head ? op.identity() : below[k].of;
      results[k] = Inclusive ? op(left, item.of) : left;
    }
    array_items<T>{out}.store(first, valid, results);
  }
};

// Scans the elements from `begin` to `end` by a group, a tile after the other; returns all of them, combined.
template <class Group, class Items, scan_operator Op, class Put>
GPUFS_DEVICE typename Op::value scan_by_group(Group group, const Items& from, std::uint64_t begin, std::uint64_t end, const Op& op,
                                              const Put& put) {
  using tile = scan_tile<Group, Items, Op>;
  auto before = op.identity();
  for (; begin < end; begin += tile::size(group)) {
    const tile here(group, from, begin, end, op);
    here.finish(before, op, put);
    before = op(before, here.all());
  }
  return before;
}
template <class Group, class Items, scan_operator Op, class Put>
GPUFS_DEVICE typename Op::value scan_by_group(Group group, const Items& from, std::uint64_t n, const Op& op, const Put& put) {
  return scan_by_group(group, from, 0, n, op, put);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
