// SPDX-License-Identifier: Apache-2.0
// The collage finds the same images with the papers' page caches, calls by blocks, the host side as it was, and through pointers.
#include <gtest/gtest.h>

#include "apps/collage/match_device.hpp"
#include "apps/tests/collage_fixture.hpp"
#include "leftovers.hpp"
#include "research/baselines/block_match_kernel.hpp"
#include "research/baselines/original_mount.hpp"
#include "research/baselines/pointer_match_kernel.hpp"

namespace gpufs::apps::collage {
namespace {

using namespace testing;
using namespace baselines;

constexpr auto by_warps = [](const auto& kernel) { return kernel; };
constexpr auto by_blocks = []<class Mount>(const match_kernel<Mount>& kernel) { return block_match_kernel<Mount>{kernel}; };
constexpr auto by_pointers = []<class Mount>(const match_kernel<Mount>& kernel) { return pointer_match_kernel<Mount>{kernel}; };

class baseline_collage : public ::testing::Test {
 protected:
  void SetUp() override { gpufs::test::expect_leftovers("the library stays open for the kernels to come"); }
  static void SetUpTestSuite() {
    folder_ = new temporary_folder;
    build(folder_->file("plain.lib"), 1200, {.shortlist_goal = 48, .key_nbits = 14});
    build(folder_->file("packed.lib"), 1200, {.packed = true, .shortlist_goal = 48, .key_nbits = 14});
    build(folder_->file("small.lib"), 9, {.shortlist_goal = 256});
    picture_ = slow ? new test_photo(1, 1, 77) : new test_photo(2, 1, 77);
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete picture_;
  }

  template <class Fs, class Wrap>
  static void expect_equal(const std::string& name, const mount_options& how, const engine_options& options, Wrap wrap) {
    const library lib(folder_->file(name));
    const auto expected = match_cpu(lib, picture_->picture, {});
    const Fs fs(library_place(lib.path()).folder, how);
    const auto found = match_on_mount(fs, lib, picture_->picture, options, 64, wrap);
    ASSERT_EQ(found.matches.size(), expected.matches.size());
    for (std::size_t b = 0; b < found.matches.size(); ++b) {
      EXPECT_EQ(found.matches[b].id, expected.matches[b].id) << name << ", block " << b;
      EXPECT_EQ(found.matches[b].distance, expected.matches[b].distance) << name << ", block " << b;
      EXPECT_EQ(found.matches[b].nshortlist, expected.matches[b].nshortlist) << name << ", block " << b;
      EXPECT_EQ(found.matches[b].nbuckets, expected.matches[b].nbuckets) << name << ", block " << b;
    }
    ASSERT_TRUE(found.counters.has_value());
    EXPECT_EQ(found.counters->errors, 0u);
    EXPECT_EQ(found.counters->fault_errors, 0u);
    EXPECT_EQ(found.counters->pinned_frames, 0u);
    EXPECT_GT(found.counters->faults, 0u);
    EXPECT_GT(found.kernel_seconds, 0.0);
    EXPECT_LE(found.kernel_seconds, found.seconds);
  }

  static temporary_folder* folder_;
  static test_photo* picture_;
};

temporary_folder* baseline_collage::folder_ = nullptr;
test_photo* baseline_collage::picture_ = nullptr;

TEST_F(baseline_collage, the_original_with_the_host_side_as_it_was) {
  for (const char* name : {"plain.lib", "packed.lib", "small.lib"}) {
    for (const std::uint64_t npages : {64, 4096}) {
      mount_options how;
      how.cache_nbytes = npages * how.page_nbytes;
      expect_equal<original_mount<original_cache>>(name, original_host_side(how), {}, by_blocks);
      expect_equal<original_mount<original_cache>>(name, original_host_side(how), {}, by_warps);
    }
  }
}

TEST_F(baseline_collage, calls_by_blocks_on_our_own_cache) {
  for (std::uint32_t page_nbytes = 512; page_nbytes <= 65536; page_nbytes *= 4) {
    const mount_options how{.cache_nbytes = std::uint64_t{64} * page_nbytes, .page_nbytes = page_nbytes};
    for (const char* name : {"plain.lib", "packed.lib"}) expect_equal<mount>(name, how, {}, by_blocks);
  }
  for (const unsigned threads : {32u, 64u, 1024u}) {
    expect_equal<mount>("plain.lib", {.cache_nbytes = 8 << 20}, {.block_threads = threads}, by_blocks);
  }
}

// The same code for histograms that begin at pages and for those that straddle them; with a page a thread, which is always enough.
TEST_F(baseline_collage, through_pointers) {
  for (const char* name : {"plain.lib", "packed.lib"}) {
    for (std::uint32_t page_nbytes = 512; page_nbytes <= 65536; page_nbytes *= slow ? 128 : 2) {
      const mount_options how{.cache_nbytes = std::uint64_t{64} * page_nbytes, .page_nbytes = page_nbytes};
      expect_equal<mount>(name, how, {.block_threads = 64, .grid = 1}, by_pointers);
    }
    expect_equal<mount>(name, {.cache_nbytes = 32 * 4096}, {.block_threads = 32, .grid = 1}, by_pointers);
    expect_equal<mount>(name, {.cache_nbytes = 8 << 20}, {.grid = 8}, by_pointers);
  }
  expect_equal<mount>("small.lib", {.cache_nbytes = 8 << 20}, {.grid = 8}, by_pointers);
}

TEST_F(baseline_collage, every_design_on_every_store) {
  for (const store_kind store : {store_kind::posix, store_kind::mapped}) {
    const mount_options how{.cache_nbytes = 96 * 4096, .store = store, .internals = {.nrings = 2}};
    expect_equal<original_mount<timed_original_cache>>("plain.lib", how, {}, by_blocks);
    expect_equal<original_mount<timed_hash_and_free_list>>("plain.lib", how, {}, by_warps);
    expect_equal<original_mount<timed_hash_and_rings>>("plain.lib", how, {}, by_warps);
    expect_equal<original_mount<timed_own_cache>>("plain.lib", how, {}, by_warps);
  }
}

}  // namespace
}  // namespace gpufs::apps::collage
