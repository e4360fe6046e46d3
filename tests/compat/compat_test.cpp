// SPDX-License-Identifier: Apache-2.0
// The papers' names: gopen, gclose, gread, gmmap, gmunmap, gvmmap, gfstat by blocks, and their _warp forms.
#include "gpufs/compat/gpufs.hpp"

#include <algorithm>

#include "file/harness.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace gpufs::compat;

constexpr std::uint64_t nbytes = 3 * 4096 + 100;
constexpr std::uint32_t ncalls = 32;

// Results of the calls of one block or warp, in order.
struct record {
  std::int64_t values[ncalls];
  std::uint32_t wrong;
};

GPUFS_DEVICE std::uint32_t word_at(std::uint64_t offset) {
  std::uint32_t word = 0;
  for (std::uint32_t i = 0; i < 4; ++i) word |= static_cast<std::uint32_t>(content_byte(5, offset + i)) << 8 * i;
  return word;
}

struct by_block {
  mount_ref fs;
  const char* path;
  const char* missing;
  std::byte* buffer;
  record* out;

  GPUFS_DEVICE void operator()() const {
    const bool leader = simt::thread_rank() == 0;
    record& r = out[simt::block_rank()];
    std::byte* mine = buffer + simt::block_rank() * nbytes;
    std::uint32_t n = 0;
    const auto note = [&](std::int64_t value) {
      if (leader) r.values[n] = value;
      ++n;
    };
    note(gopen(fs, missing, O_RDONLY));
    const int fd = gopen(fs, path, O_RDONLY);
    note(fd);
    const int again = gopen(fs, path, O_RDONLY);
    note(again == fd);
    note(gclose(fs, again));
    file_status status{};
    note(gfstat(fs, fd, &status));
    note(status.nbytes);
    note(gread(fs, fd, 100, nbytes, mine));
    this_block().sync();
    count_wrong(r, mine, 100, nbytes - 100);
    note(gread(fs, fd, -1, 10, mine));
    note(gread(fs, fd, nbytes, 10, mine));
    int error = 1;
    const volatile void* mapped = gmmap(fs, 1000, fd, 4096 + 50, &error);
    note(error);
    note(mapped != nullptr);
    count_wrong(r, static_cast<const std::byte*>(const_cast<const void*>(mapped)), 4096 + 50, 1000);
    note(gmunmap(fs, mapped));
    note(gmunmap(fs, mapped));
    note(gmmap(fs, 4096, fd, 4096 + 50, &error) == nullptr);  // crosses a page's end
    note(error);
    note(gmmap(fs, 1, fd, nbytes, &error) == nullptr);
    note(error);
    note(gmmap(fs, 1, fd, nbytes) == nullptr);
    note(gmunmap(fs, nullptr));
    note(gmunmap(fs, buffer));  // no page
    {
      APtr<const std::byte> mine_too = gvmmap<const std::byte>(fs, nbytes - 100, O_RDONLY, fd, 100);
      note(mine_too.error());
      count_wrong(r, mine_too, 100, nbytes - 100);
      note((mine_too += 4096).offset());
      note(gvmmap<const std::uint32_t>(fs, 8, O_RDONLY, fd, 8)[1] == word_at(12));
      note(gvmmap<const std::byte>(fs, nbytes, O_RDONLY, fd, 1).error());
      note(gvmmap<const std::byte>(fs, nbytes, O_RDWR, fd, 0).error());
      note(gvmmap<std::byte>(fs, nbytes, O_RDONLY, fd, 0).error());
      note(gvmmap<const std::byte>(fs, nbytes, O_RDONLY, 12345, 0).error());
    }
    note(gclose(fs, fd));
    note(gclose(fs, 12345));
  }

  template <class Bytes>
  GPUFS_DEVICE static void count_wrong(record& r, const Bytes& got, std::uint64_t offset, std::uint64_t n) {
    for (std::uint64_t i = simt::thread_rank(); i < n; i += simt::block_size()) {
      if (got[i] != content_byte(5, offset + i)) simt::atomic_ref<std::uint32_t>(r.wrong).fetch_add(1, std::memory_order_relaxed);
    }
  }
};

struct by_warp {
  mount_ref fs;
  const char* path;
  const char* missing;
  std::byte* buffer;
  record* out;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const std::uint32_t me = simt::block_rank() * this_block().nwarps() + simt::warp_rank();
    record& r = out[me];
    std::byte* mine = buffer + me * nbytes;
    std::uint32_t n = 0;
    const auto note = [&](std::int64_t value) {
      if (warp.leader()) r.values[n] = value;
      ++n;
    };
    note(gopen_warp(fs, missing, O_RDONLY));
    const int fd = gopen_warp(fs, path, O_RDONLY);
    note(fd);
    const int again = gopen_warp(fs, path, O_RDONLY);
    note(again == fd);
    note(gclose_warp(fs, again));
    file_status status{};
    note(gfstat_warp(fs, fd, &status));
    note(status.nbytes);
    note(gread_warp(fs, fd, 100, nbytes, mine));
    warp.sync();
    count_wrong(r, mine, 100, nbytes - 100);
    note(gread_warp(fs, fd, -1, 10, mine));
    note(gread_warp(fs, fd, nbytes, 10, mine));
    int error = 1;
    const volatile void* mapped = gmmap_warp(fs, 1000, fd, 4096 + 50, &error);
    note(error);
    note(mapped != nullptr);
    count_wrong(r, static_cast<const std::byte*>(const_cast<const void*>(mapped)), 4096 + 50, 1000);
    note(gmunmap_warp(fs, mapped));
    note(-EINVAL);  // a second unmap would take the pin of another warp that maps the page
    note(gmmap_warp(fs, 4096, fd, 4096 + 50, &error) == nullptr);
    note(error);
    note(gmmap_warp(fs, 1, fd, nbytes, &error) == nullptr);
    note(error);
    note(gmmap_warp(fs, 1, fd, nbytes) == nullptr);
    note(gmunmap_warp(fs, nullptr));
    note(gmunmap_warp(fs, buffer));
    {
      APtr<const std::byte> mine_too = gvmmap_warp<const std::byte>(fs, nbytes - 100, O_RDONLY, fd, 100);
      note(mine_too.error());
      count_wrong(r, mine_too, 100, nbytes - 100);
      note((mine_too += 4096).offset());
      note(gvmmap_warp<const std::uint32_t>(fs, 8, O_RDONLY, fd, 8)[1] == word_at(12));
      note(gvmmap_warp<const std::byte>(fs, nbytes, O_RDONLY, fd, 1).error());
      note(gvmmap_warp<const std::byte>(fs, nbytes, O_RDWR, fd, 0).error());
      note(gvmmap_warp<std::byte>(fs, nbytes, O_RDONLY, fd, 0).error());
      note(gvmmap_warp<const std::byte>(fs, nbytes, O_RDONLY, 12345, 0).error());
    }
    note(gclose_warp(fs, fd));
    note(gclose_warp(fs, 12345));
  }

  template <class Bytes>
  GPUFS_DEVICE static void count_wrong(record& r, const Bytes& got, std::uint64_t offset, std::uint64_t n) {
    for (std::uint64_t i = this_warp().rank(); i < n; i += 32) {
      if (got[i] != content_byte(5, offset + i)) simt::atomic_ref<std::uint32_t>(r.wrong).fetch_add(1, std::memory_order_relaxed);
    }
  }
};

template <class Kernel>
void run(unsigned grid, unsigned block, unsigned ngroups) {
  temp_dir dir;
  dir.add("file", nbytes, 5);
  mount_options options;
  options.cache_nbytes = 64 * 4096;
  options.max_open_files = 64;
  const mount m(dir.path(), options);
  const device_buffer<char> path(std::vector<char>{'f', 'i', 'l', 'e', '\0'}), missing(std::vector<char>{'n', 'o', '\0'});
  const device_buffer<std::byte> buffer(ngroups * nbytes);
  const device_buffer<record> records(ngroups);
  simt::launch({.grid = grid, .block = block}, Kernel{m.ref(), path.get(), missing.get(), buffer.get(), records.get()});
  for (const record& r : records.read()) {
    EXPECT_GE(r.values[1], 0);
    const std::int64_t expected[] = {-ENOENT, r.values[1], 1,       0, 0,      nbytes, nbytes - 100, -EINVAL, 0, 0,    1, 0,
                                     -EINVAL, 1,           -EINVAL, 1, -ENXIO, 1,      -EINVAL,      -EINVAL, 0, 4196, 1, -ENXIO,
                                     -EACCES, -EACCES,     -EBADF,  0, -EBADF};
    for (std::size_t i = 0; i < std::size(expected); ++i) EXPECT_EQ(r.values[i], expected[i]) << "call " << i;
    EXPECT_EQ(r.wrong, 0u);
  }
  EXPECT_EQ(m.counters().pinned_frames, 0u);
  EXPECT_TRUE(m.open_files().empty());
}

// Writes its own file, by a block or by a warp, and notes the results of the calls.
struct write_and_remove {
  mount_ref fs;
  const char* paths;  // two of 8 bytes
  const std::byte* bytes;
  std::byte* buffer;
  std::int64_t* results;  // 8 each

  GPUFS_DEVICE void operator()() const {
    std::uint32_t n = 0;
    const bool leader = simt::thread_rank() == 0;
    const auto note = [&](std::int64_t value) {
      if (leader) results[simt::block_rank() * 8 + n] = value;
      ++n;
    };
    if (simt::block_rank() == 0) {
      const int fd = gopen(fs, paths, O_RDWR | O_CREAT);
      note(gwrite(fs, fd, 10, 6000, bytes));
      note(gftruncate(fs, fd, 5000));
      note(gread(fs, fd, 0, 6000, buffer));
      note(gfsync(fs, fd));
      note(gvmmap<std::byte>(fs, 8, O_RDONLY, fd, 0).error());
      {
        const APtr<std::byte> two = gvmmap<std::byte>(fs, 2, O_RDWR, fd, 4);
        if (leader) two[1] = std::byte{77};
      }
      simt::this_block().sync();
      note(gclose(fs, fd));
      note(gunlink(fs, paths + 8));
    } else if (simt::warp_rank() == 0) {
      const int fd = gopen_warp(fs, paths + 16, O_GWRONCE | O_CREAT);
      note(gwrite_warp(fs, fd, 10, 6000, bytes));
      note(gftruncate_warp(fs, fd, 5000));
      note(gread_warp(fs, fd, 0, 6000, buffer));
      note(gfsync_warp(fs, fd));
      note(gclose_warp(fs, fd));
      note(gunlink_warp(fs, paths + 8));
    }
  }
};
TEST(compat, writes) {
  temp_dir dir;
  mount_options options;
  options.writable = true;
  options.cache_nbytes = 64 * 4096;
  options.max_open_files = 64;
  const mount m(dir.path(), options);
  const device_buffer<char> paths(std::vector<char>{'a', 0, 0, 0, 0, 0, 0, 0, 'n', 'o', 0, 0, 0, 0, 0, 0, 'b', 0});
  const device_buffer<std::byte> bytes(content(5, 10, 6000)), buffer(6000);
  const device_buffer<std::int64_t> results(16);
  simt::launch({.grid = 2, .block = 64}, write_and_remove{m.ref(), paths.get(), bytes.get(), buffer.get(), results.get()});
  EXPECT_EQ(results.read(),
            (std::vector<std::int64_t>{6000, 0, 5000, 0, -EACCES, 0, -ENOENT, 0, 6000, 0, -EBADF, 0, 0, -ENOENT, 0, 0}));
  auto wanted = content(5, 0, 5000);
  for (int i = 0; i < 10; ++i) wanted[static_cast<std::size_t>(i)] = std::byte{0};
  EXPECT_EQ(dir.read("b"), wanted);
  wanted[5] = std::byte{77};
  EXPECT_EQ(dir.read("a"), wanted);
}

// Blocks and warps map one page, store to bytes of their own, and unmap it by its address; one block reads.
struct store_through_mappings {
  mount_ref fs;
  const char* path;
  std::int64_t* results;  // 8 each

  GPUFS_DEVICE void operator()() const {
    std::uint32_t n = 0;
    const std::uint32_t block = simt::block_rank();
    const bool leader = simt::thread_rank() == 0;
    const auto note = [&](std::int64_t value) {
      if (leader) results[block * 8 + n] = value;
      ++n;
    };
    const auto store = [&](volatile void* at, std::uint32_t begin, std::uint32_t first, std::uint32_t step) {
      auto* bytes = static_cast<volatile unsigned char*>(at);
      for (std::uint32_t i = begin + first; i < begin + 100; i += step)
        bytes[i] = static_cast<unsigned char>(content_byte(9, 4096 + 50 + i));
    };
    int error = 1;
    if (block == 0) {
      const int fd = gopen(fs, path, O_RDONLY);
      volatile void* mapped = gmmap(fs, 1000, fd, 4096 + 50, &error);
      note(error);
      note(gmunmap(fs, mapped));
      note(gclose(fs, fd));
    } else if (block == 1) {
      const int fd = gopen(fs, path, O_RDWR);
      note(gmmap(fs, 4096, fd, 4096 + 50, &error) == nullptr);
      note(error);
      volatile void* mapped = gmmap(fs, 1000, fd, 4096 + 50, &error);
      note(error);
      store(mapped, 0, simt::thread_rank(), simt::block_size());
      note(gmsync(fs, mapped));
      store(mapped, 100, simt::thread_rank(), simt::block_size());
      note(gmunmap(fs, mapped));
      note(gclose(fs, fd));
    } else if (simt::warp_rank() == 0) {
      const int fd = gopen_warp(fs, path, O_RDWR);
      volatile void* mapped = gmmap_warp(fs, 1000, fd, 4096 + 50, &error);
      note(error);
      store(mapped, block * 100, simt::lane_id(), 32);
      note(gmsync_warp(fs, nullptr));
      note(gmsync_warp(fs, mapped));
      note(gmunmap_warp(fs, mapped));
      note(gclose_warp(fs, fd));
    }
  }
};
struct hold_open {
  mount_ref fs;
  const char* path;
  int* fd;
  bool opens;
  GPUFS_DEVICE void operator()() const {
    const int got = opens ? gopen(fs, path, O_RDWR) : gclose(fs, *fd);
    if (simt::thread_rank() == 0) *fd = got;
  }
};
TEST(compat, stores_through_mappings) {
  for (const unsigned nframes : {2u, 64u}) {
    temp_dir dir;
    dir.add("file", nbytes, 5);
    mount_options options;
    options.writable = true;
    options.cache_nbytes = nframes * 4096;
    options.max_open_files = 64;
    options.frame_timeout = std::chrono::seconds(20);
    const mount m(dir.path(), options);
    const device_buffer<char> path(std::vector<char>{'f', 'i', 'l', 'e', '\0'});
    const device_buffer<std::int64_t> results(10 * 8);
    // Open for writing all the while: who opens a file to read before that may find its version gone (-ESTALE).
    const device_buffer<int> held(1);
    simt::launch({.grid = 1, .block = 64}, hold_open{m.ref(), path.get(), held.get(), true});
    simt::launch({.grid = 10, .block = 64, .schedule = {.resident_blocks = 10}},
                 store_through_mappings{m.ref(), path.get(), results.get()});
    simt::launch({.grid = 1, .block = 64}, hold_open{m.ref(), path.get(), held.get(), false});
    EXPECT_EQ(held.read()[0], 0);
    const auto got = results.read();
    const auto of = [&](std::size_t block) {
      return std::vector<std::int64_t>(got.begin() + static_cast<std::ptrdiff_t>(block * 8),
                                       got.begin() + static_cast<std::ptrdiff_t>(block * 8 + 8));
    };
    EXPECT_EQ(of(0), (std::vector<std::int64_t>{0, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(of(1), (std::vector<std::int64_t>{1, -EINVAL, 0, 0, 0, 0, 0, 0}));
    for (std::size_t b = 2; b < 10; ++b) EXPECT_EQ(of(b), (std::vector<std::int64_t>{0, -EINVAL, 0, 0, 0, 0, 0, 0})) << b;
    auto wanted = content(5, 0, nbytes);
    const auto stored = content(9, 4096 + 50, 1000);
    std::copy(stored.begin(), stored.end(), wanted.begin() + 4096 + 50);
    EXPECT_EQ(dir.read("file"), wanted);
    EXPECT_EQ(m.counters().pins, 0u);
    EXPECT_EQ(m.counters().unwritten_pages, 0u);
    EXPECT_TRUE(m.open_files().empty());
  }
}

TEST(compat, calls_by_a_block) { run<by_block>(1, 128, 1); }
TEST(compat, calls_by_warps) { run<by_warp>(2, 96, 6); }

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
