// SPDX-License-Identifier: Apache-2.0
// Products of sparse matrices and vectors against loops on the host: in memory, from files, by rows and by a scan; matrices that
// are none.
#include "gpufs/par/spmv.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

constexpr unsigned nblocks = 3, nthreads = 64;

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

template <class T>
struct device_matrix {
  explicit device_matrix(const host_matrix<T>& of)
      : offsets(std::span(of.offsets)), columns(std::span(of.columns)), values(std::span(of.values)), x(std::span(of.x)) {}
  csr_in_memory<T> get() const { return {offsets.get(), columns.get(), values.get(), offsets.size() - 1, x.size(), values.size()}; }

  device_array<std::uint64_t> offsets;
  device_array<std::uint32_t> columns;
  device_array<T> values, x;
};

enum class caller : std::uint8_t { thread, tile, warp, block, block_and_shared, scan };
constexpr caller callers[] = {caller::thread, caller::tile, caller::warp, caller::block, caller::block_and_shared, caller::scan};

// Blocks have a part of the rows each, of which the first group of each block does all.
template <class T>
struct multiply {
  caller who;
  csr_in_memory<T> a;
  const T* x;
  T* y;
  scan_space space;
  int* errors;  // of each block

  GPUFS_DEVICE void operator()() const {
    const auto block = simt::this_block();
    if (who == caller::scan) {
      const int error = spmv_by_scan(simt::this_grid(), a, x, y, space);
      if (block.leader()) errors[simt::block_rank()] = error;
    }
    const std::uint64_t share = a.nrows / nblocks + 1, begin = std::uint64_t{simt::block_rank()} * share;
    const std::uint64_t first = begin < a.nrows ? begin : a.nrows, end = first + share < a.nrows ? first + share : a.nrows;
    if (who == caller::block) by(block, x, first, end);
    if (who == caller::block_and_shared) by(block, shared_part<T, const T*>(block, x, a.ncolumns, first), first, end);
    if (who == caller::warp && simt::warp_rank() == 0) by(simt::this_warp(), x, first, end);
    if (who == caller::tile && simt::thread_rank() < 8) by(simt::this_tile<8>(), x, first, end);
    if (who == caller::thread && simt::thread_rank() == 0) by(simt::this_thread(), x, first, end);
  }

 private:
  template <class Group, class X>
  GPUFS_DEVICE void by(Group group, const X& of, std::uint64_t first, std::uint64_t end) const {
    const int error = spmv(group, a, of, y, first, end);
    if (group.leader()) errors[simt::block_rank()] = error;
  }
};

// What each block was told, and y, in which 77 was before.
template <class T>
struct product {
  std::vector<int> errors;
  std::vector<T> y;
};
template <class T>
product<T> product_by(caller who, const host_matrix<T>& of, const simt::cpu_schedule& schedule = {}, std::uint64_t fewer = 0) {
  const device_matrix<T> a(of);
  const device_array<T> y{std::span<const T>(std::vector<T>(of.nrows(), T{77}))};
  const device_array<int> errors(nblocks);
  const std::uint64_t nbytes = nbytes_to_multiply<T>(of.columns.size(), nblocks, nthreads) - fewer;
  const device_array<std::byte> space{std::span<const std::byte>(std::vector<std::byte>(nbytes, std::byte{0xa5}))};
  simt::launch({.grid = nblocks, .block = nthreads, .schedule = schedule, .cooperative = true},
               multiply<T>{who, a.get(), a.x.get(), y.get(), {space.get(), nbytes}, errors.get()});
  return {errors.read(), y.read()};
}
const std::vector<int> no_errors(nblocks);

// The matrix, which has a row without elements.
template <class T>
host_matrix<T> small_matrix() {
  host_matrix<T> a{.columns = {0, 2, 1, 2, 3, 0, 3}, .values = {3, 1, 2, 4, 1, 1, 1}, .x = {1, 2, 3, 4}};
  a.offsets = {0, 2, 2, 5, 7};
  return a;
}

template <class T>
class spmv_of : public ::testing::Test {};
using kinds_of_values = ::testing::Types<float, double, std::int32_t>;
TYPED_TEST_SUITE(spmv_of, kinds_of_values);

TYPED_TEST(spmv_of, a_matrix_with_an_empty_row_is_right) {
  for (const caller who : callers) {
    const auto got = product_by(who, small_matrix<TypeParam>());
    EXPECT_EQ(got.errors, no_errors);
    EXPECT_EQ(got.y, (std::vector<TypeParam>{6, 0, 20, 5})) << static_cast<int>(who);
  }
}

TYPED_TEST(spmv_of, random_matrices_is_what_a_loop_gives) {
  std::mt19937_64 draw(51);
  for (const std::uint64_t nrows : {0u, 1u, 2u, 33u, 700u}) {
    for (const std::uint64_t ncolumns : {0u, 1u, 40u, 9000u}) {
      const auto a = drawn_matrix<TypeParam>(draw, nrows, ncolumns);
      for (const caller who : callers) {
        SCOPED_TRACE(testing::Message() << nrows << " rows, " << ncolumns << " columns, caller " << static_cast<int>(who));
        const auto got = product_by(who, a);
        EXPECT_EQ(got.errors, no_errors);
        EXPECT_EQ(got.y, a.times_x());
      }
    }
  }
}

TEST(spmv, by_a_scan_is_the_same_in_all_schedules) {
  std::mt19937_64 draw(52);
  for (int trial = 0; trial < ntrials / 2; ++trial) {
    const auto a = drawn_matrix<double>(draw, draw() % 300, 50);
    const auto got = product_by(caller::scan, a, drawn_schedule(draw));
    EXPECT_EQ(got.errors, no_errors) << trial;
    EXPECT_EQ(got.y, a.times_x()) << trial;
  }
}

TEST(spmv, of_what_is_no_matrix_is_refused) {
  for (const caller who : callers) {
    SCOPED_TRACE(static_cast<int>(who));
    auto falling = small_matrix<float>();
    falling.offsets = {0, 5, 2, 5, 7};
    const auto of_falling = product_by(who, falling);
    EXPECT_TRUE(of_falling.errors[0] == -EINVAL || of_falling.errors[1] == -EINVAL);
    auto behind = small_matrix<float>();
    behind.offsets.back() = behind.values.size() + 1;
    const auto of_behind = product_by(who, behind);
    EXPECT_TRUE(of_behind.errors[0] == -EINVAL || of_behind.errors[1] == -EINVAL);
    EXPECT_EQ(of_behind.y.back(), who == caller::scan ? 77 : 0) << "a row whose elements are not there has none";
    auto outside = small_matrix<float>();
    outside.columns[4] = 4;
    const auto of_outside = product_by(who, outside);
    EXPECT_TRUE(of_outside.errors[0] == -EDOM || of_outside.errors[1] == -EDOM);
    EXPECT_EQ(of_outside.y, (std::vector<float>{6, 0, 16, 5}));
    if (who != caller::scan) continue;
    EXPECT_EQ(of_falling.errors, std::vector<int>(nblocks, -EINVAL));
    EXPECT_EQ(of_falling.y, std::vector<float>(4, 77));
    auto late = small_matrix<float>();
    late.offsets[0] = 1;
    EXPECT_EQ(product_by(who, late).errors, std::vector<int>(nblocks, -EINVAL));
    const auto without_space = product_by(who, small_matrix<float>(), {}, 1);
    EXPECT_EQ(without_space.errors, std::vector<int>(nblocks, -EINVAL));
    EXPECT_EQ(without_space.y, std::vector<float>(4, 77));
  }
}

// --- Files -------------------------------------------------------------------------------------------------------------------

struct multiply_files {
  mount_ref fs;
  std::uint64_t nrows, ncolumns, nelements;
  float *y, *y_by_shared;
  int* errors;

  GPUFS_DEVICE void operator()() const {
    const auto block = simt::this_block();
    const file files[] = {open(block, fs, "offsets"), open(block, fs, "columns"), open(block, fs, "values"), open(block, fs, "x")};
    run(block,
        csr_matrix{map<const std::uint64_t>(block, files[0]), map<const std::uint32_t>(block, files[1]),
                   map<const float>(block, files[2]), nrows, ncolumns, nelements},
        map<const float>(block, files[3]));
    for (const file& f : files) close(block, f);
  }

 private:
  template <class Matrix>
  GPUFS_DEVICE void run(simt::block block, const Matrix& a, const ptr<const float>& x) const {
    const std::uint64_t share = (nrows + simt::grid_size() - 1) / simt::grid_size(), first = simt::block_rank() * share;
    const std::uint64_t end = first + share < nrows ? first + share : nrows;
    const int error = spmv(block, a, x, y, first, end);
    const shared_part<float, ptr<const float>> near(block, x, ncolumns, first);
    const int error_by_shared = spmv(block, a, near, y_by_shared, first, end);
    if (block.leader()) errors[simt::block_rank()] = error != 0 ? error : error_by_shared;
  }
};

TEST(spmv, of_files_larger_than_the_cache_is_right) {
  std::mt19937_64 draw(53);
  const auto a = drawn_matrix<float>(draw, 1500, 6000);
  std::string root = (std::filesystem::temp_directory_path() / "gpufs_spmv_XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const auto write = [&](const char* name, const auto& elements) {
    const auto bytes = std::as_bytes(std::span(elements));
    std::ofstream(root + "/" + name, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  };
  write("offsets", a.offsets);
  write("columns", a.columns);
  write("values", a.values);
  write("x", a.x);
  {
    constexpr unsigned grid = 2;
    const mount fs(root, {.cache_nbytes = 48 << 10, .page_nbytes = 512});
    ASSERT_GT(a.columns.size() * 8 + a.x.size() * 4, fs.options().cache_nbytes);
    const device_array<float> y(a.nrows()), y_by_shared(a.nrows());
    const device_array<int> errors(grid);
    simt::launch({.grid = grid, .block = 32},
                 multiply_files{fs.ref(), a.nrows(), a.x.size(), a.values.size(), y.get(), y_by_shared.get(), errors.get()});
    EXPECT_EQ(errors.read(), std::vector<int>(grid));
    EXPECT_EQ(fs.counters().fault_errors, 0u);
    EXPECT_EQ(y.read(), a.times_x());
    EXPECT_EQ(y_by_shared.read(), a.times_x());
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
