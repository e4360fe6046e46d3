// SPDX-License-Identifier: Apache-2.0
// Products of a sparse matrix and a vector, y = A x, in kernels: by rows or by a segmented scan, from memory or through pointers
// into files. (Sengupta, Harris, Zhang, Owens, "Scan primitives for GPU computing", Graphics Hardware 2007.) docs/design/spmv.md
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpufs/par/detail/csr_products.hpp"
#include "gpufs/par/scan.hpp"
#include "gpufs/simt/group_call.hpp"
#include "gpufs/simt/memory.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// A by compressed rows (CSR): row r has the elements with numbers offsets[r] to offsets[r + 1] - 1, and element i is values[i] in
// column columns[i]. So there are nrows + 1 offsets, of which the first is 0; and nelements columns and values. All three are
// addresses (const T*), or pointers into files (ptr<const T>), of which each thread has its own.
template <class Offsets, class Columns, class Values>
struct csr_matrix {
  Offsets offsets;  // of 64 bits
  Columns columns;  // of 32 bits
  Values values;
  std::uint64_t nrows, ncolumns, nelements;
};
template <class Offsets, class Columns, class Values>
csr_matrix(Offsets, Columns, Values, std::uint64_t, std::uint64_t, std::uint64_t) -> csr_matrix<Offsets, Columns, Values>;

// A matrix in memory.
template <class T>
using csr_in_memory = csr_matrix<const std::uint64_t*, const std::uint32_t*, const T*>;

// y[r] = the sum of row r's products with x, for rows from `begin` to `end`: a warp of the block a row, or the group row after row;
// its lanes have elements side by side. For rows of about as many elements each. All threads of the group call with equal
// arguments; those of other groups may have other rows. x: ncolumns elements, as the matrix's parts, or a shared_part; y: in
// memory. The sum of no elements is 0; real numbers are added in an order that depends on the group's size alone. Who reads y of
// other threads syncs the group. 0 for all; -EINVAL: a row ends before it begins, or behind the last element, or `end` is behind
// the last row; -EDOM: an element is in no column. Such rows, and elements, count as none. Of files what cannot be read is 0, as
// pointers say.
template <simt::group Group, class Matrix, class X, class T>
GPUFS_DEVICE int spmv(Group group, const Matrix& a, const X& x, T* y, std::uint64_t begin, std::uint64_t end) {
  const simt::group_call call(group, "par::spmv(y, begin, end)", simt::memory_of_all{y, end}, begin, end);
  if (end > a.nrows) return -EINVAL;
  const auto lanes = [&] {
    if constexpr (std::is_same_v<Group, simt::block>) {
      return group.warp();
    } else {
      return group;
    }
  }();
  std::uint64_t row = begin, step = 1;
  if constexpr (std::is_same_v<Group, simt::block>) {
    row += simt::warp_rank();
    step = group.nwarps();
  }
  bool has_rows = true, has_columns = true;
  for (; row < end; row += step) {
    const std::uint64_t first = a.offsets[row];
    std::uint64_t last = a.offsets[row + 1];
    if (first > last || last > a.nelements) {
      has_rows = false;
      last = first;
    }
    T sum{};
    for (std::uint64_t i = first + lanes.rank(); i < last; i += lanes.size()) {
      const std::uint32_t column = a.columns[i];
      const bool is_there = column < a.ncolumns;
      has_columns = has_columns && is_there;
      if (is_there) sum = sum + a.values[i] * x[column];
    }
    sum = reduce(lanes, sum, plus<T>{});
    if (lanes.leader()) y[row] = sum;
  }
  if (group.any(!has_rows)) return -EINVAL;
  return group.any(!has_columns) ? -EDOM : 0;
}

// x, of which a block has the elements from `first` on in its shared memory, as many as fit into 16 KiB: of matrices whose elements
// are near the diagonal, those that the block's rows want. X: as spmv has it.
template <class T, class X>
class shared_part {
 public:
  static constexpr std::uint64_t most = (16 << 10) / sizeof(T);

  // All threads of the block make it, with equal arguments, and meet in it; a block has one of T at a time.
  GPUFS_DEVICE shared_part(simt::block block, const X& x, std::uint64_t nx, std::uint64_t first)
      : x_(x),
        part_(simt::shared<part>().of),
        first_(first),
        n_(first >= nx         ? 0
           : nx - first < most ? nx - first
                               : most) {
    block.sync();  // who used the last one is done
    for (std::uint64_t i = block.rank(); i < n_; i += block.size()) part_[i] = x[first + i];
    block.sync();
  }
  GPUFS_DEVICE T operator[](std::uint64_t i) const { return i - first_ < n_ ? part_[i - first_] : static_cast<T>(x_[i]); }
  // Of the rest, as pointers do.
  GPUFS_DEVICE void unlink() const requires(detail::holds_pages<X>) { x_.unlink(); }

 private:
  struct part {
    T of[most];
  };
  const X& x_;  // the caller's
  T* part_;
  std::uint64_t first_, n_;
};

namespace detail {

// Whether rows from `begin` to `end`, of which a thread looks at each step-th, ascend, and have none but the matrix's elements.
template <class Matrix>
GPUFS_DEVICE bool are_rows(const Matrix& a, std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
  for (std::uint64_t row = begin; row < end; row += step) {
    const std::uint64_t first = a.offsets[row], last = a.offsets[row + 1];
    if (first > last || last > a.nelements) return false;
  }
  return true;
}
template <class Matrix, class T>
GPUFS_DEVICE void clear_empty_rows(const Matrix& a, T* y, std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
  for (std::uint64_t row = begin; row < end; row += step) {
    const std::uint64_t first = a.offsets[row], last = a.offsets[row + 1];
    if (first == last) y[row] = T{};
  }
}

// All that is in memory, of which no thread waits for a page.
template <class Matrix, class X>
inline constexpr bool is_in_memory = false;
template <class T, class X>
inline constexpr bool is_in_memory<csr_in_memory<T>, X> = !holds_pages<X>;

// The products as elements of a scan, a row of them a thread at a time where pages may be waited for: their look-ups take
// registers.
template <memory In, class T, class Matrix, class Heads, class X>
GPUFS_DEVICE auto products_of(const Matrix& a, const Heads& rows, const X& x, bool& has_columns) {
  constexpr unsigned n = scan_space::items_a_row(sizeof(T));
  const auto values = side_by_side<In, n>(a.values);
  const auto columns = side_by_side<In, n>(a.columns);
  constexpr unsigned nrows = is_in_memory<Matrix, X> ? scan_space::rows_by_segments(sizeof(T)) : 1;
  using Products = csr_products<T, nrows, decltype(values), decltype(columns), Heads, X>;
  return Products{values, columns, rows, x, a.ncolumns, has_columns};
}
template <class Matrix, class X>
GPUFS_DEVICE void let_go_of_all(const Matrix& a, const X& x) {
  let_go(a.offsets);
  let_go(a.columns);
  let_go(a.values);
  let_go(x);
}

// For what the CPU machine compares: other parts are each thread's own.
template <class T>
GPUFS_DEVICE const void* in_memory(const T* p) {
  return p;
}
template <class P>
GPUFS_DEVICE const void* in_memory(const P&) {
  return nullptr;
}

// What the threads of a grid agree on.
struct words_to_multiply {
  std::uint64_t nelements;  // that rows have
  std::uint32_t wrong;
};
static_assert(sizeof(words_to_multiply) == 16);

}  // namespace detail

// The same by a segmented scan of the products: threads have as many elements each, however long rows are. Real numbers are added
// in an order that depends on the group's size and on which row is the first. 0; -EINVAL: a row ends before it begins, or behind
// the last element, or `end` is behind the last row, and y is as before; -EDOM: an element is in no column, and counts as none.
template <simt::group Group, class Matrix, class X, class T>
GPUFS_DEVICE int spmv_by_scan(Group group, const Matrix& a, const X& x, T* y, std::uint64_t begin, std::uint64_t end) {
  const simt::group_call call(group, "par::spmv_by_scan(y, begin, end)", simt::memory_of_all{y, end}, begin, end);
  if (end > a.nrows) return -EINVAL;
  if (begin >= end) return 0;
  if (group.any(!detail::are_rows(a, begin + group.rank(), end, group.size()))) return -EINVAL;
  const auto edge = [&](std::uint64_t row) {  // one thread looks, so that all have the same, whatever a file does
    return group.broadcast(group.leader() ? static_cast<std::uint64_t>(a.offsets[row]) : 0);
  };
  const std::uint64_t first = edge(begin), last = edge(end);
  if (first > last || last > a.nelements) return -EINVAL;  // it was looked at before, and may be another one now
  detail::clear_empty_rows(a, y, begin + group.rank(), end, group.size());
  detail::let_go(a.offsets);  // a copy of it looks from here on
  if (first == last) return 0;

  bool has_columns = true;
  const auto offsets = a.offsets + static_cast<std::ptrdiff_t>(begin);  // nobody has looked at those of other rows
  const auto rows = detail::heads_of(offsets, end - begin + 1);
  const auto products = detail::products_of<detail::memory::any, T>(a, rows, x, has_columns);
  const detail::put_row_sums<T, decltype(rows)> sums{rows, y + begin, first};
  const auto all = detail::scan_by_group(group, products, first, last, segmented<plus<T>>{}, sums);
  if (group.leader()) sums.put(last, all.of);
  return group.any(!has_columns) ? -EDOM : 0;
}

// Of all rows, by all threads of all blocks of a cooperative launch, which call with equal arguments (pointers into files: with
// their own, of the same elements) and get equal results; global memory, of which y overlaps nothing else. What any of them has
// written before is seen, and all see y. space: at least nbytes_to_multiply<T> bytes, nelements being the last offset. Of a matrix
// and x in memory real numbers are added in an order that differs from run to run; else in one that depends on the launch: each
// block has a share of the elements side by side, and none waits for another's pages but where all meet. 0; -EINVAL: the space is
// too small, or offsets are no rows of a.nelements at most, and y is as before; -EDOM: an element is in no column, and counts as
// none; -ETIMEDOUT: as scan.hpp has it, of a matrix in memory, and y is of no use. Of files what cannot be read is 0, as pointers
// say.
template <class T>
GPUFS_HOST_DEVICE constexpr std::uint64_t nbytes_to_multiply(std::uint64_t nelements, unsigned nblocks, unsigned nthreads) {
  return sizeof(detail::words_to_multiply) + scan_space::nbytes_for<T>(nelements, nblocks, nthreads);
}
template <class Matrix, class X, class T>
GPUFS_DEVICE int spmv_by_scan(simt::grid grid, const Matrix& a, const X& x, T* y, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::spmv_by_scan(offsets, nrows, x, ncolumns, y, space, nbytes)",
                              simt::memory_of_all{detail::in_memory(a.offsets), a.nrows + 1}, a.nrows,
                              simt::memory_of_all{detail::in_memory(x), a.ncolumns}, a.ncolumns, simt::memory_of_all{y, a.nrows},
                              simt::memory_of_all{space.data}, space.nbytes);
  const auto is_enough = [&](std::uint64_t n) {
    return space.may_be_enough_for(n) && space.nbytes >= nbytes_to_multiply<T>(n, simt::grid_size(), simt::block_size());
  };
  if (!is_enough(0)) return -EINVAL;
  grid.sync();  // all have written the matrix, and those who used the space before are done
  detail::pieces_of_space pieces(space);
  auto* const words = pieces.take<detail::words_to_multiply>(1);
  if (grid.leader()) *words = {a.offsets[a.nrows], 0};
  detail::let_go(a.offsets);
  const simt::atomic_ref<std::uint32_t> wrong(words->wrong);
  grid.sync();
  const std::uint64_t n = words->nelements;
  if (n > a.nelements || !is_enough(n)) return -EINVAL;
  if (!detail::are_rows(a, grid.rank(), a.nrows, grid.size()) || (grid.leader() && a.offsets[0] != 0))
    wrong.store(1, std::memory_order_relaxed);
  detail::let_go_of_all(a, x);
  grid.sync();
  if (wrong.load_relaxed() != 0) return -EINVAL;
  detail::clear_empty_rows(a, y, grid.rank(), a.nrows, grid.size());

  bool has_columns = true;
  const auto rows = detail::heads_of(a.offsets, a.nrows + 1);
  const auto products = detail::products_of<detail::memory::global, T>(a, rows, x, has_columns);
  const detail::put_row_sums<T, decltype(rows)> sums{rows, y, 0};
  const segmented<plus<T>> op{};
  const scan_space for_scan{pieces.take<std::byte>(0), space.nbytes - sizeof *words};
  auto all = op.identity();
  if constexpr (detail::is_in_memory<Matrix, X>) {
    const int error = detail::scan_by_look_back(grid, products, n, op, for_scan, sums, all);
    if (error != 0) return error;
  } else {
    // No look-back: who waits for a tile there waits for its pages, too, and gives up after 10 s. Each block scans its share as if
    // nothing were to the left of it, then puts its first sum right.
    const simt::block block = grid.this_block();
    const detail::scan_by_shares<segmented<plus<T>>> shares(for_scan);
    const auto mine = shares.template share<decltype(products)>(block, n);
    const auto of_mine = detail::scan_by_group(block, products, mine.begin, mine.end, op, sums);
    detail::let_go_of_all(a, x);
    shares.say(grid, of_mine);
    const auto left = shares.of_first(block, simt::block_rank(), op);
    if (block.leader()) sums.mend(mine.begin, mine.end, left.of);
    all = shares.of_first(block, simt::grid_size(), op);
  }
  if (grid.leader() && n != 0) sums.put(n, all.of);
  if (!has_columns) wrong.store(1, std::memory_order_relaxed);
  detail::let_go_of_all(a, x);
  grid.sync();
  return wrong.load_relaxed() == 0 ? 0 : -EDOM;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
