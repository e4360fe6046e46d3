// SPDX-License-Identifier: Apache-2.0
// Of an array in memory the elements that have a predicate: how many they are, their numbers, and they alone, in their order. In
// kernels. (Hillis and Steele, "Data parallel algorithms", CACM 1986: counting and enumerating.) docs/design/scans.md
#pragma once
#include <cerrno>

#include "gpufs/par/places.hpp"
#include "gpufs/par/scan.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

namespace detail {

// An array's elements as 1 where they have the predicate, and 0.
template <class T, class Predicate, memory In = memory::any>
struct counted_items {
  using element = T;
  using value = std::uint64_t;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T)), nrows = scan_space::rows_beside(sizeof(T));
  array_items<const T, In> all;
  Predicate has;

  struct row {
    typename array_items<const T, In>::row values;
    std::uint32_t counted;  // bit k of element k
    GPUFS_DEVICE value operator[](unsigned k) const { return counted >> k & 1; }
  };

  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const { all.prefetch(begin, end); }
  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return all.is_wide(first); }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const {
    all.load_row(first, to.values);
    ask(n, to);
  }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, value, row& to) const {
    all.load_row(first, valid, T{}, to.values);
    ask(valid, to);
  }

 private:
  GPUFS_DEVICE void ask(unsigned valid, row& of) const {
    of.counted = 0;
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k < valid && has(of.values[k])) of.counted |= 1u << k;
    }
  }
};

// Writes those that are counted.
template <class T>
struct put_counted {
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T));
  T* out;

  // Elements that are not there are not counted.
  GPUFS_DEVICE static bool is_wide(std::uint64_t) { return true; }
  template <class Row>
  GPUFS_DEVICE void some(std::uint64_t, unsigned, const Row& row, const std::uint64_t (&below)[n]) const {
    wide(0, row, below);
  }
  template <class Row>
  GPUFS_DEVICE void wide(std::uint64_t, const Row& row, const std::uint64_t (&below)[n]) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (row[k] != 0) out[below[k]] = row.values[k];
    }
  }
};

// What becomes of an element: its number among those that are counted, if it is one of them.
template <place_number Number>
struct number_of {
  template <bool Inclusive>
  GPUFS_DEVICE Number result(std::uint64_t counts, std::uint64_t below) const {
    return counts != 0 ? static_cast<Number>(below) : no_place<Number>;
  }
};
template <class T, place_number Number, memory In = memory::any>
using put_numbers = put_in_memory<false, Number, In, number_of<Number>, scan_space::items_a_row(sizeof(T))>;

}  // namespace detail

// Of n elements those with predicate(element), which is asked once for each and by any thread; of a group as of a grid. As scan.hpp
// says of calls, memory and results; but out does not overlap in, and has room for those elements.
template <simt::group Group, scannable T, class Predicate>
GPUFS_DEVICE std::uint64_t count(Group group, const T* in, std::uint64_t n, const Predicate& predicate) {
  const simt::group_call call(group, "par::count(in, n)", simt::memory_of_all{in, n}, n);
  const detail::counted_items<T, Predicate> from{{in}, predicate};
  return detail::scan_by_group(group, from, n, plus<std::uint64_t>{}, detail::put_nothing{});
}

// Copies them to out, in their order, and returns how many they are.
template <simt::group Group, scannable T, class Predicate>
GPUFS_DEVICE std::uint64_t compact(Group group, const T* in, T* out, std::uint64_t n, const Predicate& predicate) {
  const simt::group_call call(group, "par::compact(in, out, n)", simt::memory_of_all{in, n}, simt::memory_of_all{out, n}, n);
  const detail::counted_items<T, Predicate> from{{in}, predicate};
  return detail::scan_by_group(group, from, n, plus<std::uint64_t>{}, detail::put_counted<T>{out});
}

// Gives them their numbers: numbers[i] is how many of the elements before number i have the predicate, if it has it too, else
// no_place. So they are numbered 0, 1, 2, ... in their order, and numbers may be places that `send` sends to (send.hpp). Returns
// how many they are; or -EINVAL: Number cannot number n elements, and nothing is done.
template <simt::group Group, scannable T, place_number Number, class Predicate>
GPUFS_DEVICE scan_result<std::uint64_t> enumerate(Group group, const T* in, Number* numbers, std::uint64_t n,
                                                  const Predicate& predicate) {
  const simt::group_call call(group, "par::enumerate(in, numbers, n)", simt::memory_of_all{in, n}, simt::memory_of_all{numbers, n},
                              n);
  if (n > no_place<Number>) return {-EINVAL, 0};
  const detail::counted_items<T, Predicate> from{{in}, predicate};
  return {0, detail::scan_by_group(group, from, n, plus<std::uint64_t>{}, detail::put_numbers<T, Number>{{}, {numbers}})};
}

// The same by a grid.
template <scannable T, class Predicate>
GPUFS_DEVICE scan_result<std::uint64_t> count(simt::grid grid, const T* in, std::uint64_t n, const Predicate& predicate,
                                              const scan_space& space) {
  const detail::counted_items<T, Predicate, detail::memory::global> from{{in}, predicate};
  return detail::reduce_by_grid(grid, "par::count(in, n, space, nbytes)", in, from, n, plus<std::uint64_t>{}, space);
}
template <scannable T, class Predicate>
GPUFS_DEVICE scan_result<std::uint64_t> compact(simt::grid grid, const T* in, T* out, std::uint64_t n, const Predicate& predicate,
                                                const scan_space& space) {
  const detail::counted_items<T, Predicate, detail::memory::global> from{{in}, predicate};
  return detail::scan_by_grid(grid, "par::compact(in, out, n, space, nbytes, order)", in, out, from, n, plus<std::uint64_t>{},
                              space, scan_order::any, detail::put_counted<T>{out});
}
template <scannable T, place_number Number, class Predicate>
GPUFS_DEVICE scan_result<std::uint64_t> enumerate(simt::grid grid, const T* in, Number* numbers, std::uint64_t n,
                                                  const Predicate& predicate, const scan_space& space) {
  if (n > no_place<Number>) return {-EINVAL, 0};
  const detail::counted_items<T, Predicate, detail::memory::global> from{{in}, predicate};
  return detail::scan_by_grid(grid, "par::enumerate(in, numbers, n, space, nbytes, order)", in, numbers, from, n,
                              plus<std::uint64_t>{}, space, scan_order::any,
                              detail::put_numbers<T, Number, detail::memory::global>{{}, {numbers}});
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
