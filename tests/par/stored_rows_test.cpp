// SPDX-License-Identifier: Apache-2.0
// Rows that batches write into files that the device writes in place: past the cache, beside all that uses the same pages.
#include <sys/stat.h>

#include <algorithm>

#include "file/schedules.hpp"
#include "file/script.hpp"
#include "gpufs/par/detail/store_rows.hpp"
#include "gpufs/par/row_batch.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t unsorted = 16;

class stored_rows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  }
  mount_options options(std::uint32_t page_nbytes, std::uint32_t nframes) const {
    mount_options o = writing_options(page_nbytes, nframes);
    o.custom_store = mapping_store(dir_.path());
    return o;
  }

  temp_dir dir_{memory_directory()};
};

void scatter(row_batch& batch, const host_file& to, const row_layout& layout, const std::vector<std::int64_t>& numbers,
             const std::vector<std::byte>& rows) {
  const device_buffer<std::int64_t> on_device{std::span<const std::int64_t>(numbers)};
  const device_buffer<std::byte> from{std::span<const std::byte>(rows)};
  const simt::stream turns;
  batch.scatter(to.ref(), layout, on_device.get(), numbers.size(), from.get(), turns);
  turns.wait();
}

// What the file is to have after that.
void put(std::vector<std::byte>& file, const row_layout& layout, const std::vector<std::int64_t>& numbers,
         const std::vector<std::byte>& rows) {
  const std::uint64_t stride = layout.stride_nbytes != 0 ? layout.stride_nbytes : layout.row_nbytes;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint64_t at = layout.begin + static_cast<std::uint64_t>(numbers[i]) * stride;
    if (file.size() < at + layout.row_nbytes) file.resize(at + layout.row_nbytes);
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(i * layout.row_nbytes), layout.row_nbytes,
                file.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

std::uint64_t mtime_ns(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) fail_errno("stat " + path);
  return static_cast<std::uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(st.st_mtim.tv_nsec);
}

TEST_F(stored_rows, take_no_frame) {
  constexpr std::uint32_t page = 4096;
  constexpr std::uint64_t nbytes = 40 * page;
  for (const std::uint64_t row : {16, 100, 512, 3000, 4096}) {
    SCOPED_TRACE(row);
    dir_.add("file", nbytes, 1);
    std::vector<std::byte> wanted = content(1, 0, nbytes);
    const mount fs(dir_.path(), options(page, 8));
    prepare_for_memcheck(fs, "file", O_RDWR);
    host_file file(fs, "file", O_RDWR);
    EXPECT_EQ(fs.open_files()[0].reason.rfind("live: ", 0), 0u) << fs.open_files()[0].reason;
    row_batch batch(fs, 1000, unsorted);
    const row_layout layout{.row_nbytes = row, .nrows = nbytes / row};
    std::vector<std::int64_t> numbers;
    for (std::uint64_t i = 0; i < layout.nrows; i += 3) numbers.push_back(static_cast<std::int64_t>(i * 7 % layout.nrows));
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    std::reverse(numbers.begin(), numbers.end());
    const auto rows = content(2, 0, numbers.size() * row);
    put(wanted, layout, numbers, rows);
    let_file_times_pass();
    const std::uint64_t before = mtime_ns(dir_ / "file");
    scatter(batch, file, layout, numbers, rows);
    EXPECT_EQ(batch.failure().error, 0);
    const mount_counters counted = fs.counters();
    EXPECT_EQ(counted.faults, 0u);
    EXPECT_EQ(counted.unwritten_pages, 0u);
    EXPECT_EQ(counted.bytes_written, numbers.size() * row);
    EXPECT_EQ(counted.bytes_written_back, numbers.size() * row);
    EXPECT_EQ(counted.write_backs, numbers.size());
    file.close();
    EXPECT_EQ(dir_.read("file"), wanted);
    EXPECT_GT(mtime_ns(dir_ / "file"), before) << "other mounts would not see the change";
  }
}

// What was written to a cached page before may be on its way to the file, and must not come after the row.
TEST_F(stored_rows, of_cached_pages_go_back_with_them) {
  constexpr std::uint32_t page = 4096, row = 512;
  dir_.add("file", 4 * page, 1);
  const mount fs(dir_.path(), options(page, 8));
  prepare_for_memcheck(fs, "file", O_RDWR);
  host_file file(fs, "file", O_RDWR);
  players groups(fs.ref(), {});
  script s;
  s.open(0, "file", O_RDWR);
  s.pread(0, 1, page);
  groups.run(s);
  row_batch batch(fs, 1000, unsorted);
  const row_layout layout{.row_nbytes = row, .nrows = 32, .begin = 100};
  // Of page 1, of page 2, and of both.
  const std::vector<std::int64_t> numbers = {9, 17, 15};
  const auto rows = content(2, 0, 3 * row);
  auto wanted = content(1, 0, 4 * page), so_far = wanted;
  put(wanted, layout, numbers, rows);
  put(so_far, layout, {17}, {rows.begin() + row, rows.begin() + 2 * row});
  scatter(batch, file, layout, numbers, rows);
  EXPECT_EQ(dir_.read("file"), so_far);
  script t;
  const auto read = t.pread(0, 4 * page, 0);
  t.close(0);
  EXPECT_EQ(groups.run(t)[read].bytes, wanted);
  file.close();
  EXPECT_EQ(dir_.read("file"), wanted);
}

// All that may have the file's pages otherwise, one call after another, against a model in memory.
TEST_F(stored_rows, among_other_calls) {
  const seed_range seeds = seeds_to_run(fewer(20));
  for (std::uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    SCOPED_TRACE(seed);
    random_source draw(seed);
    const std::uint32_t page = 512u << draw.below(4);
    std::vector<std::byte> model = content(seed, 0, 1 + draw.below(60'000));
    dir_.add("file", model.size(), seed);
    const mount fs(dir_.path(), options(page, 4 + static_cast<std::uint32_t>(draw.below(20))));
    prepare_for_memcheck(fs, "file", O_RDWR);
    const int flags = draw.percent(20) ? O_GWRONCE : O_RDWR;
    const bool reads = flags == O_RDWR;
    host_file file(fs, "file", flags);
    players groups(fs.ref(), {});
    script open;
    open.open(0, "file", flags);
    groups.run(open);
    row_batch batch(fs, 1 + static_cast<std::uint32_t>(draw.below(100)), unsorted);
    for (std::uint64_t call = 0; call < 20; ++call) {
      const std::uint64_t what = draw.below(10);
      if (what < 5) {
        row_layout layout;
        constexpr std::uint64_t sizes[] = {1, 3, 16, 100, 128, 256, 257, 512, 1000, 2048, 5000};
        layout.row_nbytes = sizes[draw.below(std::size(sizes))];
        layout.begin = draw.percent(50) ? 0 : draw.below(300);
        layout.stride_nbytes = draw.percent(50) ? 0 : layout.row_nbytes + draw.below(40);
        layout.nrows = 1 + draw.below(model.size()) / layout.row_nbytes + draw.below(3);  // the file may grow
        std::vector<std::int64_t> numbers(draw.below(120));
        for (std::int64_t& number : numbers) number = static_cast<std::int64_t>(draw.below(layout.nrows));
        const auto rows = content(seed * 100 + call, 0, numbers.size() * layout.row_nbytes);
        scatter(batch, file, layout, numbers, rows);
        put(model, layout, numbers, rows);
        EXPECT_EQ(batch.failure().error, 0);
        continue;
      }
      script s;
      const std::uint64_t at = draw.below(model.size() + 1), n = draw.below(3 * page);
      std::size_t read = ~std::size_t{0};
      if (what == 5 && reads) {
        read = s.pread(0, model.size(), 0);
      } else if (what == 6) {
        const auto bytes = content(seed * 100 + call, at, n);
        s.pwrite(0, bytes, static_cast<std::int64_t>(at));
        if (n != 0 && model.size() < at + n) model.resize(at + n);
        std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<std::ptrdiff_t>(at));
      } else if (what == 7) {
        s.fsync(0, durability::page_cache);
      } else if (what == 8) {
        s.ftruncate(0, static_cast<std::int64_t>(draw.percent(50) ? at : model.size() + n));
        model.resize(static_cast<std::size_t>(s.ops()[0].offset));
        if (model.empty()) {
          s.pwrite(0, {std::byte{1}}, 0);
          model.push_back(std::byte{1});
        }
      } else if (reads && at < model.size()) {
        const std::uint64_t end = std::min<std::uint64_t>(model.size(), (at / page + 1) * page);
        const auto bytes = content(seed * 100 + call, at, std::min<std::uint64_t>(end - at, 20));
        s.map_write(0, 0, static_cast<std::int64_t>(at));
        s.store(0, bytes, 0);
        s.unmap_write(0);
        std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<std::ptrdiff_t>(at));
      }
      const auto got = groups.run(s);
      for (const auto& r : got) EXPECT_GE(r.value, 0);
      if (read == 0) {
        EXPECT_EQ(got[0].bytes, model);
      }
      if (what == 7) {
        EXPECT_EQ(dir_.read("file"), model);
      }
    }
    script s;
    if (reads) s.pread(0, model.size(), 0);
    s.close(0);
    const auto got = groups.run(s);
    if (reads) {
      EXPECT_EQ(got[0].bytes, model);
    }
    file.close();
    EXPECT_EQ(dir_.read("file"), model);
    if (HasFailure()) return;
  }
}

// --- At once -------------------------------------------------------------------------------------------------------------------

constexpr std::uint32_t race_page = 512, race_row = 32, rows_a_page = race_page / race_row;

// Warps that write each its own rows of all pages, by batches and by pwrite, that sync, read, and, `whole`, write one page whole.
// Of a page's 16 rows warp w has the one at 2 w.
struct race {
  file of;
  std::uint32_t npages, rounds;
  const std::byte* rows;  // of a round and a writer: npages of them, and one page
  std::uint64_t* wrong;   // rows that were not what this warp had written
  std::uint64_t* failures;
  bool whole;
  std::int64_t cut;  // the last warp cuts the file to it, if not negative

  GPUFS_HOST_DEVICE static constexpr std::uint64_t offset(std::uint64_t page, std::uint64_t writer) {
    return page * race_page + writer * 2 * race_row;
  }

  GPUFS_DEVICE void operator()() const {
    const simt::warp warp = simt::this_warp();
    const std::uint32_t me = simt::block_rank() * (simt::block_size() / 32) + simt::warp_rank();
    const auto fail = [&](unsigned, int) { simt::atomic_ref<std::uint64_t>(*failures).add_relaxed(1); };
    std::byte* const mine = simt::shared<buffers>().bytes[simt::warp_rank()];
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const std::byte* const from = rows + (std::uint64_t{round} * 8 + me) * (npages * race_row + race_page);
      if (me < 3 && round % 2 == 0) {  // by rows of a batch
        const detail::row_to_write row{from + warp.rank() * race_row, offset(warp.rank(), me), warp.rank() < npages};
        if (me == 0) {
          detail::write_rows<simt::tile<8>>(warp, of, row, race_row, fail);
        } else {
          detail::write_rows<simt::warp>(warp, of, row, race_row, fail);
        }
      } else if (me < 4) {
        for (std::uint32_t p = 0; p < npages; ++p) {
          const std::uint32_t page = (p + round) % npages;
          if (pwrite(warp, of, from + page * race_row, race_row, static_cast<std::int64_t>(offset(page, me))) != race_row)
            fail(0, 0);
        }
      } else if (whole && me == 4) {
        const std::int64_t at = static_cast<std::int64_t>(npages - 1) * race_page;
        if (pwrite(warp, of, from, race_page, at) != race_page) fail(0, 0);
      } else if (cut >= 0) {
        if (round == rounds / 2 && ftruncate(warp, of, cut) != 0) fail(0, 0);
        continue;
      } else if (me == 5) {
        if (fsync(warp, of, durability::page_cache) != 0) fail(0, 0);
      }
      if (under_tsan && cut >= 0) continue;  // to look at bytes that are being cut is a race
      // Each sees what it has written, at once, if nobody else writes there.
      for (std::uint32_t p = 0; p < npages; ++p) {
        if (pread(warp, of, mine, race_row, static_cast<std::int64_t>(offset(p, me))) != race_row) {
          if (cut < 0) fail(0, 0);
          continue;
        }
        const bool is_wrong = me < 4 && warp.any(mine[warp.rank()] != from[p * race_row + warp.rank()]);
        if (is_wrong && !(whole && p == npages - 1) && cut < 0 && warp.leader())
          simt::atomic_ref<std::uint64_t>(*wrong).add_relaxed(1);
        warp.sync();
      }
    }
  }

  struct buffers {
    alignas(16) std::byte bytes[8][race_row];
  };
};

class stored_rows_at_once : public stored_rows {
 protected:
  static constexpr std::uint32_t npages = 6, nwarps = 6, rounds = 5;

  // Runs a race in a cache of few frames, and compares what the mount then has with what the file has: `check` gets both.
  template <class Check>
  void run(std::uint64_t seed, bool whole, std::int64_t cut, Check check) {
    random_source draw(seed);
    dir_.add("file", npages * race_page, 1);
    const mount fs(dir_.path(), options(race_page, 2 + static_cast<std::uint32_t>(draw.below(5))));
    prepare_for_memcheck(fs, "file", O_RDWR);
    host_file file(fs, "file", O_RDWR);
    const auto rows = content(seed, 0, std::size_t{rounds} * 8 * (npages * race_row + race_page));
    const device_buffer<std::byte> on_device{std::span<const std::byte>(rows)};
    const device_buffer<std::uint64_t> wrong(1), failures(1);
    simt::launch_config config{.grid = 1, .block = 32 * nwarps};
    config.schedule.seed = seed;
    draw_policy(draw, config.schedule);
    simt::launch(config, race{file.ref(), npages, rounds, on_device.get(), wrong.get(), failures.get(), whole, cut});
    EXPECT_EQ(wrong.read_one(), 0u);
    EXPECT_EQ(failures.read_one(), 0u);
    players groups(fs.ref(), {});
    script s;
    s.open(0, "file", O_RDWR);
    const auto read = s.pread(0, npages * race_page, 0);
    s.close(0);
    const auto got = groups.run(s);
    std::vector<std::byte> seen = got[read].bytes;
    seen.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, got[read].value)));
    file.close();
    const auto last = [&](std::uint64_t writer, std::uint64_t page) {
      return rows.begin() +
             static_cast<std::ptrdiff_t>(((rounds - 1) * 8 + writer) * (npages * race_row + race_page) + page * race_row);
    };
    check(seen, dir_.read("file"), last);
  }
};

TEST_F(stored_rows_at_once, are_what_each_has_written_last) {
  const std::uint64_t n = schedules(120, 8);
  for (std::uint64_t seed = 1; seed <= n && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    run(seed, false, -1, [&](const auto& seen, const auto& in_file, const auto& last) {
      auto wanted = content(1, 0, npages * race_page);
      for (std::uint64_t p = 0; p < npages; ++p) {
        for (std::uint64_t w = 0; w < 4; ++w) {
          std::copy_n(last(w, p), race_row, wanted.begin() + static_cast<std::ptrdiff_t>(race::offset(p, w)));
        }
      }
      EXPECT_EQ(seen, wanted);
      EXPECT_EQ(in_file, wanted);
    });
  }
}

// Who writes the same byte gets one of the two, and the file has what the mount's readers see.
TEST_F(stored_rows_at_once, beside_whole_pages_are_the_same_for_all) {
  if (under_tsan) GTEST_SKIP() << "two write the same bytes, which is a race";
  const std::uint64_t n = schedules(120, 8);
  for (std::uint64_t seed = 1; seed <= n && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    run(seed, true, -1, [&](const auto& seen, const auto& in_file, const auto&) { EXPECT_EQ(seen, in_file); });
  }
}

// Rows beyond the end come after the cut, and let the file grow; those before it are there.
TEST_F(stored_rows_at_once, beside_a_cut_come_out_in_some_order) {
  const std::uint64_t n = schedules(120, 8);
  constexpr std::int64_t cut = 3 * race_page + 100;
  for (std::uint64_t seed = 1; seed <= n && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    run(seed, false, cut, [&](const auto& seen, const auto& in_file, const auto& last) {
      EXPECT_EQ(seen, in_file);
      EXPECT_GE(in_file.size(), static_cast<std::size_t>(cut));
      for (std::uint64_t p = 0; p < npages; ++p) {
        for (std::uint64_t w = 0; w < 4; ++w) {
          const std::uint64_t at = race::offset(p, w);
          if (at + race_row > in_file.size() ||
              (at < static_cast<std::uint64_t>(cut) && at + race_row > static_cast<std::uint64_t>(cut)))
            continue;
          const auto here = in_file.begin() + static_cast<std::ptrdiff_t>(at);
          const bool is_there = std::equal(here, here + race_row, last(w, p));
          const bool is_cut = at >= static_cast<std::uint64_t>(cut) &&
                              std::all_of(here, here + race_row, [](std::byte b) { return b == std::byte{0}; });
          EXPECT_TRUE(is_there || is_cut) << "writer " << w << ", page " << p;
        }
      }
    });
  }
}

// Two batches and a reader, in streams of their own: rows of one and the other by turns.
TEST_F(stored_rows_at_once, two_batches_share_each_page) {
  constexpr std::uint32_t page = 4096, row = 128;
  constexpr std::uint64_t nrows = GPUFS_ON_CUDA ? 200'000 : 2000;
  dir_.add("file", nrows * row, 1);
  const mount fs(dir_.path(), options(page, 16));
  prepare_for_memcheck(fs, "file", O_RDWR);
  host_file file(fs, "file", O_RDWR);
  const row_layout layout{.row_nbytes = row, .nrows = nrows};
  row_batch batches[] = {row_batch(fs, 1u << 20, unsorted), row_batch(fs, 1u << 20, unsorted), row_batch(fs, 1u << 20, unsorted)};
  std::vector<std::byte> wanted = content(1, 0, nrows * row);
  for (std::uint64_t round = 0; round < fewer(6); ++round) {
    const simt::stream turns[3];
    // Nobody writes each 50th row: it is read meanwhile, and its page comes into the cache between two writers of other rows.
    std::vector<std::int64_t> numbers[2], some;
    for (std::uint64_t i = 0; i < nrows; ++i) {
      const std::uint64_t row_number = (i * 7919 + round) % nrows;
      std::vector<std::int64_t>& to = row_number % 50 == 0 ? some : numbers[(i + round) % 2];
      to.push_back(static_cast<std::int64_t>(row_number));
    }
    const std::vector<std::byte> rows[2] = {content(10 + round, 0, numbers[0].size() * row),
                                            content(50 + round, 0, numbers[1].size() * row)};
    const device_buffer<std::int64_t> a{std::span<const std::int64_t>(numbers[0])}, b{std::span<const std::int64_t>(numbers[1])},
        c{std::span<const std::int64_t>(some)};
    const device_buffer<std::byte> from_a{std::span<const std::byte>(rows[0])}, from_b{std::span<const std::byte>(rows[1])},
        dst(some.size() * row), all(nrows * row);
    batches[2].gather(file.ref(), layout, c.get(), some.size(), dst.get(), turns[2]);
    batches[0].scatter(file.ref(), layout, a.get(), numbers[0].size(), from_a.get(), turns[0]);
    batches[1].scatter(file.ref(), layout, b.get(), numbers[1].size(), from_b.get(), turns[1]);
    for (const simt::stream& each : turns) each.wait();
    const std::vector<std::byte> read = dst.read();
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_TRUE(std::equal(&read[i * row], &read[i * row] + row, &wanted[static_cast<std::size_t>(some[i]) * row])) << some[i];
    }
    for (int i = 0; i < 2; ++i) {
      put(wanted, layout, numbers[i], rows[i]);
      EXPECT_EQ(batches[i].failure().error, 0);
    }
    std::vector<std::int64_t> each_row(nrows);
    for (std::uint64_t i = 0; i < nrows; ++i) each_row[i] = static_cast<std::int64_t>(i);
    const device_buffer<std::int64_t> d{std::span<const std::int64_t>(each_row)};
    batches[2].gather(file.ref(), layout, d.get(), nrows, all.get(), turns[2]);
    turns[2].wait();
    ASSERT_TRUE(all.read() == wanted) << round;
  }
  file.close();
  EXPECT_TRUE(dir_.read("file") == wanted);
}

// Pages of a file that is open with O_GWRONCE begin as zeros: a row that is not in one would be zeros for who maps it.
TEST_F(stored_rows, of_a_file_that_is_not_read_are_cached) {
  constexpr std::uint32_t page = 4096, row = 512;
  dir_.add("file", 4 * page, 1);
  const mount fs(dir_.path(), options(page, 8));
  prepare_for_memcheck(fs, "file", O_RDWR);
  host_file file(fs, "file", O_GWRONCE);
  players groups(fs.ref(), {});
  row_batch batch(fs, 1000, unsorted);
  scatter(batch, file, {.row_nbytes = row, .nrows = 32}, {9}, content(2, 0, row));
  script s;
  s.open(0, "file", O_GWRONCE);
  s.map_write(0, 0, page);
  s.store(0, std::vector<std::byte>(row), row);
  s.unmap_write(0);
  s.close(0);
  for (const auto& r : groups.run(s)) EXPECT_GE(r.value, 0);
  file.close();
  auto wanted = content(1, 0, 4 * page);
  std::fill_n(wanted.begin() + page + row, row, std::byte{0});
  EXPECT_EQ(dir_.read("file"), wanted);
}

// As stored_writes.a_file_cut_underneath.
TEST_F(stored_rows, of_a_file_that_somebody_has_cut_are_told) {
  expect_leftovers_but_pins("the file stays open");
  constexpr std::uint32_t page = 4096, row = 512;
  constexpr std::uint64_t nbytes = 16 * page;
  dir_.add("file", nbytes, 1);
  const mount fs(dir_.path(), options(page, 8));
  prepare_for_memcheck(fs, "file", O_RDWR);
  host_file file(fs, "file", O_RDWR);
  players groups(fs.ref(), {});
  script open;
  open.open(0, "file", O_RDWR);
  groups.run(open);
  row_batch batch(fs, 1000, unsorted);
  const row_layout layout{.row_nbytes = row, .nrows = nbytes / row};
  std::vector<std::int64_t> all(layout.nrows);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const auto sync = [&] {
    script s;
    s.fsync(0, durability::page_cache);
    return groups.run(s)[0].value;
  };
  scatter(batch, file, layout, all, content(2, 0, nbytes));
  EXPECT_EQ(sync(), 0);
  EXPECT_EQ(dir_.read("file"), content(2, 0, nbytes));
  dir_.resize("file", 0);
  dir_.resize("file", nbytes);
  scatter(batch, file, layout, all, content(3, 0, nbytes));
  const std::int64_t told = sync();
  EXPECT_TRUE(told == -EIO || (told == 0 && dir_.read("file") == content(3, 0, nbytes))) << told;
  batch.failure();
  scatter(batch, file, layout, all, content(4, 0, nbytes));
  EXPECT_EQ(batch.failure().error, 0);
  EXPECT_EQ(sync(), 0);
  EXPECT_EQ(dir_.read("file"), content(4, 0, nbytes));
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
