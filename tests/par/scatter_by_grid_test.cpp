// SPDX-License-Identifier: Apache-2.0
// Rows that a grid scatters, against a model in memory: all sizes, places, numbers and orders, and of equal rows always the last.
#include "gpufs/par/scatter_by_grid.hpp"

#include <set>

#include "gpufs/par/gather_by_grid.hpp"
#include "leftovers.hpp"
#include "par/rows.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Scatters rows, and gathers the same ones at once: each place then has what the last place of its row had.
template <class Number>
struct there_and_back {
  file of;
  row_layout layout;
  const Number* numbers;
  std::uint64_t n;
  const std::byte* src;
  std::byte* dst;
  grid_space space;
  row_failure* failed;  // of each block, of scatter and gather
  int ncalls;

  GPUFS_DEVICE void operator()() const {
    for (int i = 0; i < ncalls; ++i) {
      const row_failure to = scatter(simt::this_grid(), of, layout, numbers, n, src, space);
      const row_failure back = gather(simt::this_grid(), of, layout, numbers, n, dst, space);
      if (!this_block().leader()) continue;
      failed[2 * simt::block_rank()] = to;
      failed[2 * simt::block_rank() + 1] = back;
    }
  }
};

struct answer {
  std::vector<std::byte> back;
  std::vector<row_failure> failed;
};

struct how {
  unsigned grid = 2, block = 96;
  int ncalls = 1;
  std::uint64_t missing_words = 0;
  std::uint64_t src_shift = 0, dst_shift = 0;
  std::uint64_t seed = 1;
};

template <class Number>
answer run(const host_file& of, const row_layout& layout, const std::vector<std::int64_t>& numbers,
           const std::vector<std::byte>& rows, const how& by = {}) {
  const std::vector<Number> mine(numbers.begin(), numbers.end());
  const device_buffer<Number> on_device{std::span<const Number>(mine)};
  const shifted_rows src(rows, by.src_shift), dst(std::vector<std::byte>(rows.size()), by.dst_shift);
  const std::uint64_t nwords = grid_space::nwords_to_scatter(numbers.size()), before = numbers.size() % 2;
  const std::vector<std::uint32_t> any(before + nwords, 0xabababab);  // at any multiple of 4 bytes, whatever is there
  const device_buffer<std::uint32_t> space{std::span<const std::uint32_t>(any)};
  const device_buffer<row_failure> failed(2 * by.grid);
  simt::launch({.grid = by.grid, .block = by.block, .schedule = {.seed = by.seed}, .cooperative = true},
               there_and_back<Number>{of.ref(),
                                      layout,
                                      on_device.get(),
                                      numbers.size(),
                                      src.get(),
                                      dst.get(),
                                      {space.get() + before, nwords - by.missing_words},
                                      failed.get(),
                                      by.ncalls});
  EXPECT_TRUE(src.read() == rows);
  return {dst.read(), failed.read()};
}

// What is written, of what file.
struct model {
  std::vector<std::byte> file;
  std::set<std::uint64_t> rows;  // that some place names
  row_failure wrong;             // the first place that names none

  void put(const row_layout& layout, const std::vector<std::int64_t>& numbers, const std::vector<std::byte>& src) {
    const std::uint64_t stride = layout.stride_nbytes != 0 ? layout.stride_nbytes : layout.row_nbytes;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::int64_t number = numbers[i] < 0 && layout.from_end ? numbers[i] + std::int64_t(layout.nrows) : numbers[i];
      if (number < 0 || static_cast<std::uint64_t>(number) >= layout.nrows) {
        if (wrong.error == 0) wrong = {-EDOM, i};
        continue;
      }
      rows.insert(static_cast<std::uint64_t>(number));
      const std::uint64_t at = layout.begin + static_cast<std::uint64_t>(number) * stride;
      if (file.size() < at + layout.row_nbytes) file.resize(at + layout.row_nbytes);
      std::copy_n(src.begin() + static_cast<std::ptrdiff_t>(i * layout.row_nbytes), layout.row_nbytes,
                  file.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
};

row_layout drawn_layout_to_write(random_source& draw, std::uint64_t file_nbytes, bool grows) {
  row_layout layout = drawn_layout(draw, file_nbytes);
  if (draw.percent(50)) layout.row_nbytes = draw.between(4, 5000);
  if (!grows) layout.row_nbytes = std::min(layout.row_nbytes, file_nbytes - layout.begin);
  layout.stride_nbytes = draw.percent(50) ? 0 : layout.row_nbytes + draw.below(40);
  const std::uint64_t stride = std::max(layout.stride_nbytes, layout.row_nbytes);
  layout.nrows = grows ? file_nbytes / stride + 1 + draw.below(3) : (file_nbytes - layout.begin - layout.row_nbytes) / stride + 1;
  return layout;
}

// All of one row; of few; of one window of a file that seems large; as they come.
std::vector<std::int64_t> drawn_numbers_to_write(random_source& draw, row_layout& layout, std::uint64_t n) {
  const std::uint64_t kind = draw.below(5);
  if (kind == 0) return std::vector<std::int64_t>(n, static_cast<std::int64_t>(draw.below(layout.nrows)));
  row_layout few = layout;
  if (kind == 1) few.nrows = std::min<std::uint64_t>(layout.nrows, 1 + draw.below(5));
  if (kind == 2) {
    layout.nrows = std::uint64_t{1} << 40;
    layout.from_end = false;
    return drawn_numbers(draw, few, n, false);
  }
  return drawn_numbers(draw, few, n, draw.below(3) == 0);
}

template <class Number>
void expect_written(written_file& of, model& want, const row_layout& layout, const std::vector<std::int64_t>& numbers,
                    const std::vector<std::byte>& src, const how& by) {
  model now{std::move(want.file), {}, {}};
  now.put(layout, numbers, src);
  const mount_counters before = of.fs->counters();
  const answer got = run<Number>(*of.file, layout, numbers, src, by);
  // Each row once, whatever blocks have met it.
  EXPECT_EQ(of.fs->counters().bytes_written - before.bytes_written,
            static_cast<std::uint64_t>(by.ncalls) * now.rows.size() * layout.row_nbytes);
  for (unsigned b = 0; b < by.grid; ++b) {
    EXPECT_EQ(got.failed[2 * b].error, now.wrong.error);
    EXPECT_EQ(got.failed[2 * b].place, now.wrong.place);
    EXPECT_EQ(got.failed[2 * b + 1].error, now.wrong.error);
  }
  const std::uint64_t stride = layout.stride_nbytes != 0 ? layout.stride_nbytes : layout.row_nbytes;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::int64_t number = numbers[i] < 0 && layout.from_end ? numbers[i] + std::int64_t(layout.nrows) : numbers[i];
    if (number < 0 || static_cast<std::uint64_t>(number) >= layout.nrows) continue;
    const auto there = now.file.begin() + static_cast<std::ptrdiff_t>(layout.begin + static_cast<std::uint64_t>(number) * stride);
    const auto back = got.back.begin() + static_cast<std::ptrdiff_t>(i * layout.row_nbytes);
    ASSERT_TRUE(std::equal(back, back + static_cast<std::ptrdiff_t>(layout.row_nbytes), there)) << "place " << i;
  }
  want.file = std::move(now.file);
}

class scatter_by_grid : public ::testing::TestWithParam<written> {
 protected:
  void SetUp() override {
    if (is_in_place(GetParam()) && memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  }
};
INSTANTIATE_TEST_SUITE_P(to, scatter_by_grid, ::testing::ValuesIn(writings), name_of_writing);

TEST_P(scatter_by_grid, is_what_the_file_has) {
  const seed_range seeds = seeds_to_run(fewer(25));
  for (std::uint64_t drawn = seeds.first; drawn < seeds.end; ++drawn) {
    SCOPED_TRACE(drawn);
    random_source draw(drawn);
    const drawn_file of_size = draw_file(draw, GetParam());
    written_file of(GetParam(), of_size.nbytes, of_size.page_nbytes, of_size.nframes);
    model want{content(seed, 0, of.nbytes), {}, {}};
    for (std::uint64_t call = 0; call < 4 && !HasFailure(); ++call) {
      SCOPED_TRACE(call);
      row_layout layout = drawn_layout_to_write(draw, of.nbytes, of.controller == nullptr);
      const auto numbers = drawn_numbers_to_write(draw, layout, draw.percent(10) ? draw.below(3) : draw.below(300));
      const auto src = content(100 * drawn + call, 0, numbers.size() * layout.row_nbytes);
      const how by{.grid = 1 + static_cast<unsigned>(draw.below(3)),
                   .block = 32 * (1 + static_cast<unsigned>(draw.below(3))),
                   .ncalls = 1 + static_cast<int>(draw.below(2)),
                   .src_shift = drawn_shift(draw),
                   .dst_shift = drawn_shift(draw),
                   .seed = drawn};
      switch (draw.below(4)) {
        case 0:
          expect_written<std::int32_t>(of, want, layout, numbers, src, by);
          break;
        case 1:
          layout.from_end = false;  // there are no negative ones
          expect_written<std::uint32_t>(of, want, layout, numbers, src, by);
          break;
        case 2:
          expect_written<std::int64_t>(of, want, layout, numbers, src, by);
          break;
        default:
          expect_written<std::uint64_t>(of, want, layout, numbers, src, by);
      }
    }
    of.file->close();
    EXPECT_TRUE(of.bytes() == want.file);
    expect_all_written(*of.fs);
  }
}

// More than blocks take at once, by several; each row many times, so that many blocks meet it.
TEST_P(scatter_by_grid, has_the_last_of_equal_rows_in_all_orders_of_blocks) {
  constexpr std::uint64_t row = 24, page = 4096;
  random_source draw(9);
  for (const std::uint64_t nrows : {1, 2, 5, 700, 5000}) {
    SCOPED_TRACE(nrows);
    written_file of(GetParam(), nrows * row, page, 32);
    model want{content(seed, 0, of.nbytes), {}, {}};
    const std::uint64_t n = nrows == 5000 ? 5000 : 2 * detail::order_in_block::most + 77;
    for (std::uint64_t seed = 1; seed <= fewer(4); ++seed) {
      std::vector<std::int64_t> numbers(n);
      for (std::size_t i = 0; i < n; ++i) numbers[i] = static_cast<std::int64_t>(nrows == 5000 ? i : draw.below(nrows));
      expect_written<std::int64_t>(of, want, {.row_nbytes = row, .nrows = nrows}, numbers, content(50 + seed, 0, n * row),
                                   {.grid = 4, .block = 64, .seed = seed});
    }
    of.file->close();
    EXPECT_TRUE(of.bytes() == want.file);
  }
}

// Rows at distances that a poor hash would take for neighbours, in one window of a file of 2^40 rows.
TEST_P(scatter_by_grid, finds_rows_at_any_distance) {
  constexpr std::int64_t nbytes = 200'000;
  written_file of(GetParam(), nbytes, 4096, 64);
  model want{content(seed, 0, of.nbytes), {}, {}};
  for (const std::int64_t apart : {1, 2, 64, 4096, 6765, 65536}) {
    SCOPED_TRACE(apart);
    std::vector<std::int64_t> numbers = up_to(2000);
    const std::int64_t rows = std::min<std::int64_t>(1000, nbytes / apart);
    for (std::int64_t& number : numbers) number = number % rows * apart;
    expect_written<std::int64_t>(of, want, {.row_nbytes = 1, .nrows = std::uint64_t{1} << 40}, numbers,
                                 content(static_cast<std::uint64_t>(apart), 0, 2000), {});
  }
  of.file->close();
  EXPECT_TRUE(of.bytes() == want.file);
}

TEST_P(scatter_by_grid, that_cannot_be_writes_nothing) {
  written_file of(GetParam(), 4096, 512, 8);
  const std::vector<std::byte> src(3 * 512);
  const std::vector<std::int64_t> numbers = {0, 1, 2};
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const auto error = [&](const row_layout& layout, const how& by = {}) {
    const answer got = run<std::int64_t>(*of.file, layout, numbers, src, by);
    EXPECT_EQ(got.failed[0].place, 0u);
    EXPECT_EQ(got.failed[0].error, got.failed[2].error) << "one block's answer is not the other's";
    return got.failed[2].error;
  };
  EXPECT_EQ(error({.row_nbytes = 512, .nrows = most / 512 + 1}), -EINVAL);
  EXPECT_EQ(error({.row_nbytes = 512, .nrows = 8, .begin = most + 1}), -EINVAL);
  EXPECT_EQ(error({.row_nbytes = 512, .nrows = 8, .stride_nbytes = 100}), -EINVAL);
  EXPECT_EQ(error({.row_nbytes = 512, .nrows = 8}, {.missing_words = 1}), -EINVAL) << "too little space";
  EXPECT_EQ(error({.row_nbytes = 0, .nrows = 8}), 0);
  EXPECT_EQ(of.fs->counters().bytes_written, 0u);
  EXPECT_EQ(error({.row_nbytes = 512, .nrows = 8}), 0);
  of.file->close();
  EXPECT_EQ(error({.row_nbytes = 512, .nrows = 8}), -EBADF);
  EXPECT_EQ(of.fs->counters().bytes_written, 3u * 512);
}

struct from_nowhere {
  file of;
  const std::int64_t* numbers;
  std::byte* rows;
  grid_space space;
  int* errors;
  std::uint64_t n;

  GPUFS_DEVICE void operator()() const {
    const row_failure failed = scatter(simt::this_grid(), of, {.row_nbytes = 16, .nrows = 8}, numbers, n, rows, space);
    if (this_block().leader()) errors[simt::block_rank()] = failed.error;
  }
};

TEST_P(scatter_by_grid, of_no_memory_is_an_error_and_nothing_else) {
  written_file of(GetParam(), 4096, 512, 8);
  const device_buffer<std::int64_t> numbers(1);
  const device_buffer<std::byte> rows(16);
  const device_buffer<std::uint32_t> words(grid_space::nwords_to_scatter(1));
  const device_buffer<int> errors(2);
  const from_nowhere whole{of.file->ref(), numbers.get(), rows.get(), {words.get(), words.size()}, errors.get(), 1};
  from_nowhere wrong[] = {whole, whole, whole, whole, whole};
  wrong[0].numbers = nullptr;
  wrong[1].rows = nullptr;
  wrong[2].space.words = nullptr;
  wrong[3].n = 0xff000000u;
  wrong[3].space.nwords = ~std::uint64_t{0};
  wrong[4].n = 0;
  wrong[4].numbers = nullptr;
  constexpr int want[] = {-EFAULT, -EFAULT, -EFAULT, -EINVAL, 0};
  for (int i = 0; i < 5; ++i) {
    simt::launch({.grid = 2, .block = 96, .cooperative = true}, wrong[i]);
    EXPECT_EQ(errors.read(), std::vector<int>(2, want[i])) << i;
  }
  EXPECT_EQ(of.fs->counters().bytes_written, 0u);
}

// Of equal rows the last one's place is told; of numbers that name no row, the first one's.
TEST(scatter_by_grid_of, a_file_that_only_reads_is_an_error) {
  for (const reading how : readings) {
    if (how == reading::being_written) continue;
    subject of(how, 4096, 512, 8);
    const auto failure = [&](const std::vector<std::int64_t>& numbers) {
      return run<std::int32_t>(*of.file, {.row_nbytes = 16, .nrows = 8}, numbers, content(1, 0, 16 * numbers.size())).failed[2];
    };
    const row_failure all = failure({5, 5, 7, 5, 2, 7}), one = failure({5, 5, -7, 5, 9});
    EXPECT_EQ(all.error, -EBADF);
    EXPECT_EQ(all.place, 3u);
    EXPECT_EQ(one.error, -EDOM);
    EXPECT_EQ(one.place, 2u);
  }
}

struct of_lanes_that_disagree : from_nowhere {
  GPUFS_DEVICE void operator()() const {
    const std::uint64_t mine = simt::thread_rank() == 5 ? n - 1 : n;
    scatter(simt::this_grid(), of, {.row_nbytes = 16, .nrows = 8}, numbers, mine, rows, space);
  }
};

// The CPU machine stops such a launch.
TEST_P(scatter_by_grid, of_lanes_that_disagree_is_told) {
  if (GPUFS_ON_CUDA) GTEST_SKIP() << "the CPU machine's check";
  expect_leftovers("the kernel is stopped");
  written_file of(GetParam(), 4096, 512, 8);
  const device_buffer<std::int64_t> numbers(2);
  const device_buffer<std::byte> rows(32);
  const device_buffer<std::uint32_t> words(grid_space::nwords_to_scatter(2));
  const of_lanes_that_disagree kernel{{of.file->ref(), numbers.get(), rows.get(), {words.get(), words.size()}, nullptr, 2}};
  std::string text;
  try {
    simt::launch({.grid = 1, .block = 32, .cooperative = true}, kernel);
  } catch (const simt::launch_error& e) {
    text = e.what();
  }
  EXPECT_NE(text.find("lanes of one group call gpufs::scatter with different arguments: n is 2 "), std::string::npos) << text;
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
