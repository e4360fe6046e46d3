// SPDX-License-Identifier: Apache-2.0
// Counting and compaction in kernels against loops on the host, and the space of calls by a grid.
#include "gpufs/par/compact.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <random>
#include <vector>

#include "gpufs/par/rendezvous.hpp"
#include "gpufs/par/scan.hpp"
#include "gpufs/par/top_k.hpp"
#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

// --- Counting and compaction ------------------------------------------------------------------------------------------------

struct is_small {
  std::uint32_t below;
  GPUFS_HOST_DEVICE bool operator()(std::uint32_t x) const { return x % 1000 < below; }
};
struct keep_small {
  const std::uint32_t* in;
  std::uint32_t *by_warp, *by_block, *by_grid;
  std::uint64_t* counts;  // six
  std::uint64_t n;
  is_small small;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const auto counted = count(grid, in, n, small, space), kept = compact(grid, in, by_grid, n, small, space);
    if (simt::block_rank() != 0) return;
    const auto block = simt::this_block();
    const std::uint64_t in_block = compact(block, in, by_block, n, small), of_block = count(block, in, n, small);
    if (simt::warp_rank() != 0) return;
    const auto warp = simt::this_warp();
    const std::uint64_t in_warp = compact(warp, in, by_warp, n, small), of_warp = count(warp, in, n, small);
    if (!warp.leader()) return;
    const std::uint64_t all[] = {counted.all, kept.all, in_block, of_block, in_warp, of_warp};
    for (int i = 0; i < 6; ++i) counts[i] = counted.error == 0 && kept.error == 0 ? all[i] : ~std::uint64_t{0};
  }
};

TEST(compaction, keeps_some_in_their_order) {
  std::mt19937_64 draw(5);
  for (const std::uint64_t n : lengths) {
    for (const std::uint32_t below : {0u, 3u, 500u, 1000u}) {
      SCOPED_TRACE(testing::Message() << n << " elements, below " << below);
      std::vector<std::uint32_t> values(n), wanted;
      for (std::uint32_t& x : values) x = static_cast<std::uint32_t>(draw());
      for (const std::uint32_t x : values) {
        if (is_small{below}(x)) wanted.push_back(x);
      }
      const device_array<std::uint32_t> in{std::span<const std::uint32_t>(values)};
      const device_array<std::uint32_t> by_warp(wanted.size()), by_block(wanted.size()), by_grid(wanted.size());
      const device_array<std::uint64_t> counts(6);
      const std::uint64_t nbytes = scan_space::nbytes_for<std::uint32_t>(n, 3, 64);
      const device_array<std::byte> space(nbytes);
      simt::launch(
          {.grid = 3, .block = 64, .schedule = {.seed = n + 1}, .cooperative = true},
          keep_small{in.get(), by_warp.get(), by_block.get(), by_grid.get(), counts.get(), n, {below}, {space.get(), nbytes}});
      EXPECT_EQ(counts.read(), std::vector<std::uint64_t>(6, wanted.size()));
      EXPECT_EQ(by_warp.read(), wanted);
      EXPECT_EQ(by_block.read(), wanted);
      EXPECT_EQ(by_grid.read(), wanted);
    }
  }
}

// --- Space -------------------------------------------------------------------------------------------------------

// Calls that follow each other in one space, none of which may take it from those of the last one that are still at work.
struct one_after_another {
  static constexpr unsigned ncalls = 6;
  const std::uint32_t* in;
  std::uint32_t *out, *got;  // `got`: of each block, a value a call
  std::uint64_t n;
  scan_space space;
  unsigned kinds;  // two bits a call

  GPUFS_HOST_DEVICE std::uint64_t length(unsigned call) const { return n - n / 7 * call; }
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const plus<std::uint32_t> op;
    for (unsigned call = 0; call < ncalls; ++call) {
      std::uint32_t all = 0;
      switch (kinds >> 2 * call & 3) {
        case 0:
          all = reduce(grid, in, length(call), op, space).all;
          break;
        case 1:
          all = inclusive_scan(grid, in, out, length(call), op, space).all;
          break;
        case 2:
          all = inclusive_scan(grid, in, out, length(call), op, space, scan_order::fixed).all;
          break;
        default:
          all = static_cast<std::uint32_t>(compact(grid, in, out, length(call), is_small{500}, space).all);
      }
      if (simt::this_block().leader()) got[simt::block_rank() * ncalls + call] = all;
    }
  }
};

TEST(scan_space, serves_calls_that_follow_each_other) {
  constexpr std::uint64_t n = 1500;
  constexpr unsigned nblocks = 3, ncalls = one_after_another::ncalls;
  std::mt19937_64 draw(8);
  std::vector<std::uint32_t> values(n);
  for (std::uint32_t& x : values) x = static_cast<std::uint32_t>(draw());
  const device_array<std::uint32_t> in{std::span<const std::uint32_t>(values)}, out(n), got(nblocks * ncalls);
  const std::uint64_t nbytes = scan_space::nbytes_for<std::uint32_t>(n, nblocks, 32);
  const device_array<std::byte> space(nbytes);
  for (int trial = 0; trial < ntrials; ++trial) {
    const one_after_another kernel{
        in.get(), out.get(), got.get(), n, {space.get(), nbytes}, static_cast<unsigned>(draw() & draw())};
    simt::launch({.grid = nblocks, .block = 32, .schedule = drawn_schedule(draw), .cooperative = true}, kernel);
    const std::vector<std::uint32_t> answers = got.read();
    for (unsigned call = 0; call < ncalls; ++call) {
      std::uint32_t wanted = 0;
      for (std::uint64_t i = 0; i < kernel.length(call); ++i) {
        wanted += (kernel.kinds >> 2 * call & 3) != 3 ? values[i] : is_small{500}(values[i]) ? 1 : 0;
      }
      for (unsigned block = 0; block < nblocks; ++block) EXPECT_EQ(answers[block * ncalls + call], wanted) << trial;
    }
  }
}

struct refused {
  const std::uint32_t* in;
  std::uint32_t* out;
  int* errors;
  std::uint64_t n;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const plus<std::uint32_t> op;
    const int got[] = {inclusive_scan(grid, in, out, n, op, space).error,
                       inclusive_scan(grid, in, out, n, op, space, scan_order::fixed).error, reduce(grid, in, n, op, space).error,
                       compact(grid, in, out, n, is_small{1000}, space).error, count(grid, in, n, is_small{1000}, space).error};
    if (grid.leader()) {
      for (int i = 0; i < 5; ++i) errors[i] = got[i];
    }
  }
};

TEST(scan_space, that_is_a_byte_too_small_is_refused_and_nothing_is_written) {
  constexpr std::uint64_t n = 3000, nbytes = scan_space::nbytes_for<std::uint32_t>(n, 3, 32);
  const device_array<std::uint32_t> in(n), out{std::span<const std::uint32_t>(std::vector<std::uint32_t>(n, 7))};
  const device_array<int> errors(5);
  const device_array<std::byte> space(nbytes);
  const auto run = [&](std::uint64_t given) {
    simt::launch({.grid = 3, .block = 32, .cooperative = true},
                 refused{in.get(), out.get(), errors.get(), n, {space.get(), given}});
    return errors.read();
  };
  EXPECT_EQ(run(nbytes - 1), std::vector<int>(5, -EINVAL));
  EXPECT_EQ(run(0), std::vector<int>(5, -EINVAL));
  EXPECT_EQ(out.read(), std::vector<std::uint32_t>(n, 7));
  EXPECT_EQ(run(nbytes), std::vector<int>(5));
}

// What a file says of its length may be anything, -1 among it; no memory has as many elements, and no formula of the space wraps
// around for them.
struct last_of_three {
  struct value {
    std::uint64_t of[3];
  };
  GPUFS_DEVICE value identity() const { return {}; }
  GPUFS_DEVICE value operator()(const value&, const value& b) const { return b; }
};
struct far_too_long {
  std::uint64_t n;
  scan_space space;
  int* errors;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    std::uint64_t* const none = nullptr;
    std::uint8_t* const no_bytes = nullptr;
    last_of_three::value* const no_values = nullptr;
    const int got[] = {inclusive_scan(grid, no_values, no_values, n, last_of_three{}, space).error,
                       compact(grid, none, none, n, is_small{1000}, space).error,
                       rendezvous(grid, no_bytes, n, no_bytes, n, none, space).error,
                       rendezvous(simt::this_block(), no_bytes, n, no_bytes, n, none, space).error,
                       top_k(grid, none, n, n, top::largest, none, none, space).error,
                       top_k(simt::this_block(), none, n, n, top::largest, none, none, space).error};
    if (grid.leader()) {
      for (int i = 0; i < 6; ++i) errors[i] = got[i];
    }
  }
};
TEST(scan_space, of_lengths_that_no_memory_has_is_refused) {
  constexpr std::uint64_t nbytes = 1 << 16;
  const device_array<std::byte> space(nbytes);
  const device_array<int> errors(6);
  for (const std::uint64_t n : {~std::uint64_t{0}, std::uint64_t{1} << 61, std::uint64_t{1} << 60}) {
    simt::launch({.grid = 3, .block = 32, .cooperative = true}, far_too_long{n, {space.get(), nbytes}, errors.get()});
    EXPECT_EQ(errors.read(), std::vector<int>(6, -EINVAL)) << n;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
