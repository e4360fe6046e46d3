// SPDX-License-Identifier: Apache-2.0
// Rows that kernels gather and scatter themselves, against the bytes of the file: all sources, groups, sizes, places and orders.
#include "gpufs/par/gather.hpp"

#include <functional>

#include "file/schedules.hpp"
#include "gpufs/par/gather_by_grid.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/par/scatter.hpp"
#include "par/rows.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Who calls: of `block` threads a block, each group gathers a share of the batch.
struct by_thread {
  static constexpr unsigned block = 32;
  GPUFS_DEVICE static auto group() { return this_thread(); }
};
struct by_tile {
  static constexpr unsigned block = 64;
  GPUFS_DEVICE static auto group() { return this_tile<4>(); }
};
struct by_warp {
  static constexpr unsigned block = 64;
  GPUFS_DEVICE static auto group() { return this_warp(); }
};
struct by_block {
  static constexpr unsigned block = 128;
  GPUFS_DEVICE static auto group() { return this_block(); }
};

// Each group's share lies at its own place in the batch; what its call has said, at its own in `failed`.
template <class Who, class Number, bool Scatters = false>
struct by_shares {
  file of;
  row_layout layout;
  const Number* numbers;
  std::uint64_t n, share;
  std::byte* rows;
  row_failure* failed;

  GPUFS_DEVICE void operator()() const {
    const auto group = Who::group();
    const std::uint64_t ngroups = simt::grid_size() * simt::block_size() / group.size();
    const std::uint64_t me = (simt::block_rank() * simt::block_size() + simt::thread_rank()) / group.size();
    for (std::uint64_t i = me; i * share < n; i += ngroups) {
      const std::uint64_t first = i * share, here = n - first < share ? n - first : share;
      row_failure got;
      if constexpr (Scatters) {
        got = scatter(group, of, layout, numbers + first, here, rows + first * layout.row_nbytes);
      } else {
        got = gather(group, of, layout, numbers + first, here, rows + first * layout.row_nbytes);
      }
      if (group.leader()) failed[i] = got;
    }
  }
};

struct answer {
  std::vector<std::byte> bytes;
  std::vector<row_failure> failed;  // of each share
};

template <class Who, class Number, bool Scatters = false>
answer run(const host_file& of, const row_layout& layout, const std::vector<std::int64_t>& numbers, std::uint64_t share,
           const std::vector<std::byte>& rows, unsigned grid = 2, std::uint64_t shift = 0) {
  const std::vector<Number> mine(numbers.begin(), numbers.end());
  const device_buffer<Number> on_device{std::span<const Number>(mine)};
  const shifted_rows memory(rows, shift);
  const device_buffer<row_failure> failed(numbers.size() / share + 1);
  simt::launch(
      {.grid = grid, .block = Who::block},
      by_shares<Who, Number, Scatters>{of.ref(), layout, on_device.get(), numbers.size(), share, memory.get(), failed.get()});
  answer got{memory.read(), failed.read()};
  got.failed.resize((numbers.size() + share - 1) / share);
  return got;
}

template <class Who, class Number>
void expect_rows(const host_file& from, const row_layout& layout, std::uint64_t file_nbytes,
                 const std::vector<std::int64_t>& numbers, std::uint64_t share, std::uint64_t shift = 0) {
  const expected_rows want = expect(layout, file_nbytes, numbers);
  const std::vector<std::byte> other(numbers.size() * layout.row_nbytes, std::byte{0xa5});
  const answer got = run<Who, Number>(from, layout, numbers, share, other, 2, shift);
  EXPECT_TRUE(got.bytes == want.bytes);
  for (std::size_t i = 0; i < got.failed.size(); ++i) {
    const auto first = numbers.begin() + static_cast<std::ptrdiff_t>(i * share);
    const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(numbers.size(), (i + 1) * share));
    const row_failure failed = expect(layout, file_nbytes, {first, end}).failure;
    EXPECT_EQ(got.failed[i].error, failed.error) << i;
    EXPECT_EQ(got.failed[i].place, failed.place) << i;
  }
}

class gathered_rows : public read_rows {};

TEST_P(gathered_rows, are_the_files_bytes) {
  try_files(21, [](random_source& draw, const subject& of) {
    for (int call = 0; call < 8; ++call) {
      SCOPED_TRACE(call);
      if (draw.percent(50)) bring(draw, of);
      const row_layout layout = drawn_layout(draw, of.nbytes);
      const auto numbers = drawn_numbers(draw, layout, draw.below(250), draw.below(3) == 0);
      const std::uint64_t share = 1 + draw.below(100);
      const bool narrow = draw.below(2) == 0;
      const std::uint64_t shift = drawn_shift(draw);
      const auto by = [&]<class Who>(Who) {
        narrow ? expect_rows<Who, std::int32_t>(*of.file, layout, of.nbytes, numbers, share, shift)
               : expect_rows<Who, std::int64_t>(*of.file, layout, of.nbytes, numbers, share, shift);
      };
      switch (call % 4) {
        case 0:
          by(by_thread{});
          break;
        case 1:
          by(by_tile{});
          break;
        case 2:
          by(by_warp{});
          break;
        default:
          by(by_block{});
      }
    }
  });
}
struct by_all {
  file of;
  row_layout layout;
  const std::int64_t* numbers;
  std::uint64_t n;
  std::byte* rows;
  grid_space space;
  row_failure* failed;  // of each block
  int ncalls;

  GPUFS_DEVICE void operator()() const {
    for (int i = 0; i < ncalls; ++i) {
      const row_failure got = gather(simt::this_grid(), of, layout, numbers, n, rows, space);
      if (this_block().leader()) failed[simt::block_rank()] = got;
    }
  }
};

TEST(gather_by_grid, no_memory_is_an_error_and_nothing_else) {
  subject of(reading::staged, 4096, 512, 8);
  const device_buffer<std::int64_t> numbers(1);
  const device_buffer<std::byte> rows(16);
  const device_buffer<std::uint32_t> words(grid_space::nwords_for(1));
  const device_buffer<row_failure> failed(2);
  const by_all whole{.of = of.file->ref(),
                     .layout = {.row_nbytes = 16, .nrows = 8},
                     .numbers = numbers.get(),
                     .n = 1,
                     .rows = rows.get(),
                     .space = {words.get(), words.size()},
                     .failed = failed.get(),
                     .ncalls = 1};
  by_all wrong[] = {whole, whole, whole, whole};
  wrong[1].numbers = nullptr;
  wrong[2].rows = nullptr;
  wrong[3].space.words = nullptr;
  for (const by_all& each : wrong) {
    simt::launch({.grid = 2, .block = 96, .cooperative = true}, each);
    EXPECT_EQ(failed.read_one(1).error, &each == wrong ? 0 : -EFAULT);
  }
}

answer run_by_grid(const host_file& of, const row_layout& layout, const std::vector<std::int64_t>& numbers, unsigned grid,
                   int ncalls, std::uint64_t missing_words = 0, std::uint64_t shift = 0) {
  const device_buffer<std::int64_t> on_device{std::span<const std::int64_t>(numbers)};
  const std::vector<std::byte> other(numbers.size() * layout.row_nbytes, std::byte{0xa5});
  const shifted_rows memory(other, shift);
  const std::uint64_t nwords = grid_space::nwords_for(numbers.size()), before = numbers.size() % 2;  // at any multiple of 4 bytes
  const std::vector<std::uint32_t> any(before + nwords, 0xabababab);
  const device_buffer<std::uint32_t> space{std::span<const std::uint32_t>(any)};
  const device_buffer<row_failure> failed(grid);
  simt::launch({.grid = grid, .block = 96, .cooperative = true}, by_all{of.ref(),
                                                                        layout,
                                                                        on_device.get(),
                                                                        numbers.size(),
                                                                        memory.get(),
                                                                        {space.get() + before, nwords - missing_words},
                                                                        failed.get(),
                                                                        ncalls});
  return {memory.read(), failed.read()};
}

void expect_by_grid(const host_file& of, const row_layout& layout, std::uint64_t file_nbytes,
                    const std::vector<std::int64_t>& numbers, unsigned grid, int ncalls, std::uint64_t shift = 0) {
  const expected_rows want = expect(layout, file_nbytes, numbers);
  const answer got = run_by_grid(of, layout, numbers, grid, ncalls, 0, shift);
  EXPECT_TRUE(got.bytes == want.bytes);
  for (const row_failure& failed : got.failed) {
    EXPECT_EQ(failed.error, want.failure.error);
    EXPECT_EQ(failed.place, want.failure.place);
  }
}

TEST_P(gathered_rows, of_a_grid_are_the_files_bytes) {
  try_files(31, [](random_source& draw, const subject& of) {
    for (int call = 0; call < 3; ++call) {
      SCOPED_TRACE(call);
      if (draw.percent(50)) bring(draw, of);
      const row_layout layout = drawn_layout(draw, of.nbytes);
      const auto numbers = drawn_numbers(draw, layout, draw.below(700), draw.below(3) == 0);
      expect_by_grid(*of.file, layout, of.nbytes, numbers, 1 + static_cast<unsigned>(draw.below(3)),
                     1 + static_cast<int>(draw.below(2)), drawn_shift(draw));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(of, gathered_rows, ::testing::ValuesIn(readings), name_of_reading);

template <class Who>
class gather_of : public ::testing::Test {};
using all_groups = ::testing::Types<by_thread, by_tile, by_warp, by_block>;
TYPED_TEST_SUITE(gather_of, all_groups);

TYPED_TEST(gather_of, a_layout_that_no_file_can_have_reads_nothing) {
  subject of(reading::staged, 4096, 512, 8);
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const row_layout wrong[] = {
      {.row_nbytes = 512, .nrows = most / 512 + 1},
      {.row_nbytes = 512, .nrows = 8, .begin = most + 1},
      {.row_nbytes = 512, .nrows = 3, .stride_nbytes = most / 2},
  };
  for (const row_layout& layout : wrong) {
    const std::vector<std::byte> before(512, std::byte{0xa5});
    const answer got = run<TypeParam, std::int64_t>(*of.file, layout, {0}, 1, before, 1);
    EXPECT_EQ(got.failed[0].error, -EINVAL);
    EXPECT_EQ(got.bytes, before);
  }
  EXPECT_EQ((run<TypeParam, std::int64_t>(*of.file, {.row_nbytes = 0, .nrows = 8}, {0}, 1, {}, 1).failed[0].error), 0);
  EXPECT_EQ(run_by_grid(*of.file, wrong[0], {0}, 2, 1).failed[1].error, -EINVAL);
  EXPECT_EQ(run_by_grid(*of.file, {.row_nbytes = 512, .nrows = 8}, {0, 1}, 2, 1, 1).failed[1].error, -EINVAL) << "too little space";
}

// numbers or rows: null, or on the stack of each thread.
template <class Who>
struct from_nowhere {
  file of;
  std::int64_t* numbers;
  std::byte* rows;
  int* errors;  // of gathers and scatters, by turns

  GPUFS_DEVICE void operator()() const {
    const auto group = Who::group();
    const row_layout layout{.row_nbytes = 16, .nrows = 8};
    const std::int64_t* const no_numbers = nullptr;
    const int got[] = {gather(group, of, layout, no_numbers, 1, rows).error,
                       scatter(group, of, layout, no_numbers, 1, rows).error,
                       gather(group, of, layout, numbers, 1, nullptr).error,
                       scatter(group, of, layout, numbers, 1, nullptr).error,
                       gather(group, of, layout, no_numbers, 0, nullptr).error,
                       scatter(group, of, {.row_nbytes = 0, .nrows = 8}, no_numbers, 1, nullptr).error};
    if (group.leader() && simt::thread_rank() == 0) {
      for (int i = 0; i < 6; ++i) errors[i] = got[i];
    }
    if (!GPUFS_ON_CUDA || group.size() == 1) return;
    std::int64_t own_number[1] = {0};
    std::byte own[16];
    const int on_stack[] = {gather(group, of, layout, own_number, 1, rows).error,
                            scatter(group, of, layout, own_number, 1, rows).error, gather(group, of, layout, numbers, 1, own).error,
                            scatter(group, of, layout, numbers, 1, own).error};
    if (group.leader() && simt::thread_rank() == 0) {
      for (int i = 0; i < 4; ++i) errors[6 + i] = on_stack[i];
    }
  }
};

TYPED_TEST(gather_of, no_memory_is_an_error_and_nothing_else) {
  subject of(reading::being_written, 4096, 512, 8);
  const device_buffer<std::int64_t> numbers(1);
  const device_buffer<std::byte> rows(16);
  const std::vector<int> before(10, -EFAULT);
  const device_buffer<int> errors{std::span<const int>(before)};
  simt::launch({.grid = 1, .block = TypeParam::block},
               from_nowhere<TypeParam>{of.file->ref(), numbers.get(), rows.get(), errors.get()});
  std::vector<int> want = before;
  want[4] = want[5] = 0;
  EXPECT_EQ(errors.read(), want);
  EXPECT_EQ(rows.read(), std::vector<std::byte>(16));
  EXPECT_EQ(of.fs->counters().bytes_written, 0u);
}

TYPED_TEST(gather_of, a_file_that_is_closed_or_never_opened_is_zeros_and_the_error) {
  subject of(reading::pulled, 4096, 512, 8);
  of.file->close();
  const row_layout layout{.row_nbytes = 100, .nrows = 8};
  answer got = run<TypeParam, std::int32_t>(*of.file, layout, {1, 2, 3, 3}, 4, std::vector<std::byte>(400, std::byte{0xa5}), 1);
  EXPECT_EQ(got.bytes, std::vector<std::byte>(400));
  EXPECT_EQ(got.failed[0].error, -EBADF);
  EXPECT_EQ(got.failed[0].place, 0u);
  const device_buffer<std::int32_t> numbers(4);
  const device_buffer<std::byte> dst{std::span<const std::byte>(std::vector<std::byte>(400, std::byte{0xa5}))};
  const device_buffer<row_failure> failed(1);
  for (const file& none : {file()}) {
    simt::launch({.grid = 1, .block = 32},
                 by_shares<by_warp, std::int32_t>{none, layout, numbers.get(), 4, 4, dst.get(), failed.get()});
    EXPECT_EQ(dst.read(), std::vector<std::byte>(400));
    EXPECT_EQ(failed.read_one().error, -EBADF);
  }
  const answer all = run_by_grid(*of.file, layout, {1, 2, 3}, 2, 1);
  EXPECT_EQ(all.bytes, std::vector<std::byte>(300));
  EXPECT_EQ(all.failed[1].error, -EBADF);
}

// A frame is but a wish; and nothing is waited for that the groups themselves hold.
TYPED_TEST(gather_of, a_cache_whose_frames_are_all_pinned_reads_past_it) {
  constexpr std::uint32_t page = 512, nframes = 8;
  subject of(reading::pulled, 64 * page, page, nframes);
  const device_buffer<mapped_page_handle> pages(nframes);
  simt::launch({.grid = 1, .block = 32}, map_first_pages{of.file->ref(), nframes, page, pages.get()});
  const row_layout layout{.row_nbytes = page / 2, .nrows = 127, .begin = 100};
  for (int i = 0; i < 3; ++i) expect_rows<TypeParam, std::int64_t>(*of.file, layout, 64 * page, up_to(127), 50);
  simt::launch({.grid = 1, .block = 32}, unmap_pages{nframes, pages.get()});
}

std::array<std::uint64_t, 3> counted(const mount& fs, const std::function<void()>& work) {
  const mount_counters before = fs.counters();
  work();
  const mount_counters after = fs.counters();
  return {after.hits - before.hits, after.faults - before.faults, after.evictions - before.evictions};
}

TYPED_TEST(gather_of, rows_admits_what_has_room_and_what_is_read_again) {
  constexpr std::uint32_t page = 512, nframes = 64;
  constexpr std::uint64_t nrows = 4 * nframes;
  subject of(reading::pulled, nrows * page, page, nframes);
  const row_layout layout{.row_nbytes = page, .nrows = nrows};
  const auto read = [&](const std::vector<std::int64_t>& numbers) {
    return counted(*of.fs, [&] { expect_rows<TypeParam, std::int64_t>(*of.file, layout, nrows * page, numbers, numbers.size()); });
  };
  // As row_batch_admits has it.
  EXPECT_EQ(read(up_to(nframes)), (std::array<std::uint64_t, 3>{0, nframes, 0}));
  EXPECT_EQ(read(up_to(nframes)), (std::array<std::uint64_t, 3>{nframes, 0, 0}));
  EXPECT_EQ(read(up_to(nrows)), (std::array<std::uint64_t, 3>{nframes, 0, 0}));
  const std::vector<std::int64_t> again = {100, 101, 102};
  read(again);
  read(again);
  EXPECT_GE(read(again)[0], 2u) << "two of them may share a word of the touched pages";
}

TYPED_TEST(gather_of, small_rows_takes_no_page_for_them_at_first) {
  constexpr std::uint32_t page = 4096;
  subject of(reading::pulled, 64 * page, page, 64);
  const row_layout layout{.row_nbytes = page / 16, .nrows = 1024};
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 64; ++i) numbers.push_back(16 * i + i % 16);
  const auto read = [&] {
    return counted(*of.fs, [&] { expect_rows<TypeParam, std::int64_t>(*of.file, layout, 64 * page, numbers, 64); })[1];
  };
  EXPECT_EQ(read(), 0u) << "though all frames are free";
  EXPECT_GT(read(), 10u) << "those that kept their word of the touched pages";
}

TEST(gather_by_block, reads_a_repeated_row_once) {
  constexpr std::uint32_t page = 512, nframes = 8;
  subject of(reading::pulled, 64 * page, page, nframes);
  const row_layout layout{.row_nbytes = page, .nrows = 64};
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 500; ++i) numbers.push_back(i % 2 == 0 ? 7 : 50);
  for (const bool by_grid : {false, true}) {
    const mount_counters before = of.fs->counters();
    by_grid ? expect_by_grid(*of.file, layout, 64 * page, numbers, 1, 1)
            : expect_rows<by_block, std::int32_t>(*of.file, layout, 64 * page, numbers, 500);
    EXPECT_EQ(of.fs->counters().bytes_read - before.bytes_read, (by_grid ? 4 : 2) * page)
        << "the block takes a grid's rows by 125, of one window at last";
  }
}

// Larger than what a block sorts at once, and than a group of any kind reads at once.
TYPED_TEST(gather_of, more_rows_than_are_read_at_once) {
  constexpr std::uint64_t nrows = 700, row = 24;
  subject of(reading::pulled, nrows * row, 4096, 4);
  random_source draw(7);
  std::vector<std::int64_t> numbers(2 * detail::order_in_block::most + 77);
  for (std::int64_t& number : numbers) number = static_cast<std::int64_t>(draw.below(nrows + 1));
  expect_rows<TypeParam, std::int32_t>(*of.file, {.row_nbytes = row, .nrows = nrows}, nrows * row, numbers, numbers.size());
  expect_by_grid(*of.file, {.row_nbytes = row, .nrows = nrows}, nrows * row, numbers, 2, 1);
}

TYPED_TEST(gather_of, a_version_that_has_ended_gives_no_row_that_is_pulled) {
  constexpr std::uint64_t row = 16, nrows = 4096;
  subject of(reading::by_windows, nrows * row, 4096, 8);
  of.fs->prepare("rows");
  const row_layout layout{.row_nbytes = row, .nrows = nrows};
  std::vector<std::int64_t> numbers = up_to(200);
  for (std::int64_t& number : numbers) number = 300 + 19 * number;  // not of the page that has come along with the open
  of.dir.overwrite("rows", 0, nrows * row, seed + 1);
  EXPECT_TRUE(is_told_of_end(*of.file));
  const answer got =
      run<TypeParam, std::int64_t>(*of.file, layout, numbers, 200, std::vector<std::byte>(200 * row, std::byte{0xa5}));
  EXPECT_EQ(got.bytes, std::vector<std::byte>(200 * row));
  EXPECT_EQ(got.failed[0].error, -ESTALE);
  EXPECT_EQ(got.failed[0].place, 0u);
}

// Against a model in memory: of equal numbers the last one is what the file has. One group writes; of two, any might come last.
TYPED_TEST(gather_of, what_the_same_group_has_scattered) {
  random_source draw(11);
  for (std::size_t trial = 0; trial < 2 * std::size(writings); ++trial) {
    SCOPED_TRACE(trial);
    const written how = writings[trial % std::size(writings)];
    const drawn_file drawn = draw_file(draw, how);
    written_file of(how, 20'000 + drawn.nbytes, drawn.page_nbytes, drawn.nframes);
    const std::uint64_t file_nbytes = of.nbytes;
    std::vector<std::byte> want = content(seed, 0, file_nbytes);
    for (std::uint64_t call = 0; call < 3; ++call) {
      row_layout layout;
      layout.row_nbytes = draw.percent(50) ? 1 + draw.below(700) : 16 * draw.between(1, 40);
      layout.begin = draw.below(100);
      layout.nrows = (file_nbytes - layout.begin) / layout.row_nbytes;
      std::vector<std::int64_t> numbers(1 + draw.below(150));
      const std::vector<std::byte> src = content(100 + trial * 3 + call, 0, numbers.size() * layout.row_nbytes);
      row_failure wrong;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = draw.below(40) == 0 ? -1 : static_cast<std::int64_t>(draw.below(layout.nrows / 3 + 1));
        if (numbers[i] < 0) {
          if (wrong.error == 0) wrong = {-EDOM, i};
          continue;
        }
        std::copy_n(
            src.begin() + static_cast<std::ptrdiff_t>(i * layout.row_nbytes), layout.row_nbytes,
            want.begin() + static_cast<std::ptrdiff_t>(layout.begin + static_cast<std::uint64_t>(numbers[i]) * layout.row_nbytes));
      }
      const answer got = run<TypeParam, std::int64_t, true>(*of.file, layout, numbers, numbers.size(), src, 2, drawn_shift(draw));
      EXPECT_EQ(got.failed[0].error, wrong.error);
      EXPECT_EQ(got.failed[0].place, wrong.place);
      const row_layout whole{.row_nbytes = file_nbytes, .nrows = 1};
      const answer back =
          run<TypeParam, std::int64_t>(*of.file, whole, {0}, 1, std::vector<std::byte>(file_nbytes, std::byte{0xa5}));
      EXPECT_TRUE(back.bytes == want) << "it is written, and not all in the file";
    }
    of.file->close();
    EXPECT_TRUE(of.bytes() == want);
  }
}

// Of the two pages of a row one is cached, and there is no frame for the other: it is not told as an error of the disk.
TYPED_TEST(gather_of, a_row_that_is_written_in_part_says_why) {
  constexpr std::uint32_t page = 512, nframes = 8;
  mount_options options = writing_options(page, nframes);
  options.frame_timeout = std::chrono::milliseconds(20);
  written_file of(written::by_the_host, 64 * page, options);
  const device_buffer<mapped_page_handle> pages(nframes);
  simt::launch({.grid = 1, .block = 32}, map_first_pages{of.file->ref(), nframes, page, pages.get()});
  const row_layout layout{.row_nbytes = 100, .nrows = 2, .begin = nframes * page - 150};
  const answer got = run<TypeParam, std::int64_t, true>(*of.file, layout, {0, 1}, 2, content(9, 0, 200), 1);
  simt::launch({.grid = 1, .block = 32}, unmap_pages{nframes, pages.get()});
  EXPECT_EQ(got.failed[0].error, -ENOMEM);
  EXPECT_EQ(got.failed[0].place, 1u);
  of.file->close();
  std::vector<std::byte> want = content(seed, 0, 64 * page);
  const auto rows = content(9, 0, 150);
  std::copy(rows.begin(), rows.end(), want.begin() + nframes * page - 150);
  EXPECT_EQ(of.dir.read("rows"), want) << "what there was a frame for is written";
}

TYPED_TEST(gather_of, scatters_that_cannot_be) {
  subject of(reading::staged, 4096, 512, 8);
  const std::vector<std::byte> src(3 * 512);
  EXPECT_EQ((run<TypeParam, std::int64_t, true>(*of.file, {.row_nbytes = 512, .nrows = 8}, {0, 1, 2}, 3, src).failed[0].error),
            -EBADF);
  const row_layout overlapping{.row_nbytes = 512, .nrows = 8, .stride_nbytes = 100};
  EXPECT_EQ((run<TypeParam, std::int64_t, true>(*of.file, overlapping, {0, 1, 2}, 3, src).failed[0].error), -EINVAL);
}

// The first block changes row after row; the others gather all of them meanwhile: each byte is an old or a new one.
struct beside_a_writer {
  file of;
  row_layout layout;
  const std::int32_t* numbers;
  const std::byte* now;
  std::byte* rows;  // of each block
  std::uint32_t* wrong;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::uint64_t nbytes = layout.nrows * layout.row_nbytes;
    if (simt::block_rank() == 0) {
      for (std::uint64_t i = simt::warp_rank(); i < layout.nrows; i += simt::block_size() / simt::warp_lanes) {
        const std::int64_t at = static_cast<std::int64_t>(i * layout.row_nbytes);
        const bool whole = pwrite(warp, of, now + at, layout.row_nbytes, at) == static_cast<std::int64_t>(layout.row_nbytes);
        if (!whole && warp.leader()) count_wrong();
      }
      return;
    }
    std::byte* const mine = rows + simt::block_rank() * nbytes;
    for (int round = 0; round < 4; ++round) {
      const row_failure failed = gather(this_block(), of, layout, numbers, layout.nrows, mine);
      if (failed.error != 0 && this_block().leader()) count_wrong();
      for (std::uint64_t i = simt::thread_rank(); i < nbytes; i += simt::block_size()) {
        const std::byte old = content_byte(seed, i);
        if (mine[i] != old && mine[i] != now[i]) count_wrong();
      }
      this_block().sync();
    }
  }
  GPUFS_DEVICE void count_wrong() const { simt::atomic_ref<std::uint32_t>(*wrong).add_relaxed(1); }
};

TEST(gather_by_block, beside_a_writer_gets_old_or_new_bytes) {
  if (under_tsan) GTEST_SKIP() << "the blocks read what another writes at that moment";
  constexpr std::uint64_t row = 300, nrows = 200;
  const seed_range seeds = seeds_to_run(fewer(10));
  for (std::uint64_t drawn = seeds.first; drawn < seeds.end; ++drawn) {
    SCOPED_TRACE(drawn);
    written_file of(drawn % 2 == 0 ? written::in_place : written::by_the_host, row * nrows, 1024,
                    8 + static_cast<std::uint32_t>(drawn % 5) * 20);
    const std::vector<std::byte> now = content(seed + 1, 0, row * nrows);
    std::vector<std::int32_t> all(nrows);
    for (std::size_t i = 0; i < nrows; ++i) all[i] = static_cast<std::int32_t>(i);
    const device_buffer<std::int32_t> numbers{std::span<const std::int32_t>(all)};
    const device_buffer<std::byte> bytes{std::span<const std::byte>(now)}, rows(3 * row * nrows);
    const device_buffer<std::uint32_t> wrong(1);
    const row_layout layout{.row_nbytes = row, .nrows = nrows};
    simt::launch({.grid = 3, .block = 64, .schedule = {.seed = drawn}},
                 beside_a_writer{of.file->ref(), layout, numbers.get(), bytes.get(), rows.get(), wrong.get()});
    EXPECT_EQ(wrong.read_one(), 0u);
    std::vector<std::int64_t> places = up_to(nrows);
    std::reverse(places.begin(), places.end());
    const answer got = run<by_warp, std::int32_t>(*of.file, layout, places, nrows, std::vector<std::byte>(row * nrows));
    for (std::uint64_t i = 0; i < nrows; ++i) {
      const auto here = got.bytes.begin() + static_cast<std::ptrdiff_t>((nrows - 1 - i) * row);
      EXPECT_TRUE(std::equal(here, here + row, now.begin() + static_cast<std::ptrdiff_t>(i * row))) << i;
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
