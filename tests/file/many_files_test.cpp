// SPDX-License-Identifier: Apache-2.0
// 50,000 files open at once, opened, read and closed by warps.
#include <sys/resource.h>

#include <algorithm>
#include <iostream>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/store/mem_store.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t files_per_directory = 1000;

// "d12/f12345".
GPUFS_HOST_DEVICE void path_of(std::uint32_t n, char (&out)[32]) { format_path(out, 'd', n / files_per_directory, "/f", n); }

struct block_paths {
  char of_warp[2][32];
};

enum class step : std::uint32_t { open, read, close };

struct many {
  mount_ref fs;
  step what;
  std::uint32_t nfiles;
  std::int32_t* numbers;
  std::uint32_t* bad;
  std::int32_t* last_error;

  GPUFS_DEVICE void operator()() const {
    const auto group = this_warp();
    const std::uint32_t nwarps = simt::grid_size() * this_block().nwarps();
    const std::uint32_t me = simt::block_rank() * this_block().nwarps() + simt::warp_rank();
    for (std::uint32_t n = me; n < nfiles; n += nwarps) {
      std::int64_t error = 0;
      if (what == step::open) {
        auto& path = simt::shared<block_paths>().of_warp[simt::warp_rank()];
        if (group.leader()) path_of(n, path);
        group.sync();
        const file f = open(group, fs, path);
        if (group.leader()) numbers[n] = static_cast<std::int32_t>(f.number());
        error = f.error();
      } else {
        const file f(fs, file_number{numbers[n]});
        error = what == step::read ? read(group, f, n) : close(group, f);
      }
      if (error != 0 && group.leader()) {
        simt::atomic_ref<std::uint32_t>(*bad).fetch_add(1, std::memory_order_relaxed);
        simt::atomic_ref<std::int32_t>(*last_error).store(static_cast<std::int32_t>(error), std::memory_order_relaxed);
      }
    }
  }

  template <class Group>
  GPUFS_DEVICE std::int64_t read(Group group, const file& f, std::uint32_t n) const {
    mapped_page mapped = map_page(group, f, 0);
    if (mapped.error() != 0) return mapped.error();
    bool good = mapped.nbytes() == 16;
    if (good && group.rank() < 16) good = mapped.data()[group.rank()] == content_byte(n, group.rank());
    const int error = unmap_page(group, std::move(mapped));
    return group.all(good) ? error : 1;
  }
};

void open_many(const mount& m, std::uint32_t nfiles, unsigned grid) {
  const device_buffer<std::int32_t> numbers(nfiles), last_error(1);
  const device_buffer<std::uint32_t> bad(1);
  const auto run = [&](step what) {
    simt::launch({.grid = grid, .block = 64, .schedule = {.switch_percent = 2}},
                 many{m.ref(), what, nfiles, numbers.get(), bad.get(), last_error.get()});
    ASSERT_EQ(bad.read_one(), 0u) << "the last of them: " << last_error.read_one();
  };
  run(step::open);
  EXPECT_EQ(m.counters().host_opens, nfiles);
  EXPECT_EQ(m.open_files().size(), nfiles);
  auto all = numbers.read();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << "one number for two files";
  run(step::read);
  for (const file_report& each : m.open_files()) {
    const std::uint64_t n = each.counters.hits + each.counters.faults;  // mapped once, and perhaps brought in by the open
    ASSERT_TRUE(n == 1 || n == 2) << each.path << ": " << n;
  }
  run(step::open);  // once more: no host call
  EXPECT_EQ(m.counters().host_opens, nfiles);
  run(step::close);
  EXPECT_EQ(m.open_files().size(), nfiles) << "each was opened twice";
  run(step::close);
  EXPECT_TRUE(m.open_files().empty());
  EXPECT_EQ(m.counters().host_closes, nfiles);
  EXPECT_EQ(m.counters().pinned_frames, 0u);
}

mount_options options_for_many(std::uint32_t max_open_files) {
  mount_options o;
  o.page_nbytes = 512;
  o.cache_nbytes = 4096 * 512;
  o.max_open_files = max_open_files;
  if (under_memcheck()) o.reserved_open_files = max_open_files;  // it takes memory that comes while a kernel runs for out of bounds
  return o;
}

// As many as this process may open: 50,000 where the hard limit allows, or can be raised.
std::uint32_t most_real_files(std::uint32_t wanted) {
  constexpr rlim_t ours = 200;  // what the test itself and its threads open
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < wanted + ours) {
    const rlimit more{limit.rlim_cur, wanted + ours};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
  }
  if (limit.rlim_max >= wanted + ours) return wanted;
  const auto fit = static_cast<std::uint32_t>(limit.rlim_max - ours);
  std::cout << "the hard limit of open files is " << limit.rlim_max << ": opening " << fit << " of " << wanted << '\n';
  return fit;
}

TEST(many_files, fifty_thousand_at_once) {
  const std::uint32_t nfiles = most_real_files(under_tsan || under_asan ? 2000 : 50000);
  RecordProperty("files", static_cast<int>(nfiles));
  temp_dir dir;
  for (std::uint32_t d = 0; d * files_per_directory < nfiles; ++d) std::filesystem::create_directory(dir / numbered("d", d));
  for (std::uint32_t n = 0; n < nfiles; ++n) {
    char path[32];
    path_of(n, path);
    const int fd = ::open((dir / path).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    ASSERT_GE(fd, 0) << path;
    const auto bytes = content(n, 0, 16);
    ASSERT_EQ(write(fd, bytes.data(), bytes.size()), 16);
    ::close(fd);
  }
  mount_options options = options_for_many(65536);
  options.store = store_kind::posix;
  open_many(mount(dir.path(), options), nfiles, on_cuda ? 264 : 4);
}

TEST(many_files, fifty_thousand_in_memory) {  // where the limit of open files is small
  constexpr std::uint32_t nfiles = under_tsan || under_asan ? 2000 : 50000;
  const auto store = std::make_shared<store::mem_store>(simt::this_platform(), source_kind::staged);
  for (std::uint32_t n = 0; n < nfiles; ++n) {
    char path[32];
    path_of(n, path);
    store->put(path, content(n, 0, 16));
  }
  mount_options options = options_for_many(nfiles);  // just as many as there are
  options.custom_store = store;
  open_many(mount("", options), nfiles, on_cuda ? 264 : 4);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
