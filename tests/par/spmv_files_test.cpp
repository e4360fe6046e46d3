// SPDX-License-Identifier: Apache-2.0
// Products of sparse matrices in files and vectors, through the page cache, against loops on the host: by rows and by a scan; files
// that are too short, and those that are no matrices.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/spmv.hpp"
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

// Blocks have a part of the rows each, or all of them all rows; x is read through a pointer, or a part of it is in shared memory.
// Of in_part the offsets and x are in memory.
enum class caller : std::uint8_t { rows, rows_and_shared, block, block_and_shared, warp, grid, grid_and_shared, grid_in_part };
constexpr caller callers[] = {caller::rows, caller::rows_and_shared, caller::block,       caller::block_and_shared, caller::warp,
                              caller::grid, caller::grid_and_shared, caller::grid_in_part};
constexpr bool scans(caller who) { return who != caller::rows && who != caller::rows_and_shared; }
constexpr bool is_grid(caller who) { return who >= caller::grid; }

template <class T>
struct multiply_files {
  mount_ref fs;
  caller who;
  std::uint64_t nrows, ncolumns, nelements;
  const std::uint64_t* offsets;
  const T* x;
  T* y;
  int* errors;  // of each block
  scan_space space;

  GPUFS_DEVICE void operator()() const {
    const auto block = simt::this_block();
    const file files[] = {open(block, fs, "offsets"), open(block, fs, "columns"), open(block, fs, "values"), open(block, fs, "x")};
    const int error = run(block, map<const std::uint64_t>(block, files[0]), map<const std::uint32_t>(block, files[1]),
                          map<const T>(block, files[2]), map<const T>(block, files[3]));
    if (block.leader()) errors[simt::block_rank()] = error;
    for (const file& f : files) close(block, f);
  }

 private:
  using columns_of_file = ptr<const std::uint32_t>;
  using elements_of_file = ptr<const T>;

  GPUFS_DEVICE int run(simt::block block, const ptr<const std::uint64_t>& rows, const columns_of_file& columns,
                       const elements_of_file& values, const elements_of_file& x_in_file) const {
    const csr_matrix a{rows, columns, values, nrows, ncolumns, nelements};
    const std::uint64_t share = (nrows + nblocks - 1) / nblocks, begin = simt::block_rank() * share;
    const std::uint64_t first = begin < nrows ? begin : nrows, end = first + share < nrows ? first + share : nrows;
    const auto near = [&] { return shared_part<T, elements_of_file>(block, x_in_file, ncolumns, first); };
    const auto grid = simt::this_grid();
    switch (who) {
      case caller::rows:
        return spmv(block, a, x_in_file, y, first, end);
      case caller::rows_and_shared:
        return spmv(block, a, near(), y, first, end);
      case caller::block:
        return spmv_by_scan(block, a, x_in_file, y, first, end);
      case caller::block_and_shared:
        return spmv_by_scan(block, a, near(), y, first, end);
      case caller::warp: {
        const int error = simt::warp_rank() == 0 ? spmv_by_scan(simt::this_warp(), a, x_in_file, y, first, end) : 0;
        return block.broadcast(error);
      }
      case caller::grid:
        return spmv_by_scan(grid, a, x_in_file, y, space);
      case caller::grid_and_shared:
        return spmv_by_scan(grid, a, near(), y, space);
      default:
        return spmv_by_scan(grid, csr_matrix{offsets, columns, values, nrows, ncolumns, nelements}, x, y, space);
    }
  }
};

// The files of a matrix and a vector, and their product, in whose place 77 was before.
template <class T>
class files_of {
 public:
  explicit files_of(const host_matrix<T>& a, std::uint64_t cache_nbytes = 48 << 10)
      : nrows_(a.nrows()),
        ncolumns_(a.x.size()),
        nelements_(a.values.size()),
        offsets_(std::span(a.offsets)),
        x_(std::span(a.x)),
        cache_nbytes_(cache_nbytes) {
    write("offsets", a.offsets);
    write("columns", a.columns);
    write("values", a.values);
    write("x", a.x);
  }
  template <class E>
  void write(const char* name, const std::vector<E>& elements) const {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary)
        .write(reinterpret_cast<const char*>(elements.data()), static_cast<std::streamsize>(elements.size() * sizeof(E)));
  }

  struct product {
    std::vector<int> errors;
    std::vector<T> y;
    std::uint64_t nfailed;  // accesses
  };
  product by(caller who, const simt::cpu_schedule& schedule = {}, std::uint64_t fewer = 0) const {
    const mount fs(dir_.path(), {.cache_nbytes = cache_nbytes_, .page_nbytes = 512});
    const device_array<T> y{std::span<const T>(std::vector<T>(nrows_, T{77}))};
    const device_array<int> errors(nblocks);
    const std::uint64_t nbytes = nbytes_to_multiply<T>(nelements_, nblocks, nthreads) - fewer;
    const device_array<std::byte> space{std::span<const std::byte>(std::vector<std::byte>(nbytes, std::byte{0xa5}))};
    simt::launch(
        {.grid = nblocks, .block = nthreads, .schedule = schedule, .cooperative = true},
        multiply_files<T>{
            fs.ref(), who, nrows_, ncolumns_, nelements_, offsets_.get(), x_.get(), y.get(), errors.get(), {space.get(), nbytes}});
    return {errors.read(), y.read(), fs.counters().fault_errors};
  }

 private:
  std::uint64_t nrows_, ncolumns_, nelements_;
  device_array<std::uint64_t> offsets_;
  device_array<T> x_;
  std::uint64_t cache_nbytes_;
  temp_dir dir_;
};
const std::vector<int> no_errors(nblocks);

template <class T>
class spmv_of_files_of : public ::testing::Test {};
using kinds_of_values = ::testing::Types<float, double, std::int32_t>;
TYPED_TEST_SUITE(spmv_of_files_of, kinds_of_values);

TYPED_TEST(spmv_of_files_of, a_matrix_with_an_empty_row_is_right) {
  const files_of<TypeParam> files(small_matrix<TypeParam>());
  for (const caller who : callers) {
    const auto got = files.by(who);
    EXPECT_EQ(got.errors, no_errors) << static_cast<int>(who);
    EXPECT_EQ(got.y, (std::vector<TypeParam>{6, 0, 20, 5})) << static_cast<int>(who);
    EXPECT_EQ(got.nfailed, 0u) << static_cast<int>(who);
  }
}

TYPED_TEST(spmv_of_files_of, random_matrices_is_what_a_loop_gives) {
  std::mt19937_64 draw(54);
  for (const std::uint64_t nrows : {1u, 33u, 500u}) {
    for (const std::uint64_t ncolumns : {1u, 900u}) {
      const auto a = drawn_matrix<TypeParam>(draw, nrows, ncolumns);
      const files_of<TypeParam> files(a);
      for (const caller who : callers) {
        SCOPED_TRACE(testing::Message() << nrows << " rows, " << ncolumns << " columns, caller " << static_cast<int>(who));
        const auto got = files.by(who, {.seed = draw()});
        EXPECT_EQ(got.errors, no_errors);
        EXPECT_EQ(got.y, a.times_x());
        EXPECT_EQ(got.nfailed, 0u);
      }
    }
  }
}

TEST(spmv_of_files, larger_than_the_cache_is_right) {
  std::mt19937_64 draw(53);
  const auto a = drawn_matrix<float>(draw, 1500, 6000);
  constexpr std::uint64_t cache_nbytes = 48 << 10;
  ASSERT_GT(a.columns.size() * 8 + a.x.size() * 4, cache_nbytes);
  const files_of<float> files(a, cache_nbytes);
  for (const caller who : callers) {
    const auto got = files.by(who);
    EXPECT_EQ(got.errors, no_errors) << static_cast<int>(who);
    EXPECT_EQ(got.y, a.times_x()) << static_cast<int>(who);
    EXPECT_EQ(got.nfailed, 0u) << static_cast<int>(who);
  }
}

// One row over all blocks' shares, and rows that end where a share does.
TEST(spmv_of_files, with_rows_over_some_blocks_is_right_in_all_schedules) {
  std::mt19937_64 draw(55);
  constexpr std::uint64_t tile = nthreads * scan_space::items_a_row(sizeof(float)), n = 4 * nblocks * tile;
  for (const std::uint64_t length : {n, tile, 4 * tile, 5 * tile, tile / 2 + 1}) {
    host_matrix<float> a;
    for (unsigned i = 0; i < 100; ++i) a.x.push_back(static_cast<float>(draw() % 8));
    for (std::uint64_t i = 0; i < n; ++i) {
      a.add(static_cast<std::uint32_t>(draw() % 100), static_cast<float>(draw() % 8));
      if ((i + 1) % length == 0 || i + 1 == n) a.end_row();
      if ((i + 1) % length == 0 && draw() % 2 == 0) a.end_row();
    }
    const files_of<float> files(a);
    for (const caller who : {caller::grid, caller::grid_in_part}) {
      const auto got = files.by(who, drawn_schedule(draw));
      EXPECT_EQ(got.errors, no_errors) << length;
      EXPECT_EQ(got.y, a.times_x()) << length;
    }
  }
}

// What is missing counts as 0, and is told by the mount.
TEST(spmv_of_files, that_end_too_early_has_zeros_for_the_rest) {
  std::mt19937_64 draw(56);
  auto a = drawn_matrix<float>(draw, 200, 100);
  const files_of<float> files(a);
  const std::uint64_t nthere = a.values.size() / 2 + 1;
  const std::vector<float> values(a.values.begin(), a.values.begin() + static_cast<std::ptrdiff_t>(nthere));
  files.write("values", values);
  for (std::uint64_t i = nthere; i < a.values.size(); ++i) a.values[i] = 0;
  for (const caller who : callers) {
    const auto got = files.by(who);
    EXPECT_EQ(got.errors, no_errors) << static_cast<int>(who);
    EXPECT_EQ(got.y, a.times_x()) << static_cast<int>(who);
    EXPECT_GT(got.nfailed, 0u) << static_cast<int>(who);
  }
}

#if !defined(__SANITIZE_THREAD__)  // lanes that see different offsets may store to one row's place, which is then of no use
// Offsets that are others once they have been looked at so many times, as those of a file that changes may be.
struct changing_offsets {
  const std::uint64_t *before, *after;
  std::uint32_t *nlooks, most;
  GPUFS_DEVICE std::uint64_t operator[](std::uint64_t i) const {
    const std::uint32_t n = simt::atomic_ref<std::uint32_t>(*nlooks).fetch_add(1, std::memory_order_relaxed);
    return n < most ? before[i] : after[i];
  }
  GPUFS_DEVICE changing_offsets operator+(std::ptrdiff_t n) const { return {before + n, after + n, nlooks, most}; }
};
struct multiply_changing {
  changing_offsets offsets;
  const std::uint32_t* columns;
  const float *values, *x;
  float* y;
  int* error;
  GPUFS_DEVICE void operator()() const {
    const auto block = simt::this_block();
    const csr_matrix a{offsets, columns, values, 4, 4, 7};
    const int got = spmv_by_scan(block, a, x, y, 0, 4);
    if (block.leader()) *error = got;
  }
};

TEST(spmv_of_files, whose_offsets_change_meanwhile_looks_at_no_other_memory) {
  const auto good = small_matrix<float>();
  const std::uint64_t far = std::uint64_t{1} << 60;
  const std::vector<std::uint64_t> others[] = {
      {0, 2, 2, 5, far}, {0, far, far, far, far}, {far, far, far, far, far}, {7, 5, 2, 2, 0}};
  const device_array<std::uint64_t> before(std::span(good.offsets));
  const device_array<std::uint32_t> columns(std::span(good.columns));
  const device_array<float> values(std::span(good.values)), x(std::span(good.x));
  int nrefused = 0, nright = 0;
  for (const auto& other : others) {
    const device_array<std::uint64_t> after{std::span(other)};
    for (std::uint32_t most = 0;; ++most) {
      const std::vector<float> untouched(4 + 64, 77);
      const device_array<float> y{std::span(untouched)};
      const device_array<std::uint32_t> nlooks(1);
      const device_array<int> error(1);
      simt::launch(
          {.grid = 1, .block = nthreads},
          multiply_changing{
              {before.get(), after.get(), nlooks.get(), most}, columns.get(), values.get(), x.get(), y.get(), error.get()});
      const int got = error.read_one();
      const auto all = y.read();
      EXPECT_TRUE(std::all_of(all.begin() + 4, all.end(), [](float v) { return v == 77; }));
      EXPECT_TRUE(got == 0 || got == -EINVAL) << got;
      EXPECT_TRUE(got == 0 || all == untouched);
      nrefused += got == -EINVAL;
      if (nlooks.read_one() > most) continue;
      EXPECT_EQ(std::vector<float>(all.begin(), all.begin() + 4), (std::vector<float>{6, 0, 20, 5}));  // nothing has changed
      ++nright;
      break;
    }
  }
  EXPECT_EQ(nright, 4);
  EXPECT_GT(nrefused, 8);
}

#endif

TEST(spmv_of_files, that_are_no_matrix_is_refused) {
  const auto good = small_matrix<float>();
  for (const caller who : callers) {
    SCOPED_TRACE(static_cast<int>(who));
    const files_of<float> files(good);
    files.write("columns", std::vector<std::uint32_t>{0, 2, 1, 2, 4, 0, 3});
    const auto outside = files.by(who);
    EXPECT_TRUE(outside.errors[0] == -EDOM || outside.errors[1] == -EDOM);
    EXPECT_EQ(outside.y, (std::vector<float>{6, 0, 16, 5}));
    if (who == caller::grid_in_part) continue;
    files.write("offsets", std::vector<std::uint64_t>{0, 5, 2, 5, 7});
    const auto falling = files.by(who);
    EXPECT_EQ(falling.errors[0], -EINVAL);
    EXPECT_TRUE(!scans(who) || falling.y[0] == 77);
    files.write("offsets", std::vector<std::uint64_t>{0, 2, 2, 5});
    const auto shorter = files.by(who);
    EXPECT_TRUE(shorter.errors[0] == -EINVAL || shorter.errors[1] == -EINVAL) << "what is missing is 0, before which 5 is";
    if (!is_grid(who)) continue;
    EXPECT_EQ(outside.errors, std::vector<int>(nblocks, -EDOM));
    EXPECT_EQ(falling.errors, std::vector<int>(nblocks, -EINVAL));
    EXPECT_EQ(falling.y, std::vector<float>(4, 77));
    EXPECT_EQ(shorter.errors, std::vector<int>(nblocks, -EINVAL));
    const auto without_space = files.by(who, {}, nbytes_to_multiply<float>(0, 0, nthreads));
    EXPECT_EQ(without_space.errors, std::vector<int>(nblocks, -EINVAL));
    EXPECT_EQ(without_space.y, std::vector<float>(4, 77));
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
