// SPDX-License-Identifier: Apache-2.0
// Histograms in kernels against a loop on the host: few bins and more than shared memory has room for, elements of no bin, counts
// of both sizes.
#include "gpufs/par/histogram.hpp"

#include <gtest/gtest.h>

#include "leftovers.hpp"
#include "par/teams.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

// Elements of 3 bytes, and bins that are not as likely as each other; some elements have none.
struct colour {
  std::uint8_t r, g, b;
};
struct bin_of_colour {
  std::uint64_t nbins;
  GPUFS_HOST_DEVICE std::uint64_t operator()(const colour& c) const {
    const std::uint64_t all = c.r * std::uint64_t{65536} + c.g * 256u + c.b;
    return c.r < 20 ? nbins + c.g : c.r < 100 ? nbins / 2 : all % (nbins + 1);
  }
};

template <class Count>
struct count_colours {
  const colour* in;
  std::uint64_t n;
  bin_of_colour bin;
  Count* counts;
  template <class Group>
  GPUFS_DEVICE void operator()(Group group) const {
    par::histogram(group, in, n, bin, counts, bin.nbins);
  }
};

template <class Count>
class histogram_of : public ::testing::Test {};
using counts = ::testing::Types<std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(histogram_of, counts);

TYPED_TEST(histogram_of, elements_is_what_a_loop_counts) {
  std::mt19937_64 draw(1);
  for (const std::uint64_t n : lengths) {
    for (const std::uint64_t nbins : {0, 1, 7, 256, 1024, 1025, 5000}) {
      SCOPED_TRACE(testing::Message() << n << " in " << nbins << " bins");
      const bin_of_colour bin{nbins};
      std::vector<colour> colours(n);
      std::vector<TypeParam> wanted(nbins);
      for (colour& c : colours) {
        const std::uint64_t word = draw();
        c = {static_cast<std::uint8_t>(word), static_cast<std::uint8_t>(word >> 8), static_cast<std::uint8_t>(word >> 16)};
        if (bin(c) < nbins) ++wanted[bin(c)];
      }
      const auto in = on_device(colours);
      by_blocks_and_grids(draw, [&](const auto& kind) {
        const guarded_array<TypeParam> got(std::vector<TypeParam>(nbins, 99));
        kind.run(count_colours<TypeParam>{in.get(), n, bin, got.get()});
        EXPECT_EQ(got.read(), wanted);
      });
    }
  }
}

// Elements that threads have just written, and counts that others still read, without a barrier of the caller's.
struct count_again_and_again {
  std::uint32_t *in, *counts, *nwrong;
  std::uint64_t n;
  struct all_in_one {
    GPUFS_DEVICE std::uint32_t operator()(std::uint32_t x) const { return x; }
  };
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    for (std::uint32_t turn = 0; turn < 3; ++turn) {
      for (std::uint64_t i = grid.size() - 1 - grid.rank(); i < n; i += grid.size()) in[i] = turn;
      par::histogram(grid, in, n, all_in_one{}, counts, 3);
      for (std::uint32_t b = 0; b < 3; ++b) {
        if (counts[b] != (b == turn ? n : 0)) simt::atomic_ref(*nwrong).add_relaxed(1);
      }
    }
  }
};
TEST(histogram_by_a_grid, follows_what_was_written_and_read) {
  constexpr std::uint64_t n = 500;
  std::mt19937_64 draw(2);
  for (int trial = 0; trial < ntrials; ++trial) {
    const simt::device_array<std::uint32_t> in(n), counted(3), nwrong(1);
    simt::launch({.grid = 3, .block = 32, .schedule = drawn_schedule(draw), .cooperative = true},
                 count_again_and_again{in.get(), counted.get(), nwrong.get(), n});
    EXPECT_EQ(nwrong.read_one(), 0u) << trial;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
