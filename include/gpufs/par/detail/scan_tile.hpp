// SPDX-License-Identifier: Apache-2.0
// How a group scans what its threads have of an array, a tile after the other, and what becomes of that.
#pragma once
#include <cstdint>
#include <type_traits>

#include "gpufs/par/detail/items.hpp"
#include "gpufs/par/group_scan.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/unroll.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Whether all threads of a block have met since it scanned a tile before.
enum class block_has { not_met, met };

// What a group takes of an array at a time, in registers: its lanes go through some rows, a warp of a block through rows of its
// own. (Sengupta, Harris, Garland, section 4, have eight elements a thread side by side; then a warp's access to memory has gaps.)
// All threads of the group make it, and call its members.
template <class Group, class Items, scan_operator Op>
class scan_tile {
  using T = typename Op::value;
  static constexpr bool by_block = std::is_same_v<Group, simt::block>;
  static constexpr unsigned n = Items::n, nrows = Items::nrows;

 public:
  // Loads of the elements from `begin` to `end` as many as there are threads for; waits for none of them.
  GPUFS_DEVICE scan_tile(Group group, const Items& from, std::uint64_t begin, std::uint64_t end, const Op& op)
      : first_(begin + lanes_of(group).rank() * n), left_(op.identity()), all_(op.identity()) {
    if constexpr (by_block) first_ += std::uint64_t{simt::warp_rank()} * stride() * nrows;
    there_ = first_ >= end ? 0 : end - first_ < span() ? static_cast<unsigned>(end - first_) : span();
    if (there_ == span() && from.is_wide(first_)) {
      GPUFS_UNROLL
      for (unsigned r = 0; r < nrows; ++r) from.load_row(first_of(r), rows_[r]);
    } else {
      GPUFS_UNROLL
      for (unsigned r = 0; r < nrows; ++r) from.load_row(first_of(r), valid_of(r), op.identity(), rows_[r]);
    }
  }
  // Combines them.
  GPUFS_DEVICE void scan(Group group, const Op& op, block_has met = block_has::not_met) {
    GPUFS_UNROLL
    for (unsigned r = 0; r < nrows; ++r) {
      T mine = rows_[r][0];
      GPUFS_UNROLL
      for (unsigned k = 1; k < n; ++k) mine = op(mine, rows_[r][k]);
      const scanned<T> of_row = detail::scan(lanes_of(group), mine, op);
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
  // What is to become of the caller's rows: put.wide(first, row, below) for each, if put.is_wide(of the first) and all their n
  // elements are there, or put.some(first, valid, row, below). These are the elements from number `first` on, and for each of them
  // all to its left, where `before` is all that is to the left of the tile. (Two ways through all rows: with a branch in each, nvcc
  // makes of some rows' accesses narrow ones.)
  template <class Put>
  GPUFS_DEVICE void finish(const T& before, const Op& op, const Put& put) const {
    const T left = by_block ? op(before, left_) : before;
    if (there_ == span() && put.is_wide(first_)) {
      GPUFS_UNROLL
      for (unsigned r = 0; r < nrows; ++r) {
        T below[n];
        in_row(r, left, op, below);
        put.wide(first_of(r), rows_[r], below);
      }
    } else {
      GPUFS_UNROLL
      for (unsigned r = 0; r < nrows; ++r) {
        T below[n];
        in_row(r, left, op, below);
        put.some(first_of(r), valid_of(r), rows_[r], below);
      }
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
  GPUFS_DEVICE void in_row(unsigned row, const T& left, const Op& op, T (&below)[n]) const {
    below[0] = op(left, below_[row]);
    GPUFS_UNROLL
    for (unsigned k = 1; k < n; ++k) below[k] = op(below[k - 1], rows_[row][k - 1]);
  }
  GPUFS_DEVICE std::uint64_t first_of(unsigned row) const { return first_ + row * stride(); }
  GPUFS_DEVICE static unsigned stride() { return lanes_of(Group{}).size() * n; }  // from a row to the next
  // From the caller's first element up to behind its last one.
  GPUFS_DEVICE static unsigned span() { return (nrows - 1) * stride() + n; }
  GPUFS_DEVICE unsigned valid_of(unsigned row) const {
    const unsigned before = row * stride();
    return there_ <= before ? 0 : there_ - before < n ? there_ - before : n;
  }

  std::uint64_t first_;
  unsigned there_;  // how many elements there are from the caller's first one on, span() at most
  typename Items::row rows_[nrows];
  T below_[nrows];  // of the lanes' elements: all that is left of the caller's in that row
  T left_, all_;    // of a block: all that is left of the caller's warp
};

// What becomes of a tile's elements: nothing.
struct put_nothing {
  GPUFS_DEVICE static bool is_wide(std::uint64_t) { return true; }
  template <class... Arguments>
  GPUFS_DEVICE void wide(const Arguments&...) const {}
  template <class... Arguments>
  GPUFS_DEVICE void some(const Arguments&...) const {}
};
// Each by itself: Put's put(i, row, k, below) of element i, which is the k-th of a row, if it is there. T: the elements' type.
template <class T, class Put>
struct put_each : Put {
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T));

  GPUFS_DEVICE static bool is_wide(std::uint64_t) { return true; }
  template <class Row, class Below>
  GPUFS_DEVICE void wide(std::uint64_t first, const Row& row, const Below (&below)[n]) const {
    some(first, n, row, below);
  }
  template <class Row, class Below>
  GPUFS_DEVICE void some(std::uint64_t first, unsigned valid, const Row& row, const Below (&below)[n]) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid) this->put(first + k, row, k, below[k]);
    }
  }
};
// An inclusive or an exclusive scan in memory, of results T, of which a thread has N side by side.
template <bool Inclusive, class T, memory In, class Result, unsigned N = scan_space::items_a_row(sizeof(T))>
struct put_in_memory : Result {
  static constexpr unsigned n = N;
  array_items<T, In, n> out;

  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return out.is_wide(first); }
  template <class Row, class Below>
  GPUFS_DEVICE void wide(std::uint64_t first, const Row& row, const Below (&below)[n]) const {
    T results[n];
    results_of(row, below, results);
    out.store_wide(first, results);
  }
  template <class Row, class Below>
  GPUFS_DEVICE void some(std::uint64_t first, unsigned valid, const Row& row, const Below (&below)[n]) const {
    T results[n];
    results_of(row, below, results);
    out.store_some(first, valid, results);
  }

 private:
  template <class Row, class Below>
  GPUFS_DEVICE void results_of(const Row& row, const Below (&below)[n], T (&results)[n]) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) results[k] = this->template result<Inclusive>(row[k], below[k]);
  }
};
template <scan_operator Op>
struct scan_result_of {
  using T = typename Op::value;
  const Op& op;  // the caller's
  template <bool Inclusive>
  GPUFS_DEVICE T result(const T& item, const T& below) const {
    return Inclusive ? op(below, item) : below;
  }
};
template <segmentable Op>
struct segmented_result_of {
  using T = typename Op::value;
  const Op& op;
  template <bool Inclusive>
  GPUFS_DEVICE T result(const with_head<T>& item, const with_head<T>& below) const {
    const T left = item.is_head ? op.identity() : below.of;
    return Inclusive ? op(left, item.of) : left;
  }
};
template <bool Inclusive, scan_operator Op, memory In = memory::any>
using put_scan = put_in_memory<Inclusive, typename Op::value, In, scan_result_of<Op>>;
template <bool Inclusive, segmentable Op, memory In = memory::any>
using put_segmented_scan = put_in_memory<Inclusive, typename Op::value, In, segmented_result_of<Op>>;

// Scans the elements from `begin` to `end` by a group, a tile after the other; returns all of them, combined.
template <class Group, class Items, scan_operator Op, class Put>
GPUFS_DEVICE typename Op::value scan_by_group(Group group, const Items& from, std::uint64_t begin, std::uint64_t end, const Op& op,
                                              const Put& put) {
  using tile = scan_tile<Group, Items, Op>;
  auto before = op.identity();
  for (; begin < end; begin += tile::size(group)) {
    tile here(group, from, begin, end, op);
    here.scan(group, op);
    here.finish(before, op, put);
    before = op(before, here.all());
  }
  return before;
}
template <class Group, class Items, scan_operator Op, class Put>
GPUFS_DEVICE typename Op::value scan_by_group(Group group, const Items& from, std::uint64_t n, const Op& op, const Put& put) {
  return scan_by_group(group, from, 0, n, op, put);
}

// All elements from `begin` to `end`, combined. Of a block each warp has a part of them, so that none waits for another at each
// tile.
template <class Group, class Items, scan_operator Op>
GPUFS_DEVICE typename Op::value reduce_by_group(Group group, const Items& from, std::uint64_t begin, std::uint64_t end,
                                                const Op& op) {
  if constexpr (std::is_same_v<Group, simt::block>) {
    const auto warp = group.warp();
    const std::uint64_t size = scan_tile<simt::warp, Items, Op>::size(warp), nwarps = group.nwarps();
    const std::uint64_t part = ((end - begin + size - 1) / size + nwarps - 1) / nwarps * size;
    const std::uint64_t first = begin + part * simt::warp_rank();
    const std::uint64_t last = first >= end ? first : end - first < part ? end : first + part;
    return scan_warps(group, scan_by_group(warp, from, first, last, op, put_nothing{}), op, false).all;
  } else {
    return scan_by_group(group, from, begin, end, op, put_nothing{});
  }
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
