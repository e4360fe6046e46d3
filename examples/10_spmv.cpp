// SPDX-License-Identifier: Apache-2.0
// y = A x, where the sparse matrix A (compressed rows) and x are files larger than the cache. The kernel is the textbook's, a warp
// a row; only where its pointers come from shows that these are files.
#include "example.hpp"

struct multiply {
  gpufs::mount_ref fs;
  std::uint32_t nrows;
  float* y;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const gpufs::file files[] = {gpufs::open(warp, fs, "rows"), gpufs::open(warp, fs, "columns"), gpufs::open(warp, fs, "values"),
                                 gpufs::open(warp, fs, "x")};
    const int result =
        multiply_rows(gpufs::map<const std::uint64_t>(warp, files[0]), gpufs::map<const std::uint32_t>(warp, files[1]),
                      gpufs::map<const float>(warp, files[2]), gpufs::map<const float>(warp, files[3]));
    if (result != 0) *error = result;
    for (const gpufs::file& f : files) gpufs::close(warp, f);
  }

  // Row r has elements rows[r] .. rows[r + 1] - 1.
  GPUFS_DEVICE int multiply_rows(const gpufs::ptr<const std::uint64_t>& rows, const gpufs::ptr<const std::uint32_t>& columns,
                                 const gpufs::ptr<const float>& values, const gpufs::ptr<const float>& x) const {
    if (!rows || !columns || !values || !x) return -ENOENT;
    const auto warp = gpufs::this_warp();
    for (std::uint64_t row = gpufs::simt::global_warp_rank(); row < nrows; row += gpufs::simt::global_warp_count()) {
      float sum = 0;
      const std::uint64_t end = rows[row + 1];
      for (std::uint64_t i = rows[row] + warp.rank(); i < end; i += warp.size()) sum += values[i] * x[columns[i]];
      sum = warp.reduce_add(sum);
      if (warp.leader()) y[row] = sum;
    }
    return 0;
  }
};

template <class T>
void write(const example::folder& folder, const char* name, const std::vector<T>& elements) {
  folder.write(name, std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T)));
}

int main() {
  // Near the diagonal, and some elements anywhere; values that floats add up exactly in any order.
  constexpr std::uint32_t nrows = 6000;
  std::vector<std::uint64_t> rows{0};
  std::vector<std::uint32_t> columns;
  std::vector<float> values, x, expected;
  std::uint32_t random = 1;
  const auto draw = [&random](std::uint32_t below) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % below;
  };
  for (std::uint32_t i = 0; i < nrows; ++i) x.push_back(static_cast<float>(draw(64)));
  for (std::uint32_t row = 0; row < nrows; ++row) {
    float sum = 0;
    const std::uint32_t n = row % 7 == 0 ? 0 : draw(40);  // some rows are empty, some are longer than a warp
    for (std::uint32_t i = 0; i < n; ++i) {
      columns.push_back(i % 16 == 5 ? draw(nrows) : (row + i) % nrows);
      values.push_back(static_cast<float>(draw(16)));
      sum += values.back() * x[columns.back()];
    }
    rows.push_back(columns.size());
    expected.push_back(sum);
  }
  const example::folder folder;
  write(folder, "rows", rows);
  write(folder, "columns", columns);
  write(folder, "values", values);
  write(folder, "x", x);

  // A thread has four pointers, and may hold a page by each.
  constexpr unsigned grid = 2, block = 64;
  gpufs::mount fs(folder.path(), {.cache_nbytes = 4 * grid * block * 512, .page_nbytes = 512});
  for (const char* name : {"rows", "columns", "values", "x"}) fs.prepare(name);
  const example::device_array<float> y(nrows);
  const example::device_array<int> error(1);
  gpufs::simt::launch({.grid = grid, .block = block}, multiply{fs.ref(), nrows, y.get(), error.get()});

  const gpufs::mount_counters counters = fs.counters();
  std::printf("%zu elements in %zu KiB of files, a cache of %llu KiB, %llu evictions\n", columns.size(),
              (rows.size() * 8 + columns.size() * 8 + x.size() * 4) >> 10,
              static_cast<unsigned long long>(fs.options().cache_nbytes >> 10),
              static_cast<unsigned long long>(counters.evictions));
  example::check(error.read_one() == 0 && counters.fault_errors == 0, "every file was mapped, and no access failed");
  example::check(y.read() == expected, "y = A x, as on the host");
}
