// SPDX-License-Identifier: Apache-2.0
// The products of a sparse matrix's elements as elements of a segmented scan, and rows' sums as what becomes of it. The matrix's
// parts, and the vector, are arrays in memory, or pointers into files, of which each thread has its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpufs/par/detail/items.hpp"
#include "gpufs/par/heads.hpp"
#include "gpufs/par/operators.hpp"
#include "gpufs/par/scan_space.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Whether elements are had through a pointer that may have to wait for a page, and holds it afterwards.
template <class P>
inline constexpr bool holds_pages = requires(const P& p) {
  p.unlink();
};
// Gives up what a thread's pointer holds, as others may wait for frames while it waits for them.
template <class P>
GPUFS_DEVICE void let_go(const P& p) {
  if constexpr (holds_pages<P>) p.unlink();
}

// Elements through a pointer: N side by side by one look at its page, or each by itself where not all of N are wanted, or there.
template <class P, unsigned N>
struct elements_of_file {
  const P& all;
  std::ptrdiff_t nthere;

  GPUFS_DEVICE static void prefetch(std::uint64_t, std::uint64_t) {}
  GPUFS_DEVICE static bool is_wide(std::uint64_t) { return true; }
  template <class T>
  GPUFS_DEVICE void load(std::uint64_t first, unsigned valid, T (&items)[N]) const {
    struct side_by_side {
      T of[N];
    };
    const auto begin = static_cast<std::ptrdiff_t>(first);
    if (valid == N && begin + std::ptrdiff_t{N} <= nthere) {
      const auto got = all.template load<side_by_side>(begin);
      GPUFS_UNROLL
      for (unsigned k = 0; k < N; ++k) items[k] = got.of[k];
    } else if (valid != 0) {
      std::ptrdiff_t at[N];
      GPUFS_UNROLL
      for (unsigned k = 0; k < N; ++k) at[k] = begin + (k < valid ? k : 0);
      const auto got = all.gather(at);
      GPUFS_UNROLL
      for (unsigned k = 0; k < N; ++k) items[k] = got[k];
    }
  }
};
template <memory In, unsigned N, class T>
GPUFS_DEVICE array_items<const T, In, N> side_by_side(const T* all) {
  return {all};
}
template <memory, unsigned N, class P>
GPUFS_DEVICE elements_of_file<P, N> side_by_side(const P& all) {
  return {all, all.left()};
}

// to[k] = x[at[k]] for each k whose bit is set in `wanted`. Pointers are not linked: columns seldom come back to a page.
template <class X, class T, unsigned N>
GPUFS_DEVICE void load_some(const X& x, const std::uint32_t (&at)[N], std::uint32_t wanted, T (&to)[N]) {
  std::ptrdiff_t columns[N];
  if constexpr (requires { x.gather(columns); }) {
    if (wanted == 0) return;
    std::ptrdiff_t any = 0;
    GPUFS_UNROLL
    for (unsigned k = 0; k < N; ++k) {
      if ((wanted >> k & 1) != 0) any = at[k];
    }
    GPUFS_UNROLL
    for (unsigned k = 0; k < N; ++k) columns[k] = (wanted >> k & 1) != 0 ? at[k] : any;
    const auto got = x.gather(columns);
    GPUFS_UNROLL
    for (unsigned k = 0; k < N; ++k) to[k] = got[k];
  } else {
    GPUFS_UNROLL
    for (unsigned k = 0; k < N; ++k) {
      if ((wanted >> k & 1) != 0) to[k] = x[at[k]];
    }
  }
}

// Offsets of rows through a pointer, as heads_by_offsets has them in memory. A thread looks at first where it has found the last
// one, and twice as far away each time: its elements ascend, so that is mostly in the page that it holds.
template <class P>
struct heads_in_file {
  const P& offsets;
  std::uint64_t noffsets;
  mutable std::uint64_t near = 0;

  GPUFS_DEVICE std::uint64_t first_from(std::uint64_t i) const {
    // All before `begin` are less than i, those from `end` on are not.
    std::uint64_t begin = near, end = near;
    for (std::uint64_t step = 1; begin != 0 && offset(begin - 1) >= i; step *= 2) {
      end = begin - 1;
      begin = end < step ? 0 : end - step;
    }
    if (end == near) {
      for (std::uint64_t step = 1; end < noffsets && offset(end) < i; step *= 2) {
        begin = end + 1;
        end = noffsets - begin < step ? noffsets : begin + step;
      }
    }
    return near = detail::first_from(offsets, begin, end, i);
  }

 private:
  GPUFS_DEVICE std::uint64_t offset(std::uint64_t k) const { return offsets[k]; }
};
GPUFS_DEVICE heads_by_offsets heads_of(const std::uint64_t* offsets, std::uint64_t noffsets) { return {offsets, noffsets}; }
template <class P>
GPUFS_DEVICE heads_in_file<P> heads_of(const P& offsets, std::uint64_t noffsets) {
  return {offsets, noffsets};
}

// values[i] * x[columns[i]], and whether a row begins with element i. Rows: how many rows of elements a thread has of a tile.
template <class T, unsigned Rows, class Values, class Columns, class Heads, class X>
struct csr_products {
  using element = T;
  using value = with_head<T>;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T)), nrows = Rows;
  Values values;
  Columns columns;
  const Heads& rows;
  const X& x;
  std::uint64_t ncolumns;
  bool& has_columns;  // the thread's: becomes false where there is no such column

  struct row {
    T products[n];
    std::uint32_t heads;  // bit k of element k
    GPUFS_DEVICE value operator[](unsigned k) const { return {products[k], (heads >> k & 1) != 0}; }
  };

  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const {
    values.prefetch(begin, end);
    columns.prefetch(begin, end);
  }
  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return values.is_wide(first) && columns.is_wide(first); }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const { load(first, n, T{}, to); }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, const value& nothing, row& to) const {
    load(first, valid, nothing.of, to);
  }

 private:
  GPUFS_DEVICE void load(std::uint64_t first, unsigned valid, const T& nothing, row& to) const {
    std::uint32_t at[n], there = 0;
    T of_x[n];
    values.load(first, valid, to.products);
    columns.load(first, valid, at);
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k >= valid) continue;
      if (at[k] < ncolumns) {
        there |= 1u << k;
      } else {
        has_columns = false;
      }
    }
    load_some(x, at, there, of_x);
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k >= valid) {
        to.products[k] = nothing;
      } else {
        to.products[k] = (there >> k & 1) != 0 ? to.products[k] * of_x[k] : T{};
      }
    }
    to.heads = valid == 0 ? 0 : heads_from(first, valid);
  }
  // Of elements side by side. One look-up, and one more for each run of rows without elements. What changes meanwhile, as a file
  // may, ends the look.
  GPUFS_DEVICE std::uint32_t heads_from(std::uint64_t first, unsigned valid) const {
    std::uint32_t bits = 0;
    std::uint64_t next = first;
    for (std::uint64_t k = rows.first_from(first); k < rows.noffsets;) {
      const std::uint64_t begin = rows.offsets[k++];
      if (begin < next || begin - first >= valid) break;
      bits |= 1u << (begin - first);
      next = begin + 1;
      if (k < rows.noffsets && rows.offsets[k] == begin) k = rows.first_from(next);
    }
    return bits;
  }
};

// Where a row begins, what is before it is the sum of the row before that has elements.
template <class T, class Heads>
struct put_row_sums {
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T));
  const Heads& rows;
  T* y;
  std::uint64_t begin;  // the first element: no row of these ends there

  GPUFS_DEVICE static bool is_wide(std::uint64_t) { return true; }
  template <class Row>
  GPUFS_DEVICE void some(std::uint64_t first, unsigned, const Row& row, const with_head<T> (&below)[n]) const {
    wide(first, row, below);  // rows that are not there have no heads
  }
  template <class Row>
  GPUFS_DEVICE void wide(std::uint64_t first, const Row& row, const with_head<T> (&below)[n]) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if ((row.heads >> k & 1) != 0 && first + k != begin) put(first + k, below[k].of);
    }
  }
  // The sum of the row whose last element is before number `end`.
  GPUFS_DEVICE void put(std::uint64_t end, const T& sum) const {
    if (T* const to = of_row_before(rows.first_from(end)); to != nullptr) *to = sum;
  }
  // What is left of a share belongs to the row that ends at its first head, if there is one. By one thread.
  GPUFS_DEVICE void mend(std::uint64_t first, std::uint64_t last, const T& left) const {
    const std::uint64_t next = rows.first_from(first);
    if (next == rows.noffsets) return;
    const std::uint64_t head = rows.offsets[next];
    if (head >= last || head == begin) return;
    if (T* const to = of_row_before(next); to != nullptr) *to = plus<T>{}(left, *to);
  }

 private:
  // Of the row before row `next`: null where there is none, as where a file's offsets have changed since they were looked at.
  GPUFS_DEVICE T* of_row_before(std::uint64_t next) const { return next - 1 < rows.noffsets - 1 ? y + (next - 1) : nullptr; }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
