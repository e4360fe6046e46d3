// SPDX-License-Identifier: Apache-2.0
// mount_options that cannot be are refused with the option's name; those just beside them are not.
#include <algorithm>

#include "file/harness.hpp"
#include "forwarding_platform.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Each warp reads pages of a file by turns.
struct read_file {
  file from;
  std::byte* to;
  std::uint64_t nbytes;
  std::int64_t* nread;  // all warps together

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    for (std::uint64_t at = simt::global_warp_rank() * 4096; at < nbytes; at += simt::global_warp_count() * 4096) {
      const std::int64_t n = pread(warp, from, to + at, 4096, static_cast<std::int64_t>(at));
      if (warp.leader()) simt::atomic_ref<std::int64_t>(*nread).fetch_add(n, std::memory_order_relaxed);
    }
  }
};

class mount_options_are : public ::testing::Test {
 protected:
  // What is said when a mount is made with these options: nothing when it is made.
  template <class Set>
  std::string said(const Set& set) const {
    mount_options o{
        .cache_nbytes = 64 << 10, .page_nbytes = 4096, .max_open_files = 16, .nworkers = 2, .internals = {.request_rings = 4}};
    set(o);
    try {
      const mount m(dir_.path(), o);
      return "";
    } catch (const error& e) {
      return e.what();
    }
  }
  template <class Set>
  void expect_refused(const char* option, const Set& set) const {
    EXPECT_NE(said(set).find(option), std::string::npos) << option << ": " << said(set);
  }
  template <class Set>
  void expect_made(const Set& set) const {
    EXPECT_EQ(said(set), "");
  }
  temp_dir dir_;
};

TEST_F(mount_options_are, refused_beyond_their_ends_and_taken_at_them) {
  for (const std::uint32_t bad : {0u, 256u, 511u, 513u, 1536u, 4u << 20}) {
    expect_refused("page_nbytes", [&](mount_options& o) { o.page_nbytes = bad; });
  }
  expect_made([](mount_options& o) { o.page_nbytes = 512; });
  expect_made([](mount_options& o) { o.cache_nbytes = 2 * (o.page_nbytes = 2 << 20); });
  expect_refused("cache_nbytes", [](mount_options& o) { o.cache_nbytes = 4095; });
  expect_made([](mount_options& o) { o.cache_nbytes = 4096; });
  expect_refused("cache_nbytes", [](mount_options& o) { o.cache_nbytes = (std::uint64_t{1} << 28) * 4096 + 4096; });
  for (const std::uint32_t bad : {0u, (1u << 20) + 1}) {
    expect_refused("max_open_files", [&](mount_options& o) { o.max_open_files = bad; });
  }
  expect_made([](mount_options& o) { o.max_open_files = 1; });
  for (const std::uint32_t bad : {0u, (1u << 24) + 1}) {
    expect_refused("max_mappings", [&](mount_options& o) { o.max_mappings = bad; });
  }
  expect_made([](mount_options& o) { o.max_mappings = 1; });
  for (const std::uint32_t bad : {1u, 3u}) {
    expect_refused("request_slots", [&](mount_options& o) { o.internals.request_slots = bad; });
  }
  for (const std::uint32_t good : {2u, 1024u}) {
    expect_made([&](mount_options& o) { o.internals.request_slots = good, o.internals.request_rings = 1; });
  }
  expect_made([](mount_options& o) { o.internals.request_slots = 2, o.internals.request_rings = 1u << 15; });
  expect_refused("request_rings",
                 [](mount_options& o) { o.internals.request_slots = 2, o.internals.request_rings = (1u << 15) + 1; });
  for (const std::uint32_t bad : {0u, 65u}) {
    expect_refused("request_batch", [&](mount_options& o) { o.internals.request_batch = bad; });
  }
  for (const std::uint32_t good : {1u, 64u}) expect_made([&](mount_options& o) { o.internals.request_batch = good; });
  expect_refused("nworkers", [](mount_options& o) { o.nworkers = 1025; });
  expect_made([](mount_options& o) { o.nworkers = 1; });
  expect_refused("store", [](mount_options& o) { o.store = static_cast<store_kind>(3); });
  expect_refused("store", [](mount_options& o) { o.store = static_cast<store_kind>(-1); });
  expect_refused("on_failed_accesses", [](mount_options& o) { o.on_failed_accesses = static_cast<failed_accesses>(3); });
  expect_refused("on_failed_accesses", [](mount_options& o) { o.on_failed_accesses = static_cast<failed_accesses>(-1); });
  for (const int bad : {0, -1}) {
    expect_refused("io_timeout", [&](mount_options& o) { o.io_timeout = std::chrono::nanoseconds(bad); });
    expect_refused("end_timeout", [&](mount_options& o) { o.end_timeout = std::chrono::nanoseconds(bad); });
  }
  expect_refused("frame_timeout", [](mount_options& o) { o.frame_timeout = std::chrono::nanoseconds(-1); });
  expect_made([](mount_options& o) { o.frame_timeout = std::chrono::nanoseconds(0); });
}

// What options() says of a mount.
TEST_F(mount_options_are, filled_in) {
  const auto of = [this](const mount_options& o) { return mount(dir_.path(), o).options(); };
  const mount_options usual = of({.cache_nbytes = 1024 * 4096});
  EXPECT_EQ(usual.dirty_nbytes, 256u * 4096);
  EXPECT_EQ(usual.internals.nrings, 16u);
  EXPECT_EQ(usual.internals.request_slots, 8u);
  EXPECT_EQ(usual.internals.request_rings, 256u);
  EXPECT_EQ(usual.max_mappings, 4096u);
  EXPECT_GT(usual.pin_nbytes, 0u);
  EXPECT_EQ(of({.cache_nbytes = 16 << 20, .page_nbytes = 2 << 20}).internals.request_rings, 16u) << "128 requests of 2 MiB";
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096, .dirty_nbytes = 9 * 4096}).dirty_nbytes, 5u * 4096);
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096, .internals = {.nrings = 11}}).internals.nrings, 10u);
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096, .internals = {.nrings = 3}}).internals.nrings, 3u);
  EXPECT_EQ(of({.cache_nbytes = 10 * 4096}).internals.nrings, 1u);
  EXPECT_EQ(of({.cache_nbytes = 64 << 10, .max_mappings = 5}).max_mappings, 8u);
  EXPECT_EQ(of({.cache_nbytes = 64 << 10, .io_timeout = std::chrono::nanoseconds(1)}).io_timeout.count(), 1);
}

// The cache lies in memory of the caller's, wherever that begins, and nothing around it is touched.
TEST_F(mount_options_are, a_cache_in_memory_of_the_caller_s) {
  constexpr std::uint64_t nbytes = 100 * 4096, around = 64, most = (4 << 20) + 3000;
  constexpr auto untouched = std::byte{0xab};
  dir_.add("file", nbytes, 1);
  const device_buffer<std::byte> to(nbytes);
  const auto host_read = [&](const mount& fs) {
    const device_buffer<std::int64_t> nread(1);
    const host_file opened(fs, "file");
    simt::launch({.grid = 2, .block = 64}, read_file{opened.ref(), to.get(), nbytes, nread.get()});
    EXPECT_EQ(nread.read_one(), static_cast<std::int64_t>(nbytes));
    EXPECT_TRUE(to.read() == content(1, 0, nbytes));
  };
  for (const std::uint32_t page_nbytes : {512u, 4096u, 65536u, 1u << 20}) {
    for (const std::uint64_t shift : {0u, 1u, 8u, 4095u}) {
      const device_buffer<std::byte> memory(std::vector<std::byte>(most + 8192, untouched));
      const std::span<std::byte> given(memory.get() + around + shift, most - shift);
      const mount fs(dir_.path(),
                     {.page_nbytes = page_nbytes, .cache_memory = given, .max_open_files = 16, .writable = true, .nworkers = 2});
      const std::uint64_t cache_nbytes = fs.options().cache_nbytes;
      EXPECT_LE(cache_nbytes, given.size());
      EXPECT_GT(cache_nbytes, given.size() - given.size() * 32 / page_nbytes - page_nbytes -
                                  std::max<std::uint64_t>(page_nbytes, cache::packed_alignment));
      const cache::frame_storage& frames = mount_inside(fs).layout().cache.frames;
      EXPECT_GE(reinterpret_cast<std::byte*>(frames.states - 2 * std::size_t{frames.nframes}), given.data());
      EXPECT_LE(frames.data + cache_nbytes, given.data() + given.size());
      host_read(fs);
      const std::vector<std::byte> now = memory.read();
      const auto is_untouched = [](std::byte b) { return b == untouched; };
      const auto begin = now.begin() + static_cast<std::ptrdiff_t>(around + shift);
      EXPECT_TRUE(std::all_of(now.begin(), begin, is_untouched));
      EXPECT_TRUE(std::all_of(begin + static_cast<std::ptrdiff_t>(given.size()), now.end(), is_untouched));
    }
  }
  // No more of it than is asked for, and the mount allocates none of that.
  const device_buffer<std::byte> memory(most);
  mount_options o{.cache_nbytes = 1 << 20, .max_open_files = 16, .nworkers = 2};
  std::size_t in_use[2];
  for (const bool by_mount : {true, false}) {
    if (!by_mount) o.cache_memory = {memory.get(), most};
    measured_platform machine(simt::this_platform());
    const host_mount fs(machine, dir_.path(), o);
    EXPECT_EQ(fs.options().cache_nbytes, 1u << 20);
    in_use[by_mount ? 0 : 1] = machine.in_use();
  }
  EXPECT_GE(in_use[0] - in_use[1], 1u << 20);
}

TEST_F(mount_options_are, refused_where_cache_memory_is_wrong) {
  const device_buffer<std::byte> memory(1 << 20);
  std::byte* const begin = memory.get();
  const auto given = [](std::byte* at, std::size_t nbytes, std::uint64_t cache_nbytes = 0) {
    return [=](mount_options& o) { o.cache_memory = {at, nbytes}, o.cache_nbytes = cache_nbytes; };
  };
  expect_refused("cache_memory is no memory of device 0", given(nullptr, 1 << 20));
  expect_refused("cache_memory is no memory of device 0", given(begin, 0));
  expect_refused("cache_memory is no memory of device 0", given(begin + 4096, 1ull << 40));
  expect_refused("cache_memory has 4096 bytes, too few for a page", given(begin, 4096));
  expect_refused("cache_memory has 1048576 bytes; with cache_nbytes 1048576 it needs", given(begin, 1 << 20, 1 << 20));
  expect_refused("cache_nbytes", given(begin, 1 << 20, 4095));
  expect_refused("cache_memory has 8223 bytes, too few for a page", given(begin, 4096 + 4096 + 31));
  expect_made(given(begin, 4096 + 4096 + 32));
  expect_made(given(begin, 1 << 20, 4096));
  if (on_cuda) {
    std::vector<std::byte> of_host(1 << 20);
    expect_refused("cache_memory is no memory of device 0", given(of_host.data(), of_host.size()));
  }
  if (simt::device_count() > 1) {
    const device_buffer<std::byte> elsewhere(1 << 20, simt::device(1));
    expect_refused("cache_memory is no memory of device 0", given(elsewhere.get(), 1 << 20));
  }
}

TEST_F(mount_options_are, refused_where_the_root_is_no_directory) {
  dir_.add("file", 10, 1);
  const auto said_of = [](const std::string& root) -> std::string {
    try {
      const mount m(root, {.cache_nbytes = 64 << 10});
      return "";
    } catch (const error& e) {
      return e.what();
    }
  };
  EXPECT_NE(said_of(dir_ / "file").find("is not a directory"), std::string::npos);
  EXPECT_NE(said_of(dir_ / "none").find("No such file"), std::string::npos);
  EXPECT_NE(said_of(dir_.path() + std::string("\0x", 2)).find("NUL"), std::string::npos);
  EXPECT_EQ(said_of(dir_.path()), "");
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
