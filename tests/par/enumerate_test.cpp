// SPDX-License-Identifier: Apache-2.0
// The numbers of an array's elements that have a predicate, against a loop on the host, and as places that elements are sent to.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "gpufs/par/compact.hpp"
#include "gpufs/par/send.hpp"
#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

constexpr unsigned nblocks = 3, nthreads = 64, nmost = 1000;

// Elements with so many in a thousand of all values.
struct is_among_first {
  std::uint32_t below;
  template <class T>
  GPUFS_HOST_DEVICE bool operator()(const T& x) const {
    if constexpr (std::is_integral_v<T>) {
      return x % nmost < below;
    } else {
      return x.of[0] % nmost < below;
    }
  }
};

template <class T>
T drawn_element(std::mt19937_64& draw) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(draw());
  } else {
    return T{{static_cast<std::uint32_t>(draw())}};
  }
}

template <class Of>
struct enumerate_of : testing::Test {};
template <class Element, class Numbers>
struct kinds {
  using element = Element;
  using number = Numbers;
};
using all_kinds =
    testing::Types<kinds<std::uint8_t, std::uint32_t>, kinds<std::uint16_t, std::uint64_t>, kinds<std::uint32_t, std::uint32_t>,
                   kinds<std::uint32_t, std::uint64_t>, kinds<std::uint64_t, std::uint32_t>, kinds<product::value, std::uint32_t>>;
TYPED_TEST_SUITE(enumerate_of, all_kinds);

constexpr unsigned ncallers = 5;

// Each kind of caller numbers all elements for itself.
template <class T, class Number>
struct number_all {
  const T* in;
  Number* numbers;  // of each caller, `stride` of them
  std::uint64_t n, stride, *counts;
  is_among_first has;
  scan_space space;

  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const auto of_grid = enumerate(grid, in, numbers, n, has, space);
    if (grid.leader()) note(0, of_grid);
    if (simt::block_rank() != 0) return;
    by(simt::this_block(), 1);
    if (simt::warp_rank() != 0) return;
    by(simt::this_warp(), 2);
    const auto tile = simt::this_tile<8>();
    if (simt::lane_id() >= 8) return;
    by(tile, 3);
    if (tile.leader()) by(simt::this_thread(), 4);
  }

 private:
  template <class Group>
  GPUFS_DEVICE void by(Group group, unsigned caller) const {
    const auto got = enumerate(group, in, numbers + caller * stride, n, has);
    if (group.leader()) note(caller, got);
  }
  GPUFS_DEVICE void note(unsigned caller, const scan_result<std::uint64_t>& got) const {
    counts[caller] = got.error == 0 ? got.all : ~std::uint64_t{0};
  }
};

TYPED_TEST(enumerate_of, elements_is_what_a_loop_gives) {
  using T = typename TypeParam::element;
  using Number = typename TypeParam::number;
  constexpr Number untouched = 77;
  std::mt19937_64 draw(19);
  for (const std::uint64_t n : sizeof(T) == 4 ? lengths : short_lengths) {
    for (const std::uint32_t below : {0u, 3u, 100u, nmost}) {
      const std::uint64_t shift = draw() % 2, stride = (n + 31) / 16 * 16;  // so arrays begin at multiples of 16 bytes, or do not
      SCOPED_TRACE(testing::Message() << n << " elements, below " << below << ", from " << shift);
      std::vector<T> values(n + shift);
      for (T& x : values) x = drawn_element<T>(draw);
      std::vector<Number> wanted(ncallers * stride + 1, untouched);
      std::uint64_t count = 0;
      for (std::uint64_t i = 0; i < n; ++i) {
        const bool has = is_among_first{below}(values[i + shift]);
        for (unsigned caller = 0; caller < ncallers; ++caller) {
          wanted[caller * stride + i + shift] = has ? static_cast<Number>(count) : no_place<Number>;
        }
        count += has ? 1 : 0;
      }
      const device_array<T> in{std::span<const T>(values)};
      const device_array<Number> numbers{std::span<const Number>(std::vector<Number>(wanted.size(), untouched))};
      const device_array<std::uint64_t> counts(ncallers);
      const std::uint64_t nbytes = scan_space::nbytes_for<T>(n, nblocks, nthreads);
      const device_array<std::byte> space(nbytes);
      simt::launch(
          {.grid = nblocks, .block = nthreads, .schedule = drawn_schedule(draw), .cooperative = true},
          number_all<T, Number>{in.get() + shift, numbers.get() + shift, n, stride, counts.get(), {below}, {space.get(), nbytes}});
      EXPECT_EQ(counts.read(), std::vector<std::uint64_t>(ncallers, count));
      EXPECT_EQ(numbers.read(), wanted);
    }
  }
}

// Those that have it go to their numbers: no two meet, and they are what a compaction keeps.
struct send_to_numbers {
  const std::uint32_t* in;
  std::uint32_t *numbers, *sent, *kept;
  std::uint64_t n;
  int* error;
  is_among_first has;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const auto numbered = enumerate(grid, in, numbers, n, has, space);
    const int got = send(grid, in, numbers, n, sent, numbered.all, refuse_to_meet{}, space);
    grid.sync();
    compact(grid, in, kept, n, has, space);
    if (grid.leader()) *error = got;
  }
};

TEST(enumerated, elements_are_sent_to_their_numbers) {
  std::mt19937_64 draw(23);
  for (const std::uint64_t n : short_lengths) {
    std::vector<std::uint32_t> values(n);
    for (std::uint32_t& x : values) x = static_cast<std::uint32_t>(draw());
    const device_array<std::uint32_t> in{std::span<const std::uint32_t>(values)}, numbers(n), sent(n), kept(n);
    const device_array<int> error(1);
    const std::uint64_t nbytes =
        scan_space::nbytes_for<std::uint32_t>(n, nblocks, nthreads) + scan_space::nbytes_to_send(n, nblocks);
    const device_array<std::byte> space(nbytes);
    simt::launch({.grid = nblocks, .block = nthreads, .schedule = drawn_schedule(draw), .cooperative = true},
                 send_to_numbers{in.get(), numbers.get(), sent.get(), kept.get(), n, error.get(), {500}, {space.get(), nbytes}});
    EXPECT_EQ(error.read_one(), 0) << n;
    EXPECT_EQ(sent.read(), kept.read()) << n;
  }
}

// Neither reads nor writes anything.
struct number_too_many {
  std::uint64_t n, nbytes;
  scan_result<std::uint64_t>* got;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const std::uint8_t* const in = nullptr;
    std::uint32_t* const of_32_bits = nullptr;
    std::uint64_t* const of_64_bits = nullptr;
    const is_among_first has{nmost};
    const scan_space space{nullptr, nbytes};
    const scan_result<std::uint64_t> all[] = {enumerate(grid, in, of_32_bits, n, has, space),
                                              enumerate(grid, in, of_64_bits, n, has, {nullptr, 0}),
                                              enumerate(simt::this_block(), in, of_32_bits, n, has)};
    if (!grid.leader()) return;
    for (int i = 0; i < 3; ++i) got[i] = all[i];
  }
};

TEST(enumerated, elements_are_no_more_than_numbers_and_space_have_room_for) {
  const device_array<scan_result<std::uint64_t>> got(3);
  for (const std::uint64_t n : {std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    simt::launch({.grid = nblocks, .block = 32, .cooperative = true}, number_too_many{n, ~std::uint64_t{0}, got.get()});
    for (const auto& each : got.read()) {
      EXPECT_EQ(each.error, -EINVAL) << n;
      EXPECT_EQ(each.all, 0u);
    }
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
