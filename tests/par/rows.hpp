// SPDX-License-Identifier: Apache-2.0
// What tests of batches share: a file by each source, or open for writing, what its rows are, and a cache whose frames are pinned.
#pragma once
#include "file/harness.hpp"
#include "file/writing.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/detail/read_row.hpp"
#include "gpufs/par/rows.hpp"
#include "gpufs/store/mem_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t seed = 5;
// How the file is read: by which source.
enum class reading { pulled, in_device, staged, staged_in_memory, by_windows, being_written };
inline constexpr reading readings[] = {reading::pulled,           reading::in_device,  reading::staged,
                                       reading::staged_in_memory, reading::by_windows, reading::being_written};

struct subject {
  temp_dir dir;
  std::unique_ptr<mount> fs;
  std::unique_ptr<host_file> file;

  subject(reading how, std::uint64_t file_nbytes, std::uint32_t page_nbytes, std::uint32_t nframes)
      : dir(how == reading::by_windows || how == reading::staged_in_memory ? memory_directory()
                                                                           : std::filesystem::temp_directory_path()) {
    dir.add("rows", file_nbytes, seed);
    let_file_times_pass();
    mount_options o;
    o.page_nbytes = page_nbytes;
    o.cache_nbytes = std::uint64_t{page_nbytes} * nframes;
    o.max_open_files = 16;
    o.nworkers = 4;
    o.writable = how == reading::being_written;
    if (how == reading::pulled || how == reading::in_device) {
      auto files =
          std::make_shared<store::mem_store>(simt::this_platform(), how == reading::pulled ? source_kind::pull : source_kind::mem);
      files->put("rows", content(seed, 0, file_nbytes));
      o.custom_store = files;
    } else if (how == reading::by_windows) {
      o.custom_store = mapping_store(dir.path());
    } else if (how == reading::staged || how == reading::staged_in_memory) {
      o.store = store_kind::posix;
    }
    fs = std::make_unique<mount>(dir.path(), o);
    file = std::make_unique<host_file>(*fs, "rows", how == reading::being_written ? O_RDWR : O_RDONLY);
  }
};

// A file that is open for writing: in memory, where rows that are written go past the cache, or not.
struct written_file {
  temp_dir dir;
  std::unique_ptr<mount> fs;
  std::unique_ptr<host_file> file;

  written_file(bool in_place, std::uint64_t file_nbytes, std::uint32_t page_nbytes, std::uint32_t nframes)
      : written_file(in_place, file_nbytes, writing_options(page_nbytes, nframes)) {}
  written_file(bool in_place, std::uint64_t file_nbytes, mount_options o)
      : dir(in_place ? memory_directory() : std::filesystem::temp_directory_path()) {
    dir.add("rows", file_nbytes, seed);
    let_file_times_pass();
    if (in_place) o.custom_store = mapping_store(dir.path());
    fs = std::make_unique<mount>(dir.path(), o);
    prepare_for_memcheck(*fs, "rows", O_RDWR);
    file = std::make_unique<host_file>(*fs, "rows", O_RDWR);
  }
};

// Row sizes, strides and beginnings as they come.
inline row_layout drawn_layout(random_source& draw, std::uint64_t file_nbytes) {
  row_layout layout;
  constexpr std::uint64_t sizes[] = {1, 3, 4, 16, 100, 128, 256, 257, 512, 1000, 2048, 5000};
  layout.row_nbytes = sizes[draw.below(std::size(sizes))];
  layout.begin = draw.below(2) == 0 ? 0 : draw.below(300);
  layout.stride_nbytes = draw.below(2) == 0 ? 0 : 1 + draw.below(layout.row_nbytes + 40);  // less than a row: they overlap
  layout.nrows = file_nbytes / std::max(layout.stride_nbytes, layout.row_nbytes) + draw.below(3);
  layout.from_end = draw.below(2) == 0;
  return layout;
}

// n numbers, of which some repeat. wrong: some name no row.
inline std::vector<std::int64_t> drawn_numbers(random_source& draw, const row_layout& layout, std::uint64_t n, bool wrong) {
  std::vector<std::int64_t> numbers(n);
  for (std::int64_t& number : numbers) {
    if (wrong && draw.below(10) == 0) {
      number = draw.below(2) == 0 ? -1 - static_cast<std::int64_t>(draw.below(5))
                                  : static_cast<std::int64_t>(layout.nrows + draw.below(100));
    } else {
      number =
          static_cast<std::int64_t>(draw.below(std::max<std::uint64_t>(1, draw.below(2) == 0 ? layout.nrows : layout.nrows / 8)));
    }
  }
  return numbers;
}

// How far from a multiple of 16 rows are in memory, in bytes: half of them not at all, which is the way of aligned copies.
inline constexpr std::uint64_t most_shift = 16;
inline std::uint64_t drawn_shift(random_source& draw) {
  if (draw.percent(50)) return 0;
  return draw.percent(50) ? std::uint64_t{1} << draw.below(5) : draw.below(most_shift + 1);
}

// Rows in device memory that begin `shift` bytes behind an allocation's begin. Whoever reads them back also finds the bytes before
// and behind them as they were. Rows that are not shifted, or most, end where the allocation does, whose end checkers of memory
// see.
class shifted_rows {
 public:
  shifted_rows(const std::vector<std::byte>& rows, std::uint64_t shift)
      : shift_(shift), nbytes_(rows.size()), all_(rows.size() + (shift == 0 ? 0 : most_shift)) {
    std::vector<std::byte> bytes(all_.size(), around);
    std::copy(rows.begin(), rows.end(), bytes.begin() + begin());
    all_.write(bytes);
  }

  std::byte* get() const { return all_.get() + shift_; }
  std::vector<std::byte> read() const {
    const std::vector<std::byte> bytes = all_.read();
    const auto rows = bytes.begin() + begin(), end = rows + static_cast<std::ptrdiff_t>(nbytes_);
    const auto is_as_it_was = [](std::byte b) { return b == around; };
    EXPECT_TRUE(std::all_of(bytes.begin(), rows, is_as_it_was)) << "before rows that are shifted by " << shift_;
    EXPECT_TRUE(std::all_of(end, bytes.end(), is_as_it_was)) << "behind rows that are shifted by " << shift_;
    return {rows, end};
  }

 private:
  static constexpr std::byte around{0x3c};

  std::ptrdiff_t begin() const { return static_cast<std::ptrdiff_t>(shift_); }

  std::uint64_t shift_, nbytes_;
  device_buffer<std::byte> all_;
};

// What a batch must give.
struct expected_rows {
  std::vector<std::byte> bytes;
  row_failure failure;
};
inline expected_rows expect(const row_layout& layout, std::uint64_t file_nbytes, const std::vector<std::int64_t>& numbers) {
  expected_rows want{std::vector<std::byte>(numbers.size() * layout.row_nbytes), {}};
  const std::uint64_t stride = layout.stride_nbytes != 0 ? layout.stride_nbytes : layout.row_nbytes;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::int64_t number = numbers[i];
    if (number < 0 && layout.from_end) number += static_cast<std::int64_t>(layout.nrows);
    const bool is_row = number >= 0 && static_cast<std::uint64_t>(number) < layout.nrows;
    const std::uint64_t offset = layout.begin + static_cast<std::uint64_t>(number) * stride;
    if (!is_row || offset + layout.row_nbytes > file_nbytes) {
      if (want.failure.error == 0) want.failure = {is_row ? -ENXIO : -EDOM, i};
      continue;
    }
    for (std::uint64_t k = 0; k < layout.row_nbytes; ++k) {
      want.bytes[i * layout.row_nbytes + k] = content_byte(seed, offset + k);
    }
  }
  return want;
}

inline std::string name_of_reading(const ::testing::TestParamInfo<reading>& p) {
  constexpr const char* names[] = {"pulled", "in_device", "staged", "staged_in_memory", "by_windows", "being_written"};
  return names[static_cast<int>(p.param)];
}

// All rows of a file of whole pages, by pages.
inline std::vector<std::int64_t> up_to(std::int64_t n) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) numbers[static_cast<std::size_t>(i)] = i;
  return numbers;
}

struct look_at_version {
  file of;
  int* error;

  GPUFS_DEVICE void operator()() const {
    if (this_warp().leader()) *error = detail::end_of_version(detail::file_pages(of));
  }
};
// Waits until the watch has seen that the file has changed, and the device has been told, which is later.
inline bool is_told_of_end(const host_file& of) {
  const device_buffer<int> error(1);
  return wait_until([&] {
    simt::launch({.grid = 1, .block = 32}, look_at_version{of.ref(), error.get()});
    return error.read_one() == -ESTALE;
  });
}

using mapped_page_handle = page_handle<const std::byte>;

struct map_first_pages {
  file of;
  std::uint32_t npages, page_nbytes;
  mapped_page_handle* pages;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    for (std::uint32_t i = 0; i < npages; ++i) {
      mapped_page<> mapped = map_page(warp, of, std::int64_t{i} * page_nbytes);
      const mapped_page_handle handle = mapped.release();
      if (warp.leader()) pages[i] = handle;
    }
  }
};
struct unmap_pages {
  std::uint32_t npages;
  const mapped_page_handle* pages;

  GPUFS_DEVICE void operator()() const {
    for (std::uint32_t i = 0; i < npages; ++i) unmap_page(this_warp(), mapped_page<>(pages[i]));
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
