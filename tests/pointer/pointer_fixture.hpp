// SPDX-License-Identifier: Apache-2.0
// A mount with one file of whole numbers, for tests of pointers: kernels get it and leave numbers behind.
#pragma once
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

inline constexpr std::uint64_t page = 4096, npages = 40, file_seed = 13;
inline constexpr std::int64_t per_page = page / 4, nwords = npages * per_page;
inline constexpr unsigned outs = 40;  // numbers that a thread leaves

GPUFS_HOST_DEVICE std::uint32_t word_at(std::int64_t i, std::uint64_t seed = file_seed) {
  return static_cast<std::uint32_t>(content_word(seed, static_cast<std::uint64_t>(i) / 2) >> (32 * (i % 2)));
}

// What kernels of these tests are made of.
struct pointer_job {
  mount_ref fs;
  const char* path;
  std::int64_t* out;

  GPUFS_DEVICE static std::uint32_t thread() { return simt::block_rank() * simt::block_size() + simt::thread_rank(); }
  GPUFS_DEVICE std::int64_t* mine() const { return out + std::size_t{thread()} * outs; }
  GPUFS_DEVICE std::int64_t pins() const {
    const cache::frames frames(fs.get()->cache);
    std::uint64_t n = 0;
    for (std::uint32_t i = 0; i < frames.count(); ++i) {
      n += frames.state(cache::frame_index{i}).load(std::memory_order_relaxed) / cache::frame_state::one_pin;
    }
    return static_cast<std::int64_t>(n);
  }
  // pins() while the caller's warp does nothing else. All of its lanes call.
  GPUFS_DEVICE std::int64_t pins_at_rest() const {
    this_warp().sync();
    const std::int64_t n = pins();
    this_warp().sync();
    return n;
  }
};

// One warp brings pages of the file into the cache: all, unless told which.
struct bring_in : pointer_job {
  std::uint64_t first = 0, end = npages;

  GPUFS_DEVICE void operator()() const {
    const file f = open(this_warp(), fs, path);
    const auto p = map<const std::uint32_t>(this_warp(), f);
    for (std::uint64_t i = first; i < end; ++i) mine()[0] += p[static_cast<std::int64_t>(i) * per_page];
    p.unlink();
    this_warp().sync();
    close(this_warp(), f);
  }
};

// A fault handler: turns all bits of a page over.
struct inverting {
  std::uint32_t number;

  GPUFS_HOST_DEVICE std::uint32_t form() const { return number; }
  template <class Group>
  GPUFS_DEVICE int filled(Group group, std::byte* data, std::uint64_t offset, std::uint32_t nbytes) const {
    if (offset % page != 0) return -EINVAL;
    for (std::uint32_t i = group.rank(); i < nbytes; i += group.size())
      data[i] = static_cast<std::byte>(~static_cast<unsigned>(data[i]));
    group.sync();
    return 0;
  }
};

class pointer_fixture : public ::testing::Test {
 protected:
  explicit pointer_fixture(const std::filesystem::path& beneath = std::filesystem::temp_directory_path())
      : dir(beneath), path_(std::vector<char>{'f', 0}) {
    dir.add("f", npages * page, file_seed);
    let_file_times_pass();
    options.cache_nbytes = 64 * page;
    options.max_open_files = 64;
    options.nworkers = 2;
  }
  void TearDown() override {
    if (!fs_ || pins_may_leak) return;
    EXPECT_EQ(fs().counters().pins, 0u);
    EXPECT_EQ(fs().counters().pinned_frames, 0u);
  }

  mount& fs() {
    if (!fs_) fs_.emplace(dir.path(), options);
    return *fs_;
  }
  // The next use makes a mount with the options as they are then.
  void end_mount() { fs_.reset(); }
  pointer_job job(std::size_t nthreads) {
    out_ = std::make_unique<device_buffer<std::int64_t>>(nthreads * outs);
    return {fs().ref(), path_.get(), out_->get()};
  }
  // Runs Kernel{job, more...} and gives the numbers that thread 0 left.
  template <class Kernel, class... More>
  std::vector<std::int64_t> run(unsigned grid, unsigned block, const More&... more) {
    prepare_for_compute_sanitizer();
    simt::launch({.grid = grid, .block = block, .schedule = schedule}, Kernel{job(std::size_t{grid} * block), more...});
    results = out_->read();
    return {results.begin(), results.begin() + outs};
  }
  std::int64_t result(unsigned thread, unsigned i) const { return results[std::size_t{thread} * outs + i]; }

  void prepare_for_compute_sanitizer() {
    if (under_compute_sanitizer() && !options.custom_store && options.store != store_kind::posix) fs().prepare("f");
  }
  template <class T>
  std::vector<T> in_file() const {
    const std::vector<std::byte> bytes = dir.read("f");
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }

  temp_dir dir;
  mount_options options;
  simt::cpu_schedule schedule;
  std::vector<std::int64_t> results;
  bool pins_may_leak = false;

 private:
  device_buffer<char> path_;
  std::unique_ptr<device_buffer<std::int64_t>> out_;
  std::optional<mount> fs_;
};

// In a directory on disk the host writes; in memory (parameter: true) the device stores to the file's mapping.
struct writing_pointer_fixture : pointer_fixture, ::testing::WithParamInterface<bool> {
  writing_pointer_fixture() : pointer_fixture(GetParam() ? memory_directory() : std::filesystem::temp_directory_path()) {
    options.writable = true;
    options.frame_timeout = std::chrono::seconds(30);  // many wait in turn for few frames
    options.store = GetParam() ? store_kind::mapped : store_kind::posix;
  }
  void SetUp() override {
    if (GetParam() && memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  }
};
inline std::string name_of_place(const ::testing::TestParamInfo<bool>& test) { return test.param ? "in_memory" : "on_disk"; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
