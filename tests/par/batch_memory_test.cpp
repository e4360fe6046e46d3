// SPDX-License-Identifier: Apache-2.0
// The memory of batches: the caller's, which may be too little or the wrong one, and a batch's own, of which there may be none.
#include <algorithm>
#include <atomic>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "forwarding_platform.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/par/row_batch.hpp"
#include "par/rows.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint64_t row = 512, nrows = 8;
constexpr row_layout layout{.row_nbytes = row, .nrows = nrows};

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "";
}
void expect_says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << "'" << text << "' has no '" << word << "'";
}

// A file that may be read and written, a batch, and memory for `nrows` rows.
class batch_memory : public ::testing::Test {
 protected:
  batch_memory() {
    const std::vector<std::int64_t> all = up_to(nrows);
    numbers_.write(all);
    narrow_.write(std::vector<std::int32_t>(all.begin(), all.end()));
  }
  // Of each call on rows, what it says of rows here.
  std::vector<std::string> refusals(const std::int64_t* numbers, std::byte* rows, std::uint64_t n = nrows) {
    return {refusal([&] { batch_.gather(of_.file->ref(), layout, numbers, n, rows, turns_); }),
            refusal([&] { batch_.scatter(of_.file->ref(), layout, numbers, n, rows, turns_); })};
  }
  void expect_refused(const std::int64_t* numbers, std::byte* rows, std::uint64_t n, const char* needed, const char* there) {
    const std::vector<std::string> said = refusals(numbers, rows, n);
    expect_says(said[0], {"dst", needed, there});
    expect_says(said[1], {"src", needed, there});
    expect_nothing_done();
  }
  void expect_nothing_done() {
    turns_.wait();
    EXPECT_EQ(batch_.failure().error, 0);
    EXPECT_EQ(rows_.read(), std::vector<std::byte>(nrows * row));
    EXPECT_EQ(of_.dir.read("rows"), content(seed, 0, nrows * row));
  }
  void expect_gathers(std::byte* dst) {
    batch_.gather(of_.file->ref(), layout, numbers_.get(), nrows, dst, turns_);
    turns_.wait();
    EXPECT_EQ(batch_.failure().error, 0);
  }

  subject of_{reading::being_written, nrows* row, 512, 8};
  row_batch batch_{*of_.fs, 4, 2};
  device_buffer<std::int64_t> numbers_{nrows};
  device_buffer<std::int32_t> narrow_{nrows};
  device_buffer<std::byte> rows_{nrows * row};
  simt::stream turns_;
};

TEST_F(batch_memory, that_is_too_small_is_refused_before_anything_is_read) {
  expect_refused(numbers_.get(), rows_.get() + 1, nrows, " 4096 ", " 4095 ");
  expect_refused(numbers_.get(), rows_.get() + nrows * row - 1, nrows, " 4096 ", " 1 ");
  expect_refused(numbers_.get(), nullptr, nrows, " 4096 ", " 0 ");
  for (const std::string& said : refusals(numbers_.get() + 1, rows_.get())) expect_says(said, {"numbers", " 64 ", " 56 "});
  for (const std::string& said : refusals(nullptr, rows_.get())) expect_says(said, {"numbers", " 64 ", " 0 "});
  const auto said =
      refusal([&] { batch_.gather(of_.file->ref(), layout, narrow_.get(), std::uint64_t{nrows} + 1, rows_.get(), turns_); });
  expect_says(said, {"numbers", " 36 ", " 32 "});
  expect_nothing_done();
  expect_gathers(rows_.get());
  EXPECT_EQ(rows_.read(), content(seed, 0, nrows * row));
}

// What the batch before used is not looked at again; what lies beside it is.
TEST_F(batch_memory, beside_what_was_used_before_is_refused) {
  expect_gathers(rows_.get());
  expect_gathers(rows_.get());
  for (const std::string& said : refusals(numbers_.get(), rows_.get() + 1)) expect_says(said, {" 4096 ", " 4095 "});
  for (const std::string& said : refusals(numbers_.get() + 1, rows_.get())) expect_says(said, {"numbers", " 64 ", " 56 "});
  for (const std::string& said : refusals(numbers_.get(), nullptr)) expect_says(said, {" 4096 ", " 0 "});
  turns_.wait();
  EXPECT_EQ(rows_.read(), content(seed, 0, nrows * row));
}

TEST_F(batch_memory, that_is_not_aligned_to_a_number_is_refused) {
  auto* const between = reinterpret_cast<std::int64_t*>(reinterpret_cast<std::byte*>(numbers_.get()) + 4);
  for (const std::string& said : refusals(between, rows_.get(), nrows - 1)) expect_says(said, {"numbers", "aligned to 8"});
  expect_nothing_done();
}

TEST_F(batch_memory, of_the_host_that_the_device_reaches_will_do) {
  const pinned_buffer<std::byte> dst(nrows * row);
  const pinned_buffer<std::int64_t> numbers(nrows);
  for (std::size_t i = 0; i < nrows; ++i) numbers[i] = static_cast<std::int64_t>(i);
  batch_.gather(of_.file->ref(), layout, numbers.get(), nrows, dst.get(), turns_);
  turns_.wait();
  EXPECT_EQ(batch_.failure().error, 0);
  EXPECT_EQ(std::vector<std::byte>(dst.span().begin(), dst.span().end()), content(seed, 0, nrows * row));
}

// The CPU machine's kernels reach all that the host does.
TEST_F(batch_memory, of_the_host_that_the_device_does_not_reach_is_refused) {
  std::vector<std::byte> host(nrows * row);
  if (simt::this_platform().reachable_nbytes(host.data(), host.size()) == host.size()) {
    expect_gathers(host.data());
    EXPECT_EQ(host, content(seed, 0, nrows * row));
    return;
  }
  expect_refused(numbers_.get(), host.data(), nrows, " 4096 ", " 0 ");
}

TEST_F(batch_memory, of_another_device_is_refused) {
  if (GPUFS_ON_CUDA || simt::device_count() < 2) GTEST_SKIP() << "where a GPU reaches another one's memory, that will do";
  const device_buffer<std::byte> elsewhere(nrows * row, simt::device(1));
  expect_refused(numbers_.get(), elsewhere.get(), nrows, " 4096 ", " 0 ");
}

TEST_F(batch_memory, of_a_workspace_may_be_the_callers) {
  const std::size_t needed = row_batch::workspace_nbytes(*of_.fs, 4);
  EXPECT_GE(needed, 4u * 24);
  EXPECT_THROW(row_batch::workspace_nbytes(*of_.fs, 0), std::invalid_argument);
  const std::vector<std::byte> any(needed, std::byte{0xa5});
  const device_buffer<std::byte> space{std::span<const std::byte>(any)};
  {
    row_batch first(*of_.fs, std::span(space.get(), needed), 4, 2);
    row_batch batch(std::move(first));
    batch.gather(of_.file->ref(), layout, numbers_.get(), nrows, rows_.get(), turns_);
    turns_.wait();
    EXPECT_EQ(batch.failure().error, 0);
    EXPECT_EQ(rows_.read(), content(seed, 0, nrows * row));
    rows_.write(content(seed + 1, 0, nrows * row));
    batch.scatter(of_.file->ref(), layout, numbers_.get(), nrows, rows_.get(), turns_);
    batch.gather(of_.file->ref(), {.row_nbytes = row, .nrows = nrows - 1}, numbers_.get(), nrows, rows_.get(), turns_);
    turns_.wait();
    const row_failure failed = batch.failure();
    EXPECT_EQ(failed.error, -EDOM);
    EXPECT_EQ(failed.place, nrows - 1);
    EXPECT_EQ(batch.failure().error, 0) << "it was told";
  }
  std::vector<std::byte> want = content(seed + 1, 0, nrows * row);
  std::fill(want.end() - row, want.end(), std::byte{0});
  EXPECT_EQ(rows_.read(), want);
  of_.file->close();
  EXPECT_EQ(of_.dir.read("rows"), content(seed + 1, 0, nrows * row));
}

TEST_F(batch_memory, of_a_workspace_that_is_none_is_refused) {
  const std::size_t needed = row_batch::workspace_nbytes(*of_.fs, 4);
  const std::string all = " " + std::to_string(needed) + " ", less = " " + std::to_string(needed - 1) + " ";
  const device_buffer<std::byte> space(needed), small(needed - 1);
  const auto refused = [&](std::byte* begin, std::size_t nbytes) {
    return refusal([&] { row_batch(*of_.fs, std::span(begin, nbytes), 4, 2); });
  };
  expect_says(refused(space.get(), needed - 1), {"workspace", all.c_str(), less.c_str()});
  expect_says(refused(small.get(), needed), {"workspace", all.c_str(), less.c_str()});
  expect_says(refused(space.get() + 8, needed), {"workspace", "aligned to 256"});
  expect_says(refused(nullptr, needed), {"workspace", all.c_str(), " 0 "});
  expect_says(refusal([&] { row_batch(*of_.fs, std::span<std::byte>(), 4, 2); }), {"workspace", all.c_str(), " 0 "});
  expect_says(refusal([&] { row_batch(*of_.fs, std::span(space.get(), needed), 0); }), {"max_nrows"});
  if (!GPUFS_ON_CUDA && simt::device_count() > 1) {
    const device_buffer<std::byte> elsewhere(needed, simt::device(1));
    expect_says(refused(elsewhere.get(), needed), {"workspace", all.c_str(), " 0 "});
  }
}

// Makes so many more pieces of memory, of the device or pinned, and then none.
class scarce_platform final : public measured_platform {
 public:
  scarce_platform() : measured_platform(simt::this_platform()) {}

  void* allocate_device(std::size_t nbytes) override {
    take_one();
    return measured_platform::allocate_device(nbytes);
  }
  void* allocate_pinned(std::size_t nbytes) override {
    take_one();
    void* const ptr = measured_platform::allocate_pinned(nbytes);
    ++npinned;
    return ptr;
  }
  void deallocate_pinned(void* ptr) noexcept override {
    if (ptr != nullptr) --npinned;
    measured_platform::deallocate_pinned(ptr);
  }

  static constexpr int any_number = 1 << 30;
  std::atomic<int> left{any_number}, npinned{0};

 private:
  void take_one() {
    if (left.fetch_sub(1) <= 0) throw std::bad_alloc();
  }
};

TEST(row_batch_without_memory, throws_and_leaves_nothing_and_the_mount_goes_on) {
  scarce_platform machine;
  int nkept = 0;  // pieces that host_file leaves to the process
  {
    const temp_dir dir;
    dir.add("rows", nrows * row, seed);
    let_file_times_pass();
    mount_options o;
    o.page_nbytes = 512;
    o.cache_nbytes = 4 * 512;
    o.store = store_kind::posix;
    const host_mount fs(machine, dir.path(), o);
    const int nbefore = machine.npinned;
    const host_file file(fs, "rows");
    nkept = machine.npinned - nbefore;
    const std::size_t npieces = machine.npieces(), in_use = machine.in_use();
    const int npinned = machine.npinned;
    const std::vector<std::int64_t> all = up_to(nrows);
    const device_buffer<std::int64_t> numbers{std::span<const std::int64_t>(all)};
    const device_buffer<std::byte> dst(nrows * row);
    const device_buffer<std::byte> space(row_batch::workspace_nbytes(fs, 4));
    int nmade = 0;
    for (bool is_made = false; !is_made; ++nmade) {
      ASSERT_LT(nmade, 20);
      machine.left = nmade;
      try {
        row_batch batch(fs, 4, 2);
        machine.left = scarce_platform::any_number;
        is_made = true;
        const simt::stream turns;
        batch.gather(file.ref(), layout, numbers.get(), nrows, dst.get(), turns);
        turns.wait();
        EXPECT_EQ(batch.failure().error, 0);
        EXPECT_EQ(dst.read(), content(seed, 0, nrows * row));
      } catch (const std::bad_alloc&) {
        machine.left = scarce_platform::any_number;
        EXPECT_EQ(machine.npinned, npinned) << nmade;
      }
      EXPECT_EQ(machine.npieces(), npieces) << nmade;
      EXPECT_EQ(machine.in_use(), in_use) << nmade;
    }
    EXPECT_GE(nmade, 3) << "some had too little: of the device's, and pinned";
    EXPECT_EQ(machine.npinned, npinned + 1) << "the mount's, for all of its batches";
    machine.left = 0;
    const row_batch takes_none(fs, std::span(space.get(), space.size()), 4, 2);
    EXPECT_EQ(fs.counters().pinned_frames, 0u);
  }
  EXPECT_EQ(machine.npieces(), 0u);
  EXPECT_EQ(machine.npinned, nkept);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
