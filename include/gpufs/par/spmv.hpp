// SPDX-License-Identifier: Apache-2.0
// Products of a sparse matrix and a vector, y = A x, in kernels: by rows, from memory or through pointers into files, or by a
// segmented scan. (Sengupta, Harris, Zhang, Owens, "Scan primitives for GPU computing", Graphics Hardware 2007.)
// docs/design/spmv.md
#pragma once
#include <cerrno>
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

 private:
  struct part {
    T of[most];
  };
  const X& x_;  // the caller's
  T* part_;
  std::uint64_t first_, n_;
};

namespace detail {

// All threads of a group, or a grid, call: 0, or -EINVAL, after which y is as before. wrong: a word that is 0.
template <class Threads, class T>
GPUFS_DEVICE int begin_rows(const Threads& threads, const csr_in_memory<T>& a, T* y, std::uint32_t* wrong) {
  bool is_good = a.offsets[0] == 0;
  for (std::uint64_t row = threads.rank(); row < a.nrows; row += threads.size()) {
    is_good = is_good && a.offsets[row] <= a.offsets[row + 1];
  }
  if (!is_good) simt::atomic_ref<std::uint32_t>(*wrong).store(1, std::memory_order_relaxed);
  threads.sync();
  if (simt::atomic_ref<std::uint32_t>(*wrong).load_relaxed() != 0) return -EINVAL;
  for (std::uint64_t row = threads.rank(); row < a.nrows; row += threads.size()) {
    if (a.offsets[row] == a.offsets[row + 1]) y[row] = T{};
  }
  return 0;
}

}  // namespace detail

// The same for all rows, by a segmented scan of the products: threads have as many elements each, however long rows are. By all
// threads of all blocks of a cooperative launch, which call with equal arguments and get equal results; global memory, of which y
// overlaps nothing else. What any of them has written before is seen, and all see y. space: at least nbytes_to_multiply<T> bytes.
// Real numbers are added in an order that differs from run to run. 0; -EINVAL: the space is too small, or offsets are no rows of
// nelements at most, and y is as before; -EDOM: an element is in no column, and counts as none; -ETIMEDOUT: as scan.hpp has it, and
// y is of no use.
template <class T>
GPUFS_HOST_DEVICE constexpr std::uint64_t nbytes_to_multiply(std::uint64_t nelements, unsigned nblocks, unsigned nthreads) {
  return 16 + scan_space::nbytes_for<T>(nelements, nblocks, nthreads);
}
template <class T>
GPUFS_DEVICE int spmv_by_scan(simt::grid grid, const csr_in_memory<T>& a, const T* x, T* y, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::spmv_by_scan(offsets, nrows, x, ncolumns, y, space, nbytes)",
                              simt::memory_of_all{a.offsets, a.nrows + 1}, a.nrows, simt::memory_of_all{x, a.ncolumns}, a.ncolumns,
                              simt::memory_of_all{y, a.nrows}, simt::memory_of_all{space.data}, space.nbytes);
  grid.sync();  // all have written the matrix, and those who used the space before are done
  const std::uint64_t n = a.offsets[a.nrows];
  if (n > a.nelements || !space.may_be_enough_for(n) ||
      space.nbytes < nbytes_to_multiply<T>(n, simt::grid_size(), simt::block_size()))
    return -EINVAL;
  detail::pieces_of_space pieces(space);
  auto* const wrong = pieces.take<std::uint32_t>(1);
  auto* const rest = pieces.take<std::byte>(0);
  if (grid.leader()) *wrong = 0;
  grid.sync();
  if (const int error = detail::begin_rows(grid, a, y, wrong); error != 0) return error;

  const heads_by_offsets rows{a.offsets, a.nrows + 1};
  const detail::csr_products<T, detail::memory::global> products{{a.values}, {a.columns}, rows, x, a.ncolumns, wrong};
  const detail::put_row_sums<T> sums{rows, y};
  const segmented<plus<T>> op{};
  auto all = op.identity();
  const scan_space for_scan{rest, space.nbytes - 16};
  const int error = detail::scan_by_look_back(
      grid, products, n, op, detail::look_back<segmented<plus<T>>>(for_scan, detail::tiles_of<decltype(products)>(n)), sums, all);
  if (error != 0) return error;
  if (grid.leader() && n != 0) sums.put(n, all.of);
  const bool has_columns = simt::atomic_ref<std::uint32_t>(*wrong).load_relaxed() == 0;
  grid.sync();
  return has_columns ? 0 : -EDOM;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
