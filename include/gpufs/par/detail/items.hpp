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

// Elements of an array in memory. A thread's go by accesses of 16 bytes, or of 8, where they lie so.
template <class T>
struct array_items {
  using element = std::remove_const_t<T>;  // of the array
  using value = element;                   // of the scan
  static constexpr unsigned n = scan_space::items_a_thread(sizeof(T));
  static constexpr unsigned width = n * sizeof(T) % 16 == 0 ? 16 : n * sizeof(T) % 8 == 0 ? 8 : 1;  // 1: never
  T* all;

  GPUFS_DEVICE static bool is_wide(const void* first) { return width != 1 && reinterpret_cast<std::uintptr_t>(first) % width == 0; }
  // items[k] = all[first + k] for k below `valid`, which is n at most.
  GPUFS_DEVICE void load(std::uint64_t first, unsigned valid, value (&items)[n]) const {
    const T* const from = all + first;
    if (valid == n && is_wide(from)) {
      std::memcpy(static_cast<void*>(items), __builtin_assume_aligned(from, width), sizeof items);
      return;
    }
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) items[k] = from[k];
    }
  }
  GPUFS_DEVICE void store(std::uint64_t first, unsigned valid, const T (&items)[n]) const {
    T* const to = all + first;
    if (valid == n && is_wide(to)) {
      std::memcpy(__builtin_assume_aligned(static_cast<void*>(to), width), items, sizeof items);
      return;
    }
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) to[k] = items[k];
    }
  }
};

// The elements of a segmented scan. heads(i): whether a segment begins at element i.
template <class T, class Heads>
struct segmented_items {
  using element = T;
  using value = with_head<T>;
  static constexpr unsigned n = scan_space::items_a_thread(sizeof(T));
  array_items<const T> all;
  Heads heads;

  GPUFS_DEVICE void load(std::uint64_t first, unsigned valid, value (&items)[n]) const {
    T values[n]{};
    all.load(first, valid, values);
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) items[k] = {values[k], static_cast<bool>(heads(first + k))};
    }
  }
};

// What a group takes of an array at a time: some elements a thread, in registers. All threads of the group make it, and call its
// members.
template <class Group, class Items, scan_operator Op>
class scan_tile {
  using T = typename Op::value;
  static constexpr unsigned n = Items::n;

 public:
  // Of the elements from `begin` to `end`, as many as there are threads for.
  GPUFS_DEVICE scan_tile(Group group, const Items& from, std::uint64_t begin, std::uint64_t end, const Op& op)
      : first_(begin + std::uint64_t{group.rank()} * n),
        valid_(first_ >= end      ? 0
               : end - first_ < n ? static_cast<unsigned>(end - first_)
                                  : n) {
    from.load(first_, valid_, items_);
    T mine = op.identity();
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid_) mine = k == 0 ? items_[0] : op(mine, items_[k]);
    }
    scanned_ = detail::scan(group, mine, op);
  }
  GPUFS_DEVICE static std::uint64_t size(Group group) { return std::uint64_t{group.size()} * n; }

  // All elements of it, combined.
  GPUFS_DEVICE const T& all() const { return scanned_.all; }
  // put(first, valid, items, below): `valid` elements of the caller's from number `first` on, and for each of them all to its left,
  // where `before` is all that is to the left of the tile.
  template <class Put>
  GPUFS_DEVICE void finish(const T& before, const Op& op, const Put& put) const {
    T below[n], running = op(before, scanned_.below);
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      below[k] = running;
      if (k < valid_) running = op(running, items_[k]);
    }
    put(first_, valid_, items_, below);
  }

 private:
  std::uint64_t first_;
  unsigned valid_;
  T items_[n];
  scanned<T> scanned_;
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
  static constexpr unsigned n = scan_space::items_a_thread(sizeof(T));
  T* out;
  const Op& op;  // the caller's

  GPUFS_DEVICE void operator()(std::uint64_t first, unsigned valid, const T (&items)[n], const T (&below)[n]) const {
    if constexpr (Inclusive) {
      T results[n];
      GPUFS_UNROLL
      for (unsigned k = 0; k < n; ++k) {
        if (k < valid) results[k] = op(below[k], items[k]);
      }
      array_items<T>{out}.store(first, valid, results);
    } else {
      array_items<T>{out}.store(first, valid, below);
    }
  }
};
template <bool Inclusive, scan_operator Op>
struct put_segmented_scan {
  using T = typename Op::value;
  static constexpr unsigned n = scan_space::items_a_thread(sizeof(T));
  T* out;
  const Op& op;

  GPUFS_DEVICE void operator()(std::uint64_t first, unsigned valid, const with_head<T> (&items)[n],
                               const with_head<T> (&below)[n]) const {
    T results[n];
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k >= valid) continue;
      const T left = items[k].is_head ? op.identity() : below[k].of;
      results[k] = Inclusive ? op(left, items[k].of) : left;
    }
    array_items<T>{out}.store(first, valid, results);
  }
};

// Scans n elements by a group, a tile after the other; returns all of them, combined.
template <class Group, class Items, scan_operator Op, class Put>
GPUFS_DEVICE typename Op::value scan_by_group(Group group, const Items& from, std::uint64_t n, const Op& op, const Put& put) {
  using tile = scan_tile<Group, Items, Op>;
  auto before = op.identity();
  for (std::uint64_t begin = 0; begin < n; begin += tile::size(group)) {
    const tile here(group, from, begin, n, op);
    here.finish(before, op, put);
    before = op(before, here.all());
  }
  return before;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
