// SPDX-License-Identifier: Apache-2.0
// Scans, counts and compactions by a grid of more than 2^32 elements, which a GPU has the memory for; of fewer on the CPU machine.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpufs/par/compact.hpp"
#include "gpufs/par/reduce_pages.hpp"
#include "gpufs/par/scan.hpp"
#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using simt::device_array;

constexpr std::uint64_t n = GPUFS_ON_CUDA ? (std::uint64_t{1} << 32) + 1017 : 100'017;
constexpr std::uint64_t second = n - 500;  // where the second segment begins
constexpr std::uint64_t page_n = 1 << 16;
constexpr unsigned nblocks = GPUFS_ON_CUDA ? 132 : 3, nthreads = GPUFS_ON_CUDA ? 256 : 64;

// What stands at place i. Its sum over the places up to i is known: of each 64 in a row it is the same.
GPUFS_HOST_DEVICE std::uint8_t element_at(std::uint64_t i) { return static_cast<std::uint8_t>(i % 64 * 5 + 1); }
GPUFS_HOST_DEVICE std::uint64_t sum_before(std::uint64_t end) {
  const std::uint64_t of_64 = 5 * (64 * 63 / 2) + 64, rest = end % 64;  // all of 64 are below 2^9; bytes are them modulo 256
  return end / 64 * of_64 + (rest == 0 ? 0 : 5 * (rest * (rest - 1) / 2)) + rest;
}
struct is_kept {
  GPUFS_HOST_DEVICE bool operator()(std::uint8_t x) const {
    return x != 1;
  }  // all but the first of 64, as 5 i + 1 = 1 for it alone
};

enum class call : std::uint32_t { fill, scan, fixed, segments, reduce, count, compact, pages };
struct kernel {
  call what;
  std::uint8_t *in, *out;
  const std::uint64_t* offsets;
  std::uint64_t *answers, *pages;  // answers: the call's error, and what it says of all
  par::scan_space space;

  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const par::plus<std::uint8_t> op;
    std::uint64_t all = 0;
    int error = 0;
    const auto take = [&](const auto& got) {
      error = got.error;
      all = got.all;
    };
    switch (what) {
      case call::fill:
        for (std::uint64_t i = simt::grid::rank(); i < n; i += simt::grid::size()) in[i] = element_at(i);
        break;
      case call::scan:
        take(par::inclusive_scan(grid, in, out, n, op, space));
        break;
      case call::fixed:
        take(par::exclusive_scan(grid, in, out, n, op, space, par::scan_order::fixed));
        break;
      case call::segments:
        take(par::inclusive_segmented_scan(grid, in, par::heads_by_offsets{offsets, 2}, out, n, op, space));
        break;
      case call::reduce:
        take(par::reduce(grid, in, n, op, space));
        break;
      case call::count:
        take(par::count(grid, in, n, is_kept{}, space));
        break;
      case call::compact:
        take(par::compact(grid, in, out, n, is_kept{}, space));
        break;
      case call::pages:
        error = par::reduce_pages(grid, in, n, page_n, pages, par::plus<std::uint64_t>{});
        break;
    }
    if (grid.leader()) {
      answers[0] = static_cast<std::uint64_t>(static_cast<std::int64_t>(error));
      answers[1] = all;
    }
  }
};

// How many elements of the result are not what they should be.
struct compare {
  call what;
  const std::uint8_t* out;
  std::uint64_t count, *nwrong;
  GPUFS_DEVICE void operator()() const {
    std::uint64_t wrong = 0;
    for (std::uint64_t i = simt::grid::rank(); i < count; i += simt::grid::size()) {
      std::uint64_t wanted = sum_before(i + 1);
      if (what == call::fixed) wanted = sum_before(i);
      if (what == call::segments && i >= second) wanted -= sum_before(second);
      if (what == call::compact) wanted = element_at(i / 63 * 64 + i % 63 + 1);
      wrong += out[i] != static_cast<std::uint8_t>(wanted) ? 1 : 0;
    }
    if (wrong != 0) simt::atomic_ref<std::uint64_t>(*nwrong).fetch_add(wrong, std::memory_order_relaxed);
  }
};

TEST(long_arrays, are_scanned_counted_and_compacted) {
  const device_array<std::uint8_t> in(n), out(n);
  const device_array<std::uint64_t> offsets{std::span<const std::uint64_t>(std::vector<std::uint64_t>{0, second})}, answers(2),
      pages((n + page_n - 1) / page_n);
  const std::uint64_t nbytes = par::scan_space::nbytes_for<std::uint8_t>(n, nblocks, nthreads);
  const device_array<std::byte> space(nbytes);
  const simt::launch_config how{.grid = nblocks, .block = nthreads, .schedule = {.switch_percent = 0}, .cooperative = true};
  const auto run = [&](call what) {
    simt::launch(how, kernel{what, in.get(), out.get(), offsets.get(), answers.get(), pages.get(), {space.get(), nbytes}});
    EXPECT_EQ(answers.read_one(0), 0u) << static_cast<int>(what);
    return answers.read_one(1);
  };
  const auto wrong = [&](call what, std::uint64_t count) {
    const device_array<std::uint64_t> nwrong(1);
    simt::launch(how, compare{what, out.get(), count, nwrong.get()});
    return nwrong.read_one();
  };
  const auto sum = static_cast<std::uint8_t>(sum_before(n));
  const std::uint64_t nkept = n - (n + 63) / 64;
  run(call::fill);
  EXPECT_EQ(run(call::scan), sum);
  EXPECT_EQ(wrong(call::scan, n), 0u);
  EXPECT_EQ(run(call::fixed), sum);
  EXPECT_EQ(wrong(call::fixed, n), 0u);
  EXPECT_EQ(run(call::segments), static_cast<std::uint8_t>(sum_before(n) - sum_before(second)));
  EXPECT_EQ(wrong(call::segments, n), 0u);
  EXPECT_EQ(run(call::reduce), sum);
  EXPECT_EQ(run(call::count), nkept);
  EXPECT_EQ(run(call::compact), nkept);
  EXPECT_EQ(wrong(call::compact, nkept), 0u);
  run(call::pages);
  std::uint64_t of_page = 0;  // of whole pages, whose elements are the bytes of 64 in a row again and again
  for (std::uint64_t i = 0; i < 64; ++i) of_page += page_n / 64 * element_at(i);
  const std::vector<std::uint64_t> of_pages = pages.read();
  for (std::size_t p = 0; p + 1 < of_pages.size(); ++p) ASSERT_EQ(of_pages[p], of_page) << p;
  std::uint64_t of_last = 0;
  for (std::uint64_t i = (of_pages.size() - 1) * page_n; i < n; ++i) of_last += element_at(i);
  EXPECT_EQ(of_pages.back(), of_last);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
