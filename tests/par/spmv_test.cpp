// SPDX-License-Identifier: Apache-2.0
// Products of sparse matrices and vectors in memory against loops on the host: by rows and by a scan; matrices that are none.
#include "gpufs/par/spmv.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <ostream>
#include <random>
#include <span>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/matrices.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

constexpr unsigned nblocks = 3, nthreads = 64;

template <class T>
struct device_matrix {
  explicit device_matrix(const host_matrix<T>& of)
      : offsets(std::span(of.offsets)), columns(std::span(of.columns)), values(std::span(of.values)), x(std::span(of.x)) {}
  csr_in_memory<T> get() const { return {offsets.get(), columns.get(), values.get(), offsets.size() - 1, x.size(), values.size()}; }

  device_array<std::uint64_t> offsets;
  device_array<std::uint32_t> columns;
  device_array<T> values, x;
};

enum class caller : std::uint8_t { thread, tile, warp, block, block_and_shared, grid };
enum class way : std::uint8_t { by_rows, by_scan };
struct who_and_how {
  caller who;
  way how;
};
constexpr who_and_how callers[] = {{caller::thread, way::by_rows},
                                   {caller::tile, way::by_rows},
                                   {caller::warp, way::by_rows},
                                   {caller::block, way::by_rows},
                                   {caller::block_and_shared, way::by_rows},
                                   {caller::thread, way::by_scan},
                                   {caller::tile, way::by_scan},
                                   {caller::warp, way::by_scan},
                                   {caller::block, way::by_scan},
                                   {caller::block_and_shared, way::by_scan},
                                   {caller::grid, way::by_scan}};
std::ostream& operator<<(std::ostream& out, const who_and_how& by) {
  return out << "caller " << static_cast<int>(by.who) << (by.how == way::by_rows ? ", by rows" : ", by a scan");
}

// Blocks have a part of the rows each, of which the first group of each block does all.
template <class T>
struct multiply {
  who_and_how by_whom;
  csr_in_memory<T> a;
  const T* x;
  T* y;
  scan_space space;
  int* errors;  // of each block

  GPUFS_DEVICE void operator()() const {
    const auto block = simt::this_block();
    const caller who = by_whom.who;
    if (who == caller::grid) {
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
    const int error = by_whom.how == way::by_rows ? spmv(group, a, of, y, first, end) : spmv_by_scan(group, a, of, y, first, end);
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
product<T> product_by(who_and_how who, const host_matrix<T>& of, const simt::cpu_schedule& schedule = {}, std::uint64_t fewer = 0) {
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

template <class T>
class spmv_of : public ::testing::Test {};
using kinds_of_values = ::testing::Types<float, double, std::int32_t>;
TYPED_TEST_SUITE(spmv_of, kinds_of_values);

TYPED_TEST(spmv_of, a_matrix_with_an_empty_row_is_right) {
  for (const who_and_how who : callers) {
    const auto got = product_by(who, small_matrix<TypeParam>());
    EXPECT_EQ(got.errors, no_errors);
    EXPECT_EQ(got.y, (std::vector<TypeParam>{6, 0, 20, 5})) << who;
  }
}

TYPED_TEST(spmv_of, random_matrices_is_what_a_loop_gives) {
  std::mt19937_64 draw(51);
  for (const std::uint64_t nrows : {0u, 1u, 2u, 33u, 700u}) {
    for (const std::uint64_t ncolumns : {0u, 1u, 40u, 9000u}) {
      const auto a = drawn_matrix<TypeParam>(draw, nrows, ncolumns);
      for (const who_and_how who : callers) {
        SCOPED_TRACE(testing::Message() << nrows << " rows, " << ncolumns << " columns, " << who);
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
    const auto got = product_by({caller::grid, way::by_scan}, a, drawn_schedule(draw));
    EXPECT_EQ(got.errors, no_errors) << trial;
    EXPECT_EQ(got.y, a.times_x()) << trial;
  }
}

TEST(spmv, of_what_is_no_matrix_is_refused) {
  for (const who_and_how who : callers) {
    SCOPED_TRACE(testing::Message() << who);
    auto falling = small_matrix<float>();
    falling.offsets = {0, 5, 2, 5, 7};
    const auto of_falling = product_by(who, falling);
    EXPECT_TRUE(of_falling.errors[0] == -EINVAL || of_falling.errors[1] == -EINVAL);
    auto behind = small_matrix<float>();
    behind.offsets.back() = behind.values.size() + 1;
    const auto of_behind = product_by(who, behind);
    EXPECT_TRUE(of_behind.errors[0] == -EINVAL || of_behind.errors[1] == -EINVAL);
    EXPECT_EQ(of_behind.y.back(), who.how == way::by_scan ? 77 : 0) << "a row whose elements are not there has none";
    auto outside = small_matrix<float>();
    outside.columns[4] = 4;
    const auto of_outside = product_by(who, outside);
    EXPECT_TRUE(of_outside.errors[0] == -EDOM || of_outside.errors[1] == -EDOM);
    EXPECT_EQ(of_outside.y, (std::vector<float>{6, 0, 16, 5}));
    EXPECT_EQ(of_falling.y[0], who.how == way::by_scan ? 77 : of_falling.y[0]) << "rows of a call that is refused stay";
    if (who.who != caller::grid) continue;
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

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
