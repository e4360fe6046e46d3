// SPDX-License-Identifier: Apache-2.0
// Sparse matrices for tests: drawn ones, and what a loop makes of them.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "gpufs/simt/simt.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

template <class T>
struct host_matrix {
  std::vector<std::uint64_t> offsets{0};
  std::vector<std::uint32_t> columns;
  std::vector<T> values, x;

  std::uint64_t nrows() const { return offsets.size() - 1; }
  void add(std::uint32_t column, T value) {
    columns.push_back(column);
    values.push_back(value);
  }
  void end_row() { offsets.push_back(columns.size()); }
  std::vector<T> times_x() const {
    std::vector<T> y(nrows());
    for (std::uint64_t row = 0; row < nrows(); ++row) {
      for (std::uint64_t i = offsets[row]; i < offsets[row + 1]; ++i) y[row] += values[i] * x[columns[i]];
    }
    return y;
  }
};

// Small whole numbers, whose sums have no roundings; rows of no elements, some, or very many.
template <class T>
host_matrix<T> drawn_matrix(std::mt19937_64& draw, std::uint64_t nrows, std::uint64_t ncolumns) {
  host_matrix<T> a;
  for (std::uint64_t i = 0; i < ncolumns; ++i) a.x.push_back(static_cast<T>(draw() % 32));
  const unsigned percent_empty = draw() % 3 == 0 ? 95 : 20;
  for (std::uint64_t row = 0; row < nrows; ++row) {
    const std::uint64_t most = draw() % 50 == 0 ? 900 : 12;
    const std::uint64_t n = draw() % 100 < percent_empty || ncolumns == 0 ? 0 : draw() % most;
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t column = draw() % 2 == 0 ? row + i : draw();
      a.add(static_cast<std::uint32_t>(column % ncolumns), static_cast<T>(draw() % 32));
    }
    a.end_row();
  }
  return a;
}

// The matrix, which has a row without elements.
template <class T>
host_matrix<T> small_matrix() {
  host_matrix<T> a{.columns = {0, 2, 1, 2, 3, 0, 3}, .values = {3, 1, 2, 4, 1, 1, 1}, .x = {1, 2, 3, 4}};
  a.offsets = {0, 2, 2, 5, 7};
  return a;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
