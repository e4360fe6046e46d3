// SPDX-License-Identifier: Apache-2.0
// Reductions and scans of one value a thread, and the operators, against loops on the host.
#include "gpufs/par/group_scan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

// --- One value a thread -------------------------------------------------------------------------------------------------

struct of_threads {
  affine::value reduced, inclusive, exclusive, inclusive_segmented, exclusive_segmented;
  enumerated numbered;
};
GPUFS_HOST_DEVICE affine::value value_of(unsigned thread) { return {thread * 2654435762u + 1, thread * 40503u + 7}; }
GPUFS_HOST_DEVICE bool is_head_at(unsigned thread) { return thread % 5 == 3; }

template <class Group>
struct one_a_thread {
  of_threads* out;
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const unsigned i = simt::thread_rank();
    const affine op;
    out[i] = {reduce(group, value_of(i), op),
              inclusive_scan(group, value_of(i), op),
              exclusive_scan(group, value_of(i), op),
              inclusive_segmented_scan(group, value_of(i), is_head_at(i), op),
              exclusive_segmented_scan(group, value_of(i), is_head_at(i), op),
              enumerate(group, is_head_at(i))};
  }
};

template <class Group>
void expect_one_a_thread(unsigned nthreads, unsigned size) {
  const device_array<of_threads> out(nthreads);
  simt::launch({.block = nthreads}, one_a_thread<Group>{out.get()});
  const std::vector<of_threads> got = out.read();
  const affine op;
  for (unsigned begin = 0; begin < nthreads; begin += size) {
    affine::value all = op.identity(), of_segment = op.identity();
    std::uint32_t nheads = 0;
    for (unsigned i = begin; i < begin + size; ++i) {
      SCOPED_TRACE(i);
      if (is_head_at(i)) of_segment = op.identity();
      EXPECT_EQ(got[i].exclusive, all);
      EXPECT_EQ(got[i].exclusive_segmented, of_segment);
      EXPECT_EQ(got[i].numbered.below, nheads);
      all = op(all, value_of(i));
      of_segment = op(of_segment, value_of(i));
      nheads += is_head_at(i) ? 1 : 0;
      EXPECT_EQ(got[i].inclusive, all);
      EXPECT_EQ(got[i].inclusive_segmented, of_segment);
    }
    for (unsigned i = begin; i < begin + size; ++i) {
      EXPECT_EQ(got[i].reduced, all);
      EXPECT_EQ(got[i].numbered.all, nheads);
    }
  }
}

TEST(scan_of_threads, combines_what_is_to_the_left) {
  expect_one_a_thread<simt::thread>(32, 1);
  expect_one_a_thread<simt::tile<4>>(64, 4);
  expect_one_a_thread<simt::warp>(96, 32);
  expect_one_a_thread<simt::block>(32, 32);
  expect_one_a_thread<simt::block>(224, 224);
  expect_one_a_thread<simt::block>(1024, 1024);
}

// --- Operators ------------------------------------------------------------------------------------------------------------

struct combined {
  float least, most, least_of_none, of_nans;
  std::int32_t least_integer, most_integer, none_least, none_most;
  std::uint32_t all_bits, some_bits, odd_bits, no_and;
};
struct combine {
  combined* out;
  GPUFS_DEVICE void operator()() const {
    const auto warp = simt::this_warp();
    const unsigned i = warp.rank();
    const float nan = minimum<float>{}.identity(), real = i % 3 == 0 ? nan : static_cast<float>(i) - 10;
    const auto integer = static_cast<std::int32_t>(i) - 7;
    const combined got{reduce(warp, real, minimum<float>{}),
                       reduce(warp, real, maximum<float>{}),
                       minimum<float>{}.identity(),
                       reduce(warp, nan, maximum<float>{}),
                       reduce(warp, integer, minimum<std::int32_t>{}),
                       reduce(warp, integer, maximum<std::int32_t>{}),
                       minimum<std::int32_t>{}.identity(),
                       maximum<std::int32_t>{}.identity(),
                       reduce(warp, ~(1u << i) | 1u, bit_and<std::uint32_t>{}),
                       reduce(warp, 1u << i & ~4u, bit_or<std::uint32_t>{}),
                       reduce(warp, i, bit_xor<std::uint32_t>{}),
                       bit_and<std::uint32_t>{}.identity()};
    if (warp.leader()) *out = got;
  }
};

TEST(scan_operators, combine_numbers_and_leave_nans_out) {
  const device_array<combined> out(1);
  simt::launch({}, combine{out.get()});
  const combined got = out.read_one();
  EXPECT_EQ(got.least, -9);
  EXPECT_EQ(got.most, 21);
  EXPECT_TRUE(got.least_of_none != got.least_of_none);
  EXPECT_TRUE(got.of_nans != got.of_nans);
  EXPECT_EQ(got.least_integer, -7);
  EXPECT_EQ(got.most_integer, 24);
  EXPECT_EQ(got.none_least, std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(got.none_most, std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(got.all_bits, 1u);
  EXPECT_EQ(got.some_bits, ~4u);
  EXPECT_EQ(got.odd_bits, 0u);
  EXPECT_EQ(got.no_and, ~0u);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
