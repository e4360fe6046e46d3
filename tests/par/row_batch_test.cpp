// SPDX-License-Identifier: Apache-2.0
// Batches of rows against the bytes of the file: all sources, sizes, places and orders.
#include <map>
#include <set>

#include "../../src/par/measured.hpp"
#include "file/faulty_store.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/store/posix_store.hpp"
#include "par/rows.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t unsorted = 16;  // so that tests' batches are sorted on a GPU, too

template <class Number>
std::vector<std::byte> gather(row_batch& batch, const host_file& from, const row_layout& layout,
                              const std::vector<std::int64_t>& numbers, std::uint64_t shift = 0) {
  const std::vector<Number> mine(numbers.begin(), numbers.end());
  const device_buffer<Number> on_device{std::span<const Number>(mine)};
  const shifted_rows dst(std::vector<std::byte>(numbers.size() * layout.row_nbytes, std::byte{0xa5}), shift);
  const simt::stream turns;
  batch.gather(from.ref(), layout, on_device.get(), numbers.size(), dst.get(), turns);
  turns.wait();
  return dst.read();
}

void expect_rows(row_batch& batch, const host_file& from, const row_layout& layout, std::uint64_t file_nbytes,
                 const std::vector<std::int64_t>& numbers, bool narrow, std::uint64_t shift = 0) {
  const expected_rows want = expect(layout, file_nbytes, numbers);
  const auto got = narrow ? gather<std::int32_t>(batch, from, layout, numbers, shift)
                          : gather<std::int64_t>(batch, from, layout, numbers, shift);
  EXPECT_TRUE(got == want.bytes);
  const row_failure failed = batch.failure();
  EXPECT_EQ(failed.error, want.failure.error);
  EXPECT_EQ(failed.place, want.failure.place);
}

class row_batches : public read_rows {};

// Row sizes, strides, beginnings, pages and caches as they come; numbers that repeat, and some that name no row.
TEST_P(row_batches, give_the_files_bytes) {
  try_files(1, [](random_source& draw, const subject& of) {
    row_batch batch(*of.fs, 1 + static_cast<std::uint32_t>(draw.below(120)), unsorted);
    for (int call = 0; call < 3; ++call) {
      if (draw.percent(50)) bring(draw, of);
      const row_layout layout = drawn_layout(draw, of.nbytes);
      const bool wrong = draw.below(3) == 0;
      const auto numbers = drawn_numbers(draw, layout, draw.below(250), wrong);
      const bool narrow = draw.below(2) == 0;
      expect_rows(batch, *of.file, layout, of.nbytes, numbers, narrow, drawn_shift(draw));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(of, row_batches, ::testing::ValuesIn(readings), name_of_reading);

TEST(row_batch_of, unsigned_numbers_goes_beyond_two_to_the_31) {
  // A file of a hole, whose rows are one byte each.
  const temp_dir dir;
  constexpr std::uint64_t hole = (std::uint64_t{1} << 31) + 100;
  dir.add_sparse("rows", hole, 64, seed);
  let_file_times_pass();
  const mount fs(dir.path(), {.cache_nbytes = 1 << 20, .store = store_kind::posix});
  const host_file file(fs, "rows");
  row_batch batch(fs, 64);
  const std::vector<std::uint32_t> numbers = {static_cast<std::uint32_t>(hole) + 3, 5, static_cast<std::uint32_t>(hole) + 63};
  const device_buffer<std::uint32_t> on_device{std::span<const std::uint32_t>(numbers)};
  const device_buffer<std::byte> dst(3);
  const simt::stream turns;
  batch.gather(file.ref(), {.row_nbytes = 1, .nrows = hole + 64}, on_device.get(), 3, dst.get(), turns);
  turns.wait();
  EXPECT_EQ(batch.failure().error, 0);
  EXPECT_EQ(dst.read(), (std::vector<std::byte>{content_byte(seed, hole + 3), std::byte{0}, content_byte(seed, hole + 63)}));
}

// Numbers that fit in 32 bits are sorted together with their places, others beside them. What is no row has the number behind the
// last.
TEST(row_batch_of, many_rows_sorts_numbers_of_32_bits_and_of_more) {
  const temp_dir dir;
  constexpr std::uint64_t most_by_32 = ~std::uint32_t{0}, hole = most_by_32 - 32;
  dir.add_sparse("rows", hole, 128, seed);
  let_file_times_pass();
  const mount fs(dir.path(), {.cache_nbytes = 1 << 20, .store = store_kind::posix});
  const host_file file(fs, "rows");
  row_batch batch(fs, 64, 0);
  for (const std::uint64_t nrows : {most_by_32, most_by_32 + 1, most_by_32 + 64}) {
    const auto last = static_cast<std::int64_t>(nrows) - 1;
    const std::vector<std::int64_t> numbers = {last, 5, last - 1, last, 5, last + 1, 0, last - 2, -1};
    const device_buffer<std::int64_t> on_device{std::span<const std::int64_t>(numbers)};
    const device_buffer<std::byte> dst(numbers.size());
    const simt::stream turns;
    batch.gather(file.ref(), {.row_nbytes = 1, .nrows = nrows}, on_device.get(), numbers.size(), dst.get(), turns);
    turns.wait();
    const row_failure failed = batch.failure();
    EXPECT_EQ(failed.error, -EDOM);
    EXPECT_EQ(failed.place, 5u);  // of the two that are no rows, the first
    std::vector<std::byte> wanted;
    for (const std::int64_t number : numbers) {
      const auto row = static_cast<std::uint64_t>(number);
      wanted.push_back(row >= hole && row < nrows ? content_byte(seed, row) : std::byte{0});
    }
    EXPECT_EQ(dst.read(), wanted) << nrows;
  }
}

TEST(row_batch_of, a_caller_that_looks_for_itself_tells_there) {
  subject of(reading::pulled, 4096, 512, 8);
  row_batch batch(*of.fs, 64, unsorted);
  const pinned_buffer<std::uint64_t> word(1);
  word[0] = row_failure::none;
  batch.report_to(word.get());
  gather<std::int64_t>(batch, *of.file, {.row_nbytes = 512, .nrows = 9}, {0, 8, 9});
  EXPECT_EQ(batch.failure().error, 0);
  EXPECT_EQ(row_failure::of(word[0]).error, -ENXIO);
  EXPECT_EQ(row_failure::of(word[0]).place, 1u);
  batch.report_to(nullptr);
  gather<std::int64_t>(batch, *of.file, {.row_nbytes = 512, .nrows = 9}, {0, 9});
  EXPECT_EQ(batch.failure().error, -EDOM);
}

TEST(row_batch_admits, what_has_room_and_what_is_read_again) {
  constexpr std::uint32_t page = 512, nframes = 64;
  constexpr std::uint64_t nrows = 4 * nframes;
  subject of(reading::pulled, nrows * page, page, nframes);
  row_batch batch(*of.fs, 1024, unsorted);
  const row_layout layout{.row_nbytes = page, .nrows = nrows};
  const auto read = [&](const std::vector<std::int64_t>& numbers) {
    const mount_counters before = of.fs->counters();
    expect_rows(batch, *of.file, layout, nrows * page, numbers, false);
    const mount_counters after = of.fs->counters();
    return std::array<std::uint64_t, 3>{after.hits - before.hits, after.faults - before.faults, after.evictions - before.evictions};
  };
  // The first quarter fills the cache, in which each page has a frame of its own choice.
  EXPECT_EQ(read(up_to(nframes)), (std::array<std::uint64_t, 3>{0, nframes, 0}));
  EXPECT_EQ(read(up_to(nframes)), (std::array<std::uint64_t, 3>{nframes, 0, 0}));
  // A scan of all evicts nothing, and hits what is there.
  EXPECT_EQ(read(up_to(nrows)), (std::array<std::uint64_t, 3>{nframes, 0, 0}));
  // What is read again within about as many reads as the cache has frames gets a frame, and is a hit from then on.
  const std::vector<std::int64_t> again = {100, 101, 102};
  read(again);
  read(again);
  EXPECT_GE(read(again)[0], 2u) << "two of them may share a word of the touched pages";
}

// As in a .npy file: each row lies in two pages.
TEST(row_batch_reads, rows_behind_a_header) {
  constexpr std::uint32_t page = 512;
  constexpr std::uint64_t header = 128, nrows = 60, file_nbytes = header + nrows * page;
  subject of(reading::pulled, file_nbytes, page, 128);
  row_batch batch(*of.fs, 1024, unsorted);
  const row_layout layout{.row_nbytes = page, .nrows = nrows, .begin = header};
  std::vector<std::int64_t> numbers = up_to(nrows);
  for (int round = 0; round < 3; ++round) expect_rows(batch, *of.file, layout, file_nbytes, numbers, false);
  const mount_counters cached = of.fs->counters();
  expect_rows(batch, *of.file, layout, file_nbytes, numbers, false);
  EXPECT_EQ(of.fs->counters().hits, cached.hits + 2 * nrows);
  EXPECT_EQ(of.fs->counters().faults, cached.faults);
  // Some again, and one that the file does not have.
  numbers.insert(numbers.begin() + 30, {7, 7, nrows, 59});
  expect_rows(batch, *of.file, layout, file_nbytes, numbers, true);
}

TEST(row_batch_admits, a_row_that_one_batch_has_twice) {
  constexpr std::uint32_t page = 512, nframes = 16;
  subject of(reading::pulled, 64 * page, page, nframes);
  row_batch batch(*of.fs, 1024, unsorted);
  const row_layout layout{.row_nbytes = page, .nrows = 64};
  expect_rows(batch, *of.file, layout, 64 * page, up_to(nframes), false);  // full
  std::vector<std::int64_t> numbers = up_to(64);
  numbers.push_back(40);
  expect_rows(batch, *of.file, layout, 64 * page, numbers, false);
  const mount_counters counted = of.fs->counters();
  EXPECT_GT(counted.faults, nframes);
  EXPECT_LE(counted.faults, nframes + 4u) << "what was evicted ahead is free for others";
  expect_rows(batch, *of.file, layout, 64 * page, {40}, false);
  EXPECT_EQ(of.fs->counters().hits, counted.hits + 1);
}

TEST(row_batch_admits, all_that_is_missed_where_a_measurement_says_so) {
  constexpr std::uint32_t page = 512, nframes = 64;
  subject of(reading::pulled, 4 * nframes * page, page, nframes);
  par::forms.admits_all = true;
  row_batch batch(*of.fs, 1024, unsorted);
  par::forms = {};
  const row_layout layout{.row_nbytes = page, .nrows = 4 * nframes};
  expect_rows(batch, *of.file, layout, 4 * nframes * page, up_to(4 * nframes), false);
  EXPECT_GT(of.fs->counters().faults, 2 * nframes) << "a frame is but a wish";
  EXPECT_GT(of.fs->counters().evictions, nframes);
}

TEST(row_batch_admits, no_page_for_a_small_part_of_it_at_first) {
  constexpr std::uint32_t page = 4096;
  subject of(reading::pulled, 64 * page, page, 64);
  row_batch batch(*of.fs, 1024, unsorted);
  const row_layout layout{.row_nbytes = page / 16, .nrows = 1024, .stride_nbytes = page / 16};
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 64; ++i) numbers.push_back(16 * i + i % 16);
  expect_rows(batch, *of.file, layout, 64 * page, numbers, false);
  EXPECT_EQ(of.fs->counters().faults, 0u) << "though all frames are free";
  expect_rows(batch, *of.file, layout, 64 * page, numbers, false);
  EXPECT_GT(of.fs->counters().faults, 10u) << "those that kept their word of the touched pages";
}

// Pages that share a word of the touched pages take turns.
TEST(row_batch_admits, all_pages_of_a_batch_that_comes_again_and_again) {
  constexpr std::uint32_t page = 512, nframes = 128, npages = 96;
  constexpr int shared_by_at_most = 8;  // of 96 pages in 128 words
  subject of(reading::pulled, npages * page, page, nframes);
  row_batch batch(*of.fs, 1024, unsorted);
  const row_layout layout{.row_nbytes = 32, .nrows = npages, .stride_nbytes = page};
  for (int round = 0; round < 2 * shared_by_at_most; ++round)
    expect_rows(batch, *of.file, layout, npages * page, up_to(npages), false);
  const mount_counters before = of.fs->counters();
  expect_rows(batch, *of.file, layout, npages * page, up_to(npages), false);
  EXPECT_EQ(of.fs->counters().hits - before.hits, npages);
}

// What host threads read comes by rows, until a page is wanted again.
TEST(row_batch_admits, no_page_that_the_host_reads_before_its_second_use) {
  constexpr std::uint32_t page = 4096, row = 512, nrows = 512;
  for (const reading how : {reading::staged, reading::staged_in_memory}) {
    subject of(how, nrows * row, page, 64);
    row_batch batch(*of.fs, 1024, unsorted);
    const row_layout layout{.row_nbytes = row, .nrows = nrows};
    std::vector<std::int64_t> numbers;
    for (int i = 1; i < 64; ++i) numbers.push_back(8 * i + i % 8);  // one a page; the first page has come along with the open
    const mount_counters before = of.fs->counters();
    expect_rows(batch, *of.file, layout, nrows * row, numbers, false);
    const mount_counters once = of.fs->counters();
    EXPECT_EQ(once.faults, before.faults) << "though all frames are free";
    EXPECT_EQ(once.bytes_read - before.bytes_read, 63u * row);
    expect_rows(batch, *of.file, layout, nrows * row, numbers, false);
    const mount_counters twice = of.fs->counters();
    EXPECT_GT(twice.faults, once.faults + 10) << "those that kept their word of the touched pages";
    expect_rows(batch, *of.file, layout, nrows * row, numbers, false);
    EXPECT_GT(of.fs->counters().hits, twice.hits + 10);
  }
}

// A frame is but a wish of a batch.
TEST(row_batch_reads, past_a_cache_whose_frames_are_all_pinned) {
  constexpr std::uint32_t page = 512, nframes = 8;
  subject of(reading::pulled, 64 * page, page, nframes, std::chrono::seconds(20));
  const device_buffer<mapped_page_handle> pages(nframes);
  simt::launch({.grid = 1, .block = 32}, map_first_pages{of.file->ref(), nframes, page, pages.get()});
  row_batch batch(*of.fs, 1024, unsorted);
  const row_layout layout{.row_nbytes = page, .nrows = 64};
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) expect_rows(batch, *of.file, layout, 64 * page, up_to(64), false);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "waits for no frame";
  simt::launch({.grid = 1, .block = 32}, unmap_pages{nframes, pages.get()});
}

// Groups that share a page whose fill fails see that it has, and not what the frame had before. (A race: some rounds meet it.)
TEST(row_batch_reads, nothing_of_a_page_whose_fill_has_failed) {
  const temp_dir dir;
  constexpr std::uint32_t page = 512, row = 4, rows_a_page = page / row;
  dir.add("good", 64 * page, 1);
  dir.add("bad", 64 * page, 2);
  const auto store = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path()));
  mount_options o;
  o.page_nbytes = page;
  o.cache_nbytes = 8 * page;
  o.max_open_files = 16;
  o.nworkers = 2;
  o.custom_store = store;
  const mount fs(dir.path(), o);
  const host_file good(fs, "good"), bad(fs, "bad");
  row_batch batch(fs, 200, unsorted);
  const row_layout layout{.row_nbytes = row, .nrows = 64 * rows_a_page};
  const auto page_of = [&](const host_file& file, std::int64_t number) {
    std::vector<std::int64_t> numbers = up_to(rows_a_page);
    for (std::int64_t& each : numbers) each += number * rows_a_page;
    return gather<std::int64_t>(batch, file, layout, numbers);
  };
  for (int i = 0; i < 64; ++i) page_of(good, i);
  EXPECT_EQ(batch.failure().error, 0);
  store->wrong().fail_every = 1;
  for (int round = 0; round < (under_tsan ? 10 : 100); ++round) {
    EXPECT_EQ(page_of(bad, 5 + round % 50), std::vector<std::byte>(page));
    EXPECT_EQ(batch.failure().error, -EIO);
  }
}

// A store of which a test says what goes wrong.
struct faulty_subject {
  temp_dir dir;
  std::shared_ptr<faulty_store> store;
  std::unique_ptr<mount> fs;
  std::unique_ptr<host_file> file;

  explicit faulty_subject(std::uint64_t nbytes, std::chrono::nanoseconds io_timeout = std::chrono::seconds(60)) {
    dir.add("rows", nbytes, seed);
    store = std::make_shared<faulty_store>(std::make_shared<store::posix_store>(dir.path()));
    mount_options o;
    o.page_nbytes = 512;
    o.cache_nbytes = 64 * 512;
    o.max_open_files = 16;
    o.nworkers = 2;
    o.io_timeout = io_timeout;
    o.custom_store = store;
    fs = std::make_unique<mount>(dir.path(), o);
    file = std::make_unique<host_file>(*fs, "rows");
  }
};

TEST(row_batch_of, rows_that_the_host_cannot_read_is_zeros_for_these) {
  constexpr std::uint64_t row = 100, nrows = 2000;
  faulty_subject of(row * nrows);
  of.store->wrong().fail_at(row * 700 + 99, row * 701 + 1);  // two of them
  row_batch batch(*of.fs, nrows, unsorted);
  std::vector<std::byte> want = content(seed, 0, row * nrows);
  std::fill_n(want.begin() + row * 700, 2 * row, std::byte{0});
  const mount_counters before = of.fs->counters();
  const auto got = gather<std::int64_t>(batch, *of.file, {.row_nbytes = row, .nrows = nrows}, up_to(nrows));
  EXPECT_TRUE(got == want);
  const row_failure failed = batch.failure();
  EXPECT_EQ(failed.error, -EIO);
  EXPECT_EQ(failed.place, 700u);
  const mount_counters after = of.fs->counters();
  EXPECT_EQ(after.bytes_read - before.bytes_read, row * (nrows - 2));
  EXPECT_EQ(after.errors - before.errors, 2u);
}

// Kernels that end before the host has answered leave their slots to it; who comes later finds them again.
TEST(row_batch_of, rows_that_come_too_late_is_zeros_and_the_next_one_is_right) {
  constexpr std::uint64_t row = 128, nrows = 3000;
  faulty_subject of(row * nrows, std::chrono::milliseconds(50));
  const row_layout layout{.row_nbytes = row, .nrows = nrows};
  for (int round = 0; round < 3; ++round) {
    row_batch batch(*of.fs, nrows, unsorted);
    of.store->wrong().read_gate.close();
    std::vector<std::int64_t> few = up_to(40);
    for (std::int64_t& number : few) number = 100 + 900 * round + number * 7;  // of pages that no earlier batch has touched
    const auto late = gather<std::int64_t>(batch, *of.file, layout, few);
    EXPECT_EQ(late, std::vector<std::byte>(few.size() * row));
    const row_failure failed = batch.failure();
    EXPECT_EQ(failed.error, -ETIMEDOUT);
    EXPECT_EQ(failed.place, 0u);
    EXPECT_GT(of.fs->counters().io_timeouts, 0u);
    of.store->wrong().read_gate.open();
    ASSERT_TRUE(wait_until([&] {
      row_batch again(*of.fs, nrows, unsorted);
      const auto got = gather<std::int64_t>(again, *of.file, layout, few);
      if (again.failure().error != 0) return false;  // what came too late is still being read
      const expected_rows want = expect(layout, row * nrows, few);
      EXPECT_TRUE(got == want.bytes);
      return true;
    }));
  }
}

TEST(row_batch_of, a_file_in_memory_that_is_cut_is_zeros_and_the_error) {
  constexpr std::uint64_t row = 512, nrows = 640;
  subject of(reading::staged_in_memory, row * nrows, 4096, 16);
  const row_layout layout{.row_nbytes = row, .nrows = nrows};
  row_batch batch(*of.fs, nrows, unsorted);
  std::vector<std::int64_t> numbers = up_to(nrows);
  numbers.erase(numbers.begin(), numbers.begin() + 8);  // the page that has come along with the open
  expect_rows(batch, *of.file, layout, row * nrows, numbers, false);
  of.dir.resize("rows", 4096 * 3);
  const auto got = gather<std::int64_t>(batch, *of.file, layout, numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto here = got.begin() + static_cast<std::ptrdiff_t>(i * row);
    const auto old = content(seed, static_cast<std::uint64_t>(numbers[i]) * row, row);
    EXPECT_TRUE(std::all_of(here, here + row, [](std::byte b) { return b == std::byte{0}; }) ||
                std::equal(old.begin(), old.end(), here))
        << "only the cache may have some still: " << i;
  }
  EXPECT_EQ(batch.failure().error, -ESTALE);
}

TEST(row_batch_of, more_rows_than_a_block_sorts) {
  constexpr std::uint64_t nrows = 3000, n = GPUFS_ON_CUDA ? 200'000 : 9000;
  subject of(reading::pulled, nrows * 8, 4096, 2);
  row_batch batch(*of.fs);
  random_source draw(3);
  std::vector<std::int64_t> numbers(n);
  for (std::int64_t& number : numbers) number = static_cast<std::int64_t>(draw.below(nrows + 1));
  expect_rows(batch, *of.file, {.row_nbytes = 8, .nrows = nrows}, nrows * 8, numbers, true);
}

TEST(row_batch_reads, a_repeated_row_once) {
  constexpr std::uint32_t page = 512;
  subject of(reading::staged, 64 * page, page, 8);
  row_batch batch(*of.fs, 4096, unsorted);
  const row_layout layout{.row_nbytes = page, .nrows = 64};
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 500; ++i) numbers.push_back(i % 2 == 0 ? 7 : 50);
  const mount_counters before = of.fs->counters();
  expect_rows(batch, *of.file, layout, 64 * page, numbers, true);
  const mount_counters after = of.fs->counters();
  EXPECT_EQ(after.bytes_read - before.bytes_read, 2u * page);
  EXPECT_EQ(after.faults - before.faults, 2u);
}

TEST(row_batch_of, a_file_that_is_not_open_or_has_changed_is_zeros_and_the_error) {
  constexpr std::uint64_t nbytes = 64 * 512;
  subject of(reading::by_windows, nbytes, 512, 64);
  row_batch batch(*of.fs, 100, unsorted);
  const row_layout layout{.row_nbytes = 512, .nrows = 64};
  of.dir.resize("rows", 0);
  std::vector<std::int64_t> uncached = up_to(64);
  uncached.erase(uncached.begin());  // it has come along with the open
  const auto cut = gather<std::int64_t>(batch, *of.file, layout, uncached);
  EXPECT_EQ(cut, std::vector<std::byte>(nbytes - 512));
  EXPECT_EQ(batch.failure().error, -ESTALE);
  EXPECT_EQ(batch.failure().error, 0) << "it was told";
  of.file->close();
  const auto closed = gather<std::int64_t>(batch, *of.file, layout, up_to(64));
  EXPECT_EQ(closed, std::vector<std::byte>(nbytes));
  const row_failure failed = batch.failure();
  EXPECT_EQ(failed.error, -EBADF);
  EXPECT_EQ(failed.place, 0u);
}

// Rows that the device pulls itself, of a version that has ended meanwhile.
TEST(row_batch_of, a_version_that_has_ended_gives_no_row_that_is_pulled) {
  constexpr std::uint64_t row = 16, nrows = 4096, nframes = 8;
  subject of(reading::by_windows, nrows * row, 4096, nframes);
  of.fs->prepare("rows");
  const row_layout layout{.row_nbytes = row, .nrows = nrows};
  const std::vector<std::int64_t> numbers = up_to(nrows);
  const std::vector<std::byte> old = content(seed, 0, nrows * row);
  EXPECT_TRUE(wait_until([&] {
    row_batch batch(*of.fs, nrows, unsorted);
    const std::uint64_t before = of.fs->counters().host_reads;
    EXPECT_EQ(gather<std::int64_t>(batch, *of.file, layout, numbers), old);
    return of.fs->counters().host_reads == before;
  })) << "the device pulls them";
  of.dir.overwrite("rows", 0, nrows * row, seed + 1);
  EXPECT_TRUE(is_told_of_end(*of.file));
  row_batch batch(*of.fs, nrows, unsorted);
  const auto got = gather<std::int64_t>(batch, *of.file, layout, numbers);
  std::vector<std::uint64_t> lost;
  for (std::uint64_t i = 0; i < nrows; ++i) {
    const auto here = got.begin() + static_cast<std::ptrdiff_t>(i * row);
    if (std::equal(here, here + row, old.begin() + static_cast<std::ptrdiff_t>(i * row))) continue;
    EXPECT_TRUE(std::all_of(here, here + row, [](std::byte b) { return b == std::byte{0}; })) << i;
    lost.push_back(i);
  }
  ASSERT_GE(lost.size(), nrows - nframes * 4096 / row) << "the cache has some pages of the version";
  const row_failure failed = batch.failure();
  EXPECT_EQ(failed.error, -ESTALE);
  EXPECT_EQ(failed.place, lost[0]);
}

TEST(row_batch_of, a_version_that_has_ended_fills_no_page) {
  constexpr std::uint64_t row = 4096, nrows = 64;
  subject of(reading::by_windows, nrows * row, 4096, 2 * nrows);
  of.fs->prepare("rows");
  const row_layout layout{.row_nbytes = row, .nrows = nrows};
  const std::vector<std::int64_t> numbers = up_to(nrows / 2), others(numbers.rbegin(), numbers.rend());
  std::vector<std::int64_t> rest;
  for (const std::int64_t i : numbers) rest.push_back(i + static_cast<std::int64_t>(nrows / 2));
  row_batch batch(*of.fs, nrows, unsorted);
  expect_rows(batch, *of.file, layout, nrows * row, numbers, false);
  expect_rows(batch, *of.file, layout, nrows * row, others, false);
  const std::uint64_t filled = of.fs->counters().faults;
  // A lane that does not get a bucket's lock at once fills no page: it waits for no other one.
  EXPECT_GT(filled, nrows / 4);
  EXPECT_LE(filled, nrows / 2);
  of.dir.overwrite("rows", 0, nrows * row, seed + 1);
  EXPECT_TRUE(is_told_of_end(*of.file));
  const auto got = gather<std::int64_t>(batch, *of.file, layout, rest);
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(batch.failure().error, -ESTALE);
  EXPECT_EQ(of.fs->counters().faults, filled);
}

// Against a model in memory: of equal numbers the last one is what the file has.
TEST(row_batch_scatters, the_last_of_equal_rows) {
  random_source draw(11);
  for (std::size_t trial = 0; trial < 3 * std::size(writings); ++trial) {
    SCOPED_TRACE(trial);
    const written how = writings[trial % std::size(writings)];
    const drawn_file drawn = draw_file(draw, how);
    written_file of(how, 20'000 + drawn.nbytes, drawn.page_nbytes, drawn.nframes);
    const std::uint64_t file_nbytes = of.nbytes;
    std::vector<std::byte> want = content(seed, 0, file_nbytes);
    row_batch batch(*of.fs, 1 + static_cast<std::uint32_t>(draw.below(100)), unsorted);
    for (std::uint64_t call = 0; call < 3; ++call) {
      row_layout layout;
      layout.row_nbytes = draw.percent(50) ? 1 + draw.below(700) : 16 * draw.between(1, 40);
      layout.begin = draw.below(100);
      layout.nrows = (file_nbytes - layout.begin) / layout.row_nbytes;
      const std::uint64_t n = draw.below(150);
      std::vector<std::int64_t> numbers(n);
      std::vector<std::byte> src = content(100 + trial * 3 + call, 0, n * layout.row_nbytes);
      row_failure wrong;
      for (std::uint64_t i = 0; i < n; ++i) {
        numbers[i] = static_cast<std::int64_t>(draw.below(layout.nrows / 3 + 1));
        if (draw.below(40) == 0) numbers[i] = -1;
        if (numbers[i] < 0) {
          if (wrong.error == 0) wrong = {-EDOM, i};
          continue;
        }
        std::copy_n(
            src.begin() + static_cast<std::ptrdiff_t>(i * layout.row_nbytes), layout.row_nbytes,
            want.begin() + static_cast<std::ptrdiff_t>(layout.begin + static_cast<std::uint64_t>(numbers[i]) * layout.row_nbytes));
      }
      const device_buffer<std::int64_t> on_device{std::span<const std::int64_t>(numbers)};
      const shifted_rows from(src, drawn_shift(draw));
      const simt::stream turns;
      batch.scatter(of.file->ref(), layout, on_device.get(), n, from.get(), turns);
      turns.wait();
      EXPECT_TRUE(from.read() == src);
      const row_failure failed = batch.failure();
      EXPECT_EQ(failed.error, wrong.error);
      EXPECT_EQ(failed.place, wrong.place);
    }
    of.file->close();
    EXPECT_TRUE(of.bytes() == want);
  }
}

TEST(row_batch_sees, what_was_written_and_is_not_in_the_file_yet) {
  constexpr std::uint64_t row = 300, nrows = 100;
  subject of(reading::being_written, row * nrows, 1024, 256);
  row_batch batch(*of.fs, 1000, unsorted);
  const row_layout layout{.row_nbytes = row, .nrows = nrows};
  const std::vector<std::byte> bytes = content(99, 0, row * nrows);
  const device_buffer<std::byte> src{std::span<const std::byte>(bytes)}, dst(row * nrows);
  const std::vector<std::int64_t> all = up_to(nrows);
  const device_buffer<std::int64_t> numbers{std::span<const std::int64_t>(all)};
  const simt::stream turns;
  batch.scatter(of.file->ref(), layout, numbers.get(), nrows, src.get(), turns);
  batch.gather(of.file->ref(), layout, numbers.get(), nrows, dst.get(), turns);
  turns.wait();
  EXPECT_EQ(batch.failure().error, 0);
  EXPECT_EQ(dst.read(), bytes);
  EXPECT_EQ(of.dir.read("rows"), content(seed, 0, row * nrows)) << "nothing has been written back yet";
}

TEST(row_batch_scatters, into_a_file_that_is_read_only_with_an_error) {
  subject of(reading::staged, 4096, 512, 8);
  row_batch batch(*of.fs, 10, unsorted);
  const device_buffer<std::int64_t> zero(3);
  const device_buffer<std::byte> src(3 * 512);
  const simt::stream turns;
  batch.scatter(of.file->ref(), {.row_nbytes = 512, .nrows = 8}, zero.get(), 3, src.get(), turns);
  turns.wait();
  EXPECT_EQ(batch.failure().error, -EBADF);
}

TEST(row_batch_refuses, layouts_that_no_file_can_have) {
  subject of(reading::staged, 4096, 512, 8);
  EXPECT_THROW(row_batch(*of.fs, 0), std::invalid_argument);
  row_batch batch(*of.fs, 10, unsorted);
  const device_buffer<std::int64_t> zero(1);
  const device_buffer<std::byte> dst(512);
  const simt::stream turns;
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const row_layout wrong[] = {
      {.row_nbytes = 512, .nrows = most / 512 + 1},
      {.row_nbytes = most + 1, .nrows = 1},
      {.row_nbytes = 1, .nrows = 1, .begin = most + 1},
      {.row_nbytes = 1, .nrows = most},
  };
  for (const row_layout& layout : wrong) {
    EXPECT_THROW(batch.gather(of.file->ref(), layout, zero.get(), 1, dst.get(), turns), std::invalid_argument);
    EXPECT_THROW(batch.scatter(of.file->ref(), layout, zero.get(), 1, dst.get(), turns), std::invalid_argument);
  }
  EXPECT_THROW(batch.gather(of.file->ref(), {.row_nbytes = 512, .nrows = 8}, zero.get(), most / 256, dst.get(), turns),
               std::invalid_argument);
  const row_layout overlapping{.row_nbytes = 512, .nrows = 8, .stride_nbytes = 100};
  EXPECT_THROW(batch.scatter(of.file->ref(), overlapping, zero.get(), 1, dst.get(), turns), std::invalid_argument);
  batch.gather(of.file->ref(), {.row_nbytes = 0, .nrows = 8}, zero.get(), 1, nullptr, turns);
  batch.gather(of.file->ref(), {.row_nbytes = 8, .nrows = 0}, zero.get(), 0, nullptr, turns);
  batch.gather(of.file->ref(), {.row_nbytes = 8, .nrows = 0}, zero.get(), 1, dst.get(), turns);
  turns.wait();
  EXPECT_EQ(batch.failure().error, -EDOM) << "of no rows";
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
