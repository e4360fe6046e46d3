// SPDX-License-Identifier: Apache-2.0
// Sorts in kernels against std::stable_sort: keys of all kinds and sizes, few and many equal ones, values, lengths, orders of
// blocks.
#include "gpufs/par/sort.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/keys.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using par::scan_space;
using simt::device_array;

template <class Key>
struct arrays_to_sort {
  Key *keys, *keys_space, *alone, *alone_space;
  std::uint32_t *values, *values_space;
  std::uint64_t n;
};

template <class Key>
struct sort_in_block {
  arrays_to_sort<Key> of;
  GPUFS_DEVICE void operator()() const {
    par::sort(simt::this_block(), of.keys, of.values, of.n, of.keys_space, of.values_space);
    par::sort(simt::this_block(), of.alone, of.n, of.alone_space);
  }
};
template <class Key>
struct sort_in_grid {
  arrays_to_sort<Key> of;
  scan_space space;
  int* errors;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const int error = par::sort(grid, of.keys, of.values, of.n, of.keys_space, of.values_space, space);
    const int error_alone = par::sort(grid, of.alone, of.n, of.alone_space, space);
    if (grid.this_block().leader()) errors[simt::block_rank()] = error != 0 ? error : error_alone;
  }
};

template <class Key>
class sort_of : public ::testing::Test {
 protected:
  // sort(arrays): does it.
  template <class Sort>
  void expect_sorted(std::uint64_t n, Sort sort) {
    const std::vector<Key> keys = drawn_keys<Key>(draw_, n);
    std::vector<std::uint32_t> places(n), order(n);
    std::iota(places.begin(), places.end(), 0u);
    order = places;
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return is_before(keys[a], keys[b]); });
    const device_array<Key> on_device{std::span<const Key>(keys)}, alone{std::span<const Key>(keys)}, space(n), alone_space(n);
    const device_array<std::uint32_t> values{std::span<const std::uint32_t>(places)}, values_space(n);
    sort(arrays_to_sort<Key>{on_device.get(), space.get(), alone.get(), alone_space.get(), values.get(), values_space.get(), n});
    EXPECT_EQ(values.read(), order);
    const std::vector<Key> got = on_device.read(), got_alone = alone.read();
    std::uint64_t nwrong = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      const Key& wanted = keys[order[i]];
      nwrong +=
          std::memcmp(&got[i], &wanted, sizeof wanted) != 0 || std::memcmp(&got_alone[i], &wanted, sizeof wanted) != 0 ? 1 : 0;
    }
    EXPECT_EQ(nwrong, 0u);
  }

  std::mt19937_64 draw_{12};
};
TYPED_TEST_SUITE(sort_of, kinds_of_keys);

TYPED_TEST(sort_of, a_block_is_stable) {
  for (const std::uint64_t n : lengths) {
    for (const unsigned nthreads : {32u, 160u}) {
      SCOPED_TRACE(testing::Message() << n << " by " << nthreads);
      this->expect_sorted(n, [&](const arrays_to_sort<TypeParam>& of) {
        simt::launch({.block = nthreads, .schedule = drawn_schedule(this->draw_)}, sort_in_block<TypeParam>{of});
      });
    }
  }
}

TYPED_TEST(sort_of, a_grid_is_stable) {
  for (const std::uint64_t n : lengths) {
    for (const unsigned nblocks : {1u, 5u}) {
      SCOPED_TRACE(testing::Message() << n << " by " << nblocks);
      const std::uint64_t nbytes = scan_space::nbytes_to_sort(nblocks);
      const device_array<std::byte> space{std::span<const std::byte>(std::vector<std::byte>(nbytes + 3, std::byte{0xab}))};
      const device_array<int> errors(nblocks);
      this->expect_sorted(n, [&](const arrays_to_sort<TypeParam>& of) {
        simt::launch({.grid = nblocks, .block = 64, .schedule = drawn_schedule(this->draw_), .cooperative = true},
                     sort_in_grid<TypeParam>{of, {space.get() + 3, nbytes}, errors.get()});
      });
      EXPECT_EQ(errors.read(), std::vector<int>(nblocks));
    }
  }
}

// More keys with one digit than the 16 bits hold in which a tile's are counted.
TEST(sort_by_a_block, counts_more_equal_digits_than_a_tile_has) {
  constexpr std::uint64_t n = 150'001;
  std::vector<std::uint8_t> drawn(n);
  for (std::uint64_t i = 0; i < n; ++i) drawn[i] = i % 4 == 0 ? 1 : 0;
  std::vector<std::uint32_t> numbers(n), wanted(n);
  std::iota(numbers.begin(), numbers.end(), 0u);
  wanted = numbers;
  std::stable_partition(wanted.begin(), wanted.end(), [&](std::uint32_t i) { return drawn[i] == 0; });
  const device_array<std::uint8_t> keys{std::span<const std::uint8_t>(drawn)}, keys_space(n),
      alone{std::span<const std::uint8_t>(drawn)}, alone_space(n);
  const device_array<std::uint32_t> values{std::span<const std::uint32_t>(numbers)}, values_space(n);
  simt::launch({.block = 64, .schedule = {.switch_percent = 0}},
               sort_in_block<std::uint8_t>{
                   {keys.get(), keys_space.get(), alone.get(), alone_space.get(), values.get(), values_space.get(), n}});
  EXPECT_EQ(values.read(), wanted);
  std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(keys.read(), drawn);
  EXPECT_EQ(alone.read(), drawn);
}

TEST(sort_by_a_grid, refuses_a_space_that_is_a_byte_too_small) {
  const std::vector<std::uint32_t> values = {3, 1, 2};
  const device_array<std::uint32_t> keys{std::span<const std::uint32_t>(values)}, keys_space(3), alone{std::span(values)},
      alone_space(3), moved(3), moved_space(3);
  const std::uint64_t nbytes = scan_space::nbytes_to_sort(2);
  const device_array<std::byte> space(nbytes);
  const device_array<int> errors(2);
  simt::launch(
      {.grid = 2, .block = 32, .cooperative = true},
      sort_in_grid<std::uint32_t>{{keys.get(), keys_space.get(), alone.get(), alone_space.get(), moved.get(), moved_space.get(), 3},
                                  {space.get(), nbytes - 1},
                                  errors.get()});
  EXPECT_EQ(errors.read(), std::vector<int>(2, -EINVAL));
  EXPECT_EQ(keys.read(), values);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
