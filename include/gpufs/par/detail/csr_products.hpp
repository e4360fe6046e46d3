// SPDX-License-Identifier: Apache-2.0
// The products of a sparse matrix's elements as elements of a segmented scan, and rows' sums as what becomes of it.
#pragma once
#include <cstdint>

#include "gpufs/par/detail/items.hpp"
#include "gpufs/par/heads.hpp"
#include "gpufs/par/operators.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/atomic.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// values[i] * x[columns[i]], and whether a row begins with element i.
template <class T, memory In>
struct csr_products {
  using element = T;
  using value = with_head<T>;
  using segments = segmented_items<T, heads_by_offsets, In>;
  static constexpr unsigned n = segments::n, nrows = segments::nrows;
  array_items<const T, In, n> values;
  array_items<const std::uint32_t, In, n> columns;
  heads_by_offsets rows;
  const T* x;
  std::uint64_t ncolumns;
  std::uint32_t* wrong;  // becomes 1 where there is no such column

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
    std::uint32_t at[n];
    values.load(first, valid, to.products);
    columns.load(first, valid, at);
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if (k >= valid) {
        to.products[k] = nothing;
      } else if (at[k] < ncolumns) {
        to.products[k] = to.products[k] * x[at[k]];
      } else {
        to.products[k] = T{};
        simt::atomic_ref<std::uint32_t>(*wrong).store(1, std::memory_order_relaxed);
      }
    }
    to.heads = valid == 0 ? 0 : heads_from(first, valid);
  }
  // Of elements side by side. One look-up, and one more for each run of rows without elements.
  GPUFS_DEVICE std::uint32_t heads_from(std::uint64_t first, unsigned valid) const {
    std::uint32_t bits = 0;
    for (std::uint64_t k = rows.first_from(first); k < rows.noffsets && rows.offsets[k] - first < valid;) {
      const std::uint64_t begin = rows.offsets[k++];
      bits |= 1u << (begin - first);
      if (k < rows.noffsets && rows.offsets[k] == begin) k = rows.first_from(begin + 1);
    }
    return bits;
  }
};

// Where a row begins, what is before it is the sum of the row before that has elements.
template <class T>
struct put_row_sums {
  static constexpr unsigned n = scan_space::items_a_row(sizeof(T));
  heads_by_offsets rows;
  T* y;

  GPUFS_DEVICE static bool is_wide(std::uint64_t) { return true; }
  template <class Row>
  GPUFS_DEVICE void some(std::uint64_t first, unsigned, const Row& row, const with_head<T> (&below)[n]) const {
    wide(first, row, below);  // rows that are not there have no heads
  }
  template <class Row>
  GPUFS_DEVICE void wide(std::uint64_t first, const Row& row, const with_head<T> (&below)[n]) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      if ((row.heads >> k & 1) != 0 && first + k != 0) put(first + k, below[k].of);
    }
  }
  // The sum of the row whose last element is before number `end`.
  GPUFS_DEVICE void put(std::uint64_t end, const T& sum) const { y[rows.first_from(end) - 1] = sum; }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
