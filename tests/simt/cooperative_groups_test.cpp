// SPDX-License-Identifier: Apache-2.0
// Cooperative groups where gpufs wants a group of its own; elsewhere as_group is not there.
#include <gtest/gtest.h>

#include "gpufs/simt/cooperative_groups.hpp"
#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

#if GPUFS_ON_CUDA
namespace cg = cooperative_groups;

struct as_group_kernel {
  unsigned* errors;
  GPUFS_DEVICE void operator()() const {
    const cg::thread_block whole = cg::this_thread_block();
    const auto part = cg::tiled_partition<8>(whole);
    const auto single = cg::tiled_partition<1>(whole);
    const auto b = as_group(whole);
    const auto t = as_group(part);
    static_assert(t.lanes == 8 && decltype(as_group(single))::lanes == 1);
    unsigned bad = 0;
    bad += b.rank() != whole.thread_rank() || b.size() != whole.size();
    bad += t.rank() != part.thread_rank() || t.size() != part.size();
    bad += t.ballot(t.rank() % 2 == 0) != part.ballot(part.thread_rank() % 2 == 0);
    bad += as_group(t).reduce_add(1) != 8 || as_group(b).any(false);
    if (bad != 0) atomic_ref<unsigned>(*errors).add_relaxed(bad);
  }
};

TEST(cooperative_groups, stand_for_ours) {
  device_array<unsigned> errors(1);
  launch({.grid = 2, .block = 96}, as_group_kernel{errors.get()});
  EXPECT_EQ(errors.read_one(), 0u);
}
#else
TEST(cooperative_groups, stand_for_ours) { GTEST_SKIP() << "CUDA only"; }
#endif

}  // namespace
}  // namespace gpufs::simt::test
