// SPDX-License-Identifier: Apache-2.0
// What tests of batches share: a file by each source, or open for writing, what its rows are, and a cache whose frames are pinned.
#pragma once
#include "file/harness.hpp"
#include "file/writing.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/par/detail/read_row.hpp"
#include "gpufs/par/rows.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/nvme_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t seed = 5;
// How the file is read: by which source, and whether the copy engine brings in pages of it.
enum class reading {
  pulled,
  in_device,
  staged,
  staged_in_memory,
  by_windows,
  being_written,
  from_controller,
  pulled_by_engine,
  windows_by_engine
};
inline constexpr reading readings[] = {reading::pulled,           reading::in_device,        reading::staged,
                                       reading::staged_in_memory, reading::by_windows,       reading::being_written,
                                       reading::from_controller,  reading::pulled_by_engine, reading::windows_by_engine};

// How a file that is open for writing is written. None of the other readings can be: memory (pulled, in_device) and stores without
// `writable` give -EROFS to an open that writes, and a file that is open for reading only gives -EBADF to who scatters. A file that
// is open for writing has no version, so that in a mount with a copy engine the lanes bring in its pages.
enum class written { by_the_host, in_place, in_place_beside_engine, to_controller };
inline constexpr written writings[] = {written::by_the_host, written::in_place, written::in_place_beside_engine,
                                       written::to_controller};

constexpr bool is_by_engine(reading how) { return how == reading::pulled_by_engine || how == reading::windows_by_engine; }
constexpr bool is_by_engine(written how) { return how == written::in_place_beside_engine; }
constexpr bool is_by_windows(reading how) { return how == reading::by_windows || how == reading::windows_by_engine; }
constexpr bool is_in_place(written how) { return how == written::in_place || how == written::in_place_beside_engine; }

// A file in a mount of its own.
struct mounted_rows {
  temp_dir dir;
  std::shared_ptr<nvme::soft_controller> controller;  // whose namespace the file is, if there is one
  std::string name = "rows";
  std::uint64_t nbytes;  // of the file: what was asked for, up to the end of a namespace's last block
  std::unique_ptr<mount> fs;
  std::unique_ptr<host_file> file;

  ~mounted_rows() {
    file.reset();
    fs.reset();
    if (controller == nullptr) return;
    EXPECT_EQ(controller->violations(), std::vector<std::string>{});
    EXPECT_EQ(controller->done().nmapped, 0u);
  }
  // What the file has now.
  std::vector<std::byte> bytes() const { return controller != nullptr ? controller->bytes() : dir.read(name); }

 protected:
  mounted_rows(bool in_memory, std::uint64_t file_nbytes)
      : dir(in_memory ? memory_directory() : std::filesystem::temp_directory_path()), nbytes(file_nbytes) {
    dir.add(name, nbytes, seed);
    let_file_times_pass();
  }

  // Blocks of 4 KiB, which are larger than some pages, or of 512 bytes: as the length comes.
  std::shared_ptr<store::store> make_controller(bool writable) {
    const std::uint32_t block_shift = nbytes % 2 == 0 ? 12 : 9;
    const std::uint64_t nblocks = (nbytes + (1u << block_shift) - 1) >> block_shift;
    controller = std::make_shared<nvme::soft_controller>(simt::this_platform(),
                                                         nvme::soft_options{.nblocks = nblocks, .block_shift = block_shift});
    name = "n1";
    nbytes = nblocks << block_shift;
    controller->write_image(0, content(seed, 0, nbytes));
    return std::make_shared<store::nvme_store>(
        simt::this_platform(), controller,
        nvme::controller_options{.nqueues = 2, .depth = 32, .buffer_nbytes = 8192, .writable = writable});
  }
  std::shared_ptr<store::store> make_memory(source_kind kind) {
    auto files = std::make_shared<store::mem_store>(simt::this_platform(), kind);
    files->put(name, content(seed, 0, nbytes));
    return files;
  }
  void open(const mount_options& options, int flags) {
    fs = std::make_unique<mount>(dir.path(), options);
    if (flags == O_RDWR) prepare_for_memcheck(*fs, name, flags);
    file = std::make_unique<host_file>(*fs, name, flags);
  }
};

struct subject : mounted_rows {
  subject(reading how, std::uint64_t file_nbytes, std::uint32_t page_nbytes, std::uint32_t nframes,
          std::chrono::nanoseconds frame_timeout = mount_options{}.frame_timeout)
      : mounted_rows(how == reading::staged_in_memory || is_by_windows(how) || is_by_engine(how), file_nbytes) {
    mount_options o;
    o.page_nbytes = page_nbytes;
    o.cache_nbytes = std::uint64_t{page_nbytes} * nframes;
    o.frame_timeout = frame_timeout;
    o.max_open_files = 16;
    o.nworkers = 4;
    o.writable = how == reading::being_written;
    o.copy_engine = is_by_engine(how);
    if (how == reading::pulled || how == reading::in_device) {
      o.custom_store = make_memory(how == reading::pulled ? source_kind::pull : source_kind::mem);
    } else if (is_by_windows(how)) {
      o.custom_store = mapping_store(dir.path());
    } else if (how == reading::staged || how == reading::staged_in_memory) {
      o.store = store_kind::posix;
    } else if (how == reading::pulled_by_engine) {
      o.store = store_kind::mapped;
    } else if (how == reading::from_controller) {
      o.custom_store = make_controller(false);
    }
    open(o, how == reading::being_written ? O_RDWR : O_RDONLY);
  }
};

// A file that is open for writing: in place, where rows that are written go past the cache, or not.
struct written_file : mounted_rows {
  written_file(written how, std::uint64_t file_nbytes, std::uint32_t page_nbytes, std::uint32_t nframes)
      : written_file(how, file_nbytes, writing_options(page_nbytes, nframes)) {}
  written_file(written how, std::uint64_t file_nbytes, mount_options o) : mounted_rows(is_in_place(how), file_nbytes) {
    if (is_in_place(how)) o.custom_store = mapping_store(dir.path());
    if (how == written::to_controller) o.custom_store = make_controller(true);
    o.copy_engine = is_by_engine(how);
    open(o, O_RDWR);
  }
};

// Lengths, pages and caches as they come.
struct drawn_file {
  std::uint64_t nbytes;
  std::uint32_t page_nbytes, nframes;
};
template <class How>
drawn_file draw_file(random_source& draw, How how) {
  drawn_file file{};
  file.nbytes = 1 + draw.below(is_by_engine(how) ? 16 * least_copied_nbytes : 60'000);
  file.page_nbytes = is_by_engine(how) ? least_copied_nbytes : 512u << draw.below(4);
  file.nframes = 8 + static_cast<std::uint32_t>(draw.below(is_by_engine(how) ? 4 : 100));
  return file;
}

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
  constexpr const char* names[] = {"pulled",        "in_device",       "staged",           "staged_in_memory", "by_windows",
                                   "being_written", "from_controller", "pulled_by_engine", "windows_by_engine"};
  return names[static_cast<int>(p.param)];
}
inline std::string name_of_writing(const ::testing::TestParamInfo<written>& p) {
  constexpr const char* names[] = {"by_the_host", "in_place", "in_place_beside_engine", "to_controller"};
  return names[static_cast<int>(p.param)];
}

// Asks for pages ahead, and waits for about half of them.
struct bring_some {
  file of;
  std::int64_t begin, end;
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const int asked = prefetch(warp, of, begin, static_cast<std::size_t>(end - begin));
    if (warp.leader()) *error = asked;
    for (std::int64_t at = begin; at < end;) {
      mapped_page<> here = map_page(warp, of, at);
      if (here.error() != 0) {
        if (warp.leader()) *error = here.error();
        return;
      }
      at += 2 * std::int64_t{here.nbytes()};
      unmap_page(warp, std::move(here));
    }
  }
};

struct look_at_windows {
  file of;
  std::uint32_t* nmissing;

  GPUFS_DEVICE void operator()() const {
    if (!this_warp().leader()) return;
    const detail::file_pages pages(of);
    const file_view view = pages.view();
    *nmissing = 0;
    for (std::int64_t at = 0; at < view.nbytes; at += cache::frames(pages.frames()).page_nbytes()) {
      const source::place where = detail::find_piece(*pages.mount(), view, static_cast<std::uint64_t>(at), 1).where;
      if (where != source::place::host_memory) ++*nmissing;
    }
  }
};
// Waits until the device has been told that all windows of a prepared file are registered.
inline bool is_told_of_windows(const host_file& of) {
  const device_buffer<std::uint32_t> nmissing(1);
  return wait_until([&] {
    simt::launch({.grid = 1, .block = 32}, look_at_windows{of.ref(), nmissing.get()});
    return nmissing.read_one() == 0;
  });
}

// Tests of all readings.
class read_rows : public ::testing::TestWithParam<reading> {
 protected:
  void SetUp() override {
    if (is_by_engine(GetParam()) && under_memcheck()) {
      GTEST_SKIP() << "memcheck takes memory that is registered while a kernel runs for out of bounds";
    }
  }

  // Calls test(draw, of) for files as they come.
  template <class Test>
  void try_files(std::uint64_t first_seed, Test test) const {
    random_source draw(static_cast<std::uint64_t>(GetParam()) + first_seed);
    std::uint64_t ncopies = 0;
    for (int trial = 0; trial < 6; ++trial) {
      SCOPED_TRACE(trial);
      const drawn_file drawn = draw_file(draw, GetParam());
      subject of(GetParam(), drawn.nbytes, drawn.page_nbytes, drawn.nframes);
      if (is_by_windows(GetParam()) && trial % 2 == 0) {  // else windows come while rows are read
        of.fs->prepare(of.name);
        EXPECT_TRUE(is_told_of_windows(*of.file));
      }
      bring(draw, of);
      test(draw, of);
      ncopies += of.fs->counters().host_copies;
    }
    EXPECT_EQ(ncopies != 0, is_by_engine(GetParam()));
  }
  // Who reads rows then finds pages in the cache, and some that are still on their way: by the host, or by the copy engine, which
  // rows that are missed do not ask.
  static void bring(random_source& draw, const subject& of) {
    const std::uint64_t begin = draw.below(of.nbytes), end = std::min(of.nbytes, begin + 1 + draw.below(of.nbytes / 2));
    const device_buffer<int> error(1);
    simt::launch({.grid = 1, .block = 32},
                 bring_some{of.file->ref(), static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end), error.get()});
    EXPECT_EQ(error.read_one(), 0);
  }
};

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
