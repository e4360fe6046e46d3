// SPDX-License-Identifier: Apache-2.0
// Rows of a file whose readers have said how they read it: each byte once, or a little here and there.
#include "gpufs/par/gather.hpp"
#include "gpufs/par/row_batch.hpp"
#include "par/rows.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

struct advise_of {
  file of;
  advice what;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const int got = advise(this_warp(), of, 0, 0, what);
    if (this_warp().leader()) *error = got;
  }
};

// By each warp of a block half of them, or by the block.
struct gather_all {
  file of;
  row_layout layout;
  const std::int64_t* numbers;
  std::uint64_t n;
  std::byte* rows;
  bool by_block;
  int* errors;  // of each warp

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t warp = simt::warp_rank(), half = n / 2;
    const row_failure failed = by_block ? gather(this_block(), of, layout, numbers, n, rows)
                               : warp == 0
                                   ? gather(this_warp(), of, layout, numbers, half, rows)
                                   : gather(this_warp(), of, layout, numbers + half, n - half, rows + half * layout.row_nbytes);
    if (this_warp().leader()) errors[warp] = failed.error;
  }
};

// Each thread reads a little of some pages, each time of another sector: of page i, `step` sectors further than of the one before.
struct read_little {
  file of;
  std::uint64_t npages, page_nbytes, step, round;
  std::uint32_t* wrong;

  GPUFS_DEVICE void operator()() const {
    for (std::uint64_t i = simt::thread_rank(); i < npages; i += simt::block_size()) {
      const std::uint64_t at = i * page_nbytes + (i * step + round) * 128 % page_nbytes + 30;
      std::byte got[64];
      bool right = pread(this_thread(), of, got, sizeof got, static_cast<std::int64_t>(at)) == sizeof got;
      for (std::uint64_t k = 0; k < sizeof got; ++k) right &= got[k] == content_byte(seed, at + k);
      if (!right) simt::atomic_ref<std::uint32_t>(*wrong).add_relaxed(1);
    }
  }
};

// Who reads the rows: a kernel's warps, a kernel's block, or the host's batch.
enum class by { warps, block, batch };

struct advised_file : subject {
  std::uint64_t npages, page;

  advised_file(reading how, std::uint64_t pages, std::uint32_t page_nbytes, std::uint32_t nframes, advice what)
      : subject(how, pages * page_nbytes, page_nbytes, nframes), npages(pages), page(page_nbytes) {
    const device_buffer<int> error(1);
    simt::launch({.grid = 1, .block = 32}, advise_of{file->ref(), what, error.get()});
    EXPECT_EQ(error.read_one(), 0);
  }

  // All rows.
  void expect_rows(by who, const row_layout& layout) const {
    const std::vector<std::int64_t> all = up_to(static_cast<std::int64_t>(layout.nrows));
    const device_buffer<std::int64_t> numbers{std::span<const std::int64_t>(all)};
    const device_buffer<std::byte> rows(all.size() * layout.row_nbytes);
    if (who == by::batch) {
      const simt::stream turns;
      row_batch batch(*fs, 100, 16);
      batch.gather(file->ref(), layout, numbers.get(), all.size(), rows.get(), turns);
      turns.wait();
      EXPECT_EQ(batch.failure().error, 0);
    } else {
      const device_buffer<int> errors(2);
      simt::launch({.grid = 1, .block = 64},
                   gather_all{file->ref(), layout, numbers.get(), all.size(), rows.get(), who == by::block, errors.get()});
      EXPECT_EQ(errors.read(), std::vector<int>(2));
    }
    EXPECT_TRUE(rows.read() == expect(layout, npages * page, all).bytes);
  }
};

// Rows of whole pages, of a little of one, of parts of two, and one of all pages.
std::vector<row_layout> layouts_of(std::uint64_t npages, std::uint64_t page) {
  return {{.row_nbytes = page, .nrows = npages},
          {.row_nbytes = 64, .nrows = npages, .begin = page / 2, .stride_nbytes = page},
          {.row_nbytes = 100, .nrows = npages - 1, .begin = page - 50, .stride_nbytes = page},
          {.row_nbytes = npages * page, .nrows = 1}};
}

class advised_rows : public ::testing::TestWithParam<std::tuple<reading, by>> {};
std::string name_of(const ::testing::TestParamInfo<std::tuple<reading, by>>& p) {
  constexpr const char* names[] = {"warps", "block", "batch"};
  const auto [how, who] = p.param;
  return std::string(how == reading::pulled ? "pulled_by_" : "in_device_by_") + names[static_cast<int>(who)];
}
INSTANTIATE_TEST_SUITE_P(of, advised_rows,
                         ::testing::Combine(::testing::Values(reading::pulled, reading::in_device),
                                            ::testing::Values(by::warps, by::block, by::batch)),
                         name_of);

// Had nothing been said, they would get frames: large ones at once, as there are free ones; small ones the second time.
TEST_P(advised_rows, that_are_read_once_leave_no_trace) {
  const auto [how, who] = GetParam();
  constexpr std::uint32_t page = 512, nframes = 64, npages = nframes / 2;
  const advised_file of(how, npages, page, nframes, advice::noreuse);
  for (const row_layout& layout : layouts_of(npages, page)) {
    for (int round = 0; round < 3; ++round) of.expect_rows(who, layout);
  }
  const mount_counters c = of.fs->counters();
  EXPECT_EQ(c.hits, 0u);
  EXPECT_EQ(c.faults, 0u);
  EXPECT_EQ(c.evictions, 0u);
  EXPECT_EQ(c.free_frames, nframes);
  EXPECT_EQ(c.pins, 0u);
}

TEST_P(advised_rows, of_pages_in_part_are_the_files_bytes) {
  const auto [how, who] = GetParam();
  constexpr std::uint32_t page = 4096, npages = 48;
  for (const std::uint32_t nframes : {2 * npages, npages / 2}) {  // for all pages, or for those that were read last
    for (const row_layout& layout : layouts_of(npages, page)) {
      const advised_file of(how, npages, page, nframes, advice::random);
      const device_buffer<std::uint32_t> wrong(1);
      for (std::uint64_t round = 0; round < 3; ++round) {
        simt::launch({.grid = 1, .block = 64}, read_little{of.file->ref(), npages, page, 7, round, wrong.get()});
        if (round == 0) {
          const mount_counters c = of.fs->counters();
          EXPECT_EQ(c.faults, npages);
          EXPECT_EQ(c.bytes_filled, npages * 128u) << "a sector each";
        }
        of.expect_rows(who, layout);
      }
      EXPECT_EQ(wrong.read_one(), 0u);
      EXPECT_EQ(of.fs->counters().pins, 0u);
    }
  }
}

// Of the first sector, which is there, and of the next one, too, which is not.
TEST_P(advised_rows, come_from_sectors_that_are_there) {
  const auto [how, who] = GetParam();
  constexpr std::uint32_t page = 4096, npages = 48;
  const advised_file of(how, npages, page, 2 * npages, advice::random);
  const device_buffer<std::uint32_t> wrong(1);
  simt::launch({.grid = 1, .block = 64}, read_little{of.file->ref(), npages, page, 0, 0, wrong.get()});
  EXPECT_EQ(wrong.read_one(), 0u);
  const mount_counters before = of.fs->counters();
  of.expect_rows(who, {.row_nbytes = 64, .nrows = npages, .begin = 64, .stride_nbytes = page});
  const mount_counters there = of.fs->counters();
  EXPECT_EQ(there.hits - before.hits, npages);
  EXPECT_EQ(there.bytes_filled, before.bytes_filled);
  of.expect_rows(who, {.row_nbytes = 64, .nrows = npages, .begin = 65, .stride_nbytes = page});
  EXPECT_EQ(of.fs->counters().hits, there.hits);
  EXPECT_EQ(of.fs->counters().pins, 0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
