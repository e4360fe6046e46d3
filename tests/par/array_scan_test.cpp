// SPDX-License-Identifier: Apache-2.0
// Scans and reductions of arrays at the host's call, one after the other as if of one array, against loops.
#include "gpufs/par/array_scan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

// For the host, too.
template <class T>
struct sum_of {
  using value = T;
  GPUFS_HOST_DEVICE T identity() const { return 0; }
  GPUFS_HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a + b); }
  static T drawn(std::mt19937_64& draw) { return static_cast<T>(draw()); }
};
// With a word that kernels must get: x + y + by - by.
struct sum_with_word {
  using value = std::uint64_t;
  std::uint64_t by = 1;
  GPUFS_HOST_DEVICE value identity() const { return 0 - by; }
  GPUFS_HOST_DEVICE value operator()(value a, value b) const { return a + b + by; }
  static value drawn(std::mt19937_64& draw) { return draw(); }
};

template <class Op>
std::vector<typename Op::value> drawn_elements(std::mt19937_64& draw, std::uint64_t n) {
  std::vector<typename Op::value> elements;
  for (std::uint64_t i = 0; i < n; ++i) elements.push_back(Op::drawn(draw));
  return elements;
}

// Calls of all three kinds, one after the other, on parts of one array.
template <class Op, scan_order Order>
void expect_parts_as_one_array(std::mt19937_64& draw, const Op& op) {
  using T = typename Op::value;
  constexpr std::uint64_t most = 3000;
  const simt::stream turns;
  array_scan<Op, Order> scan(most, simt::this_platform(), op);
  EXPECT_TRUE(scan.all(turns) == op.identity());
  for (int round = 0; round < 4; ++round) {
    T before = op.identity();
    if (round == 2) {
      before = Op::drawn(draw);
      scan.restart(before);
    }
    for (int part = 0; part < 5; ++part) {
      const std::uint64_t n = part == 3 ? most : draw() % 4 == 0 ? 0 : draw() % most, shift = draw() % 3;
      auto elements = drawn_elements<Op>(draw, n + shift);
      const device_array<T> in{std::span<const T>(elements)}, other(n + shift);
      const bool in_place = draw() % 2 == 0;
      const device_array<T>& out = in_place ? in : other;
      const unsigned what = static_cast<unsigned>(draw() % 3);
      if (what == 0) scan.inclusive(in.get() + shift, out.get() + shift, n, turns);
      if (what == 1) scan.exclusive(in.get() + shift, out.get() + shift, n, turns);
      if (what == 2) scan.reduce(in.get() + shift, n, turns);
      std::vector<T> want = elements;
      for (std::uint64_t i = shift; i < n + shift; ++i) {
        const T with_it = op(before, elements[i]);
        want[i] = what == 0 ? with_it : what == 1 ? before : elements[i];
        before = with_it;
      }
      if (part % 2 == 0) {  // else the next call is enqueued behind this one
        EXPECT_TRUE(scan.all(turns) == before);
      } else {
        turns.wait();
      }
      const auto got = (what == 2 ? in : out).read();
      EXPECT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(shift), got.end(),
                             want.begin() + static_cast<std::ptrdiff_t>(shift)))
          << "call " << what << " of " << n;
      EXPECT_TRUE(in_place || in.read() == elements);
    }
    EXPECT_TRUE(scan.all(turns) == before);
    scan.restart();
    EXPECT_TRUE(scan.all(turns) == op.identity());
  }
}
template <class Op>
void expect_parts_as_one_array(const Op& op = {}) {
  std::mt19937_64 draw(7);
  expect_parts_as_one_array<Op, scan_order::any>(draw, op);
  expect_parts_as_one_array<Op, scan_order::fixed>(draw, op);
}

TEST(array_scan, goes_on_from_call_to_call) {
  expect_parts_as_one_array<sum_of<std::uint32_t>>();
  expect_parts_as_one_array<sum_of<std::uint8_t>>();
  expect_parts_as_one_array<affine>();
  expect_parts_as_one_array<product>();
}

TEST(array_scan, has_the_operators_state) { expect_parts_as_one_array(sum_with_word{12345}); }

TEST(array_scan, in_fixed_order_has_the_same_bits) {
  constexpr std::uint64_t n = 20'011;
  std::mt19937_64 draw(3);
  std::vector<float> elements;
  for (std::uint64_t i = 0; i < n; ++i)
    elements.push_back(std::ldexp(static_cast<float>(draw() % 1000), static_cast<int>(draw() % 40) - 20));
  const device_array<float> in{std::span<const float>(elements)}, out(n);
  const simt::stream turns;
  std::vector<float> first;
  for (int run = 0; run < 4; ++run) {
    array_scan<plus<float>, scan_order::fixed> scan(n + static_cast<std::uint64_t>(run) * 1000);
    scan.inclusive(in.get(), out.get(), n, turns);
    turns.wait();
    const auto got = out.read();
    if (run == 0) first = got;
    EXPECT_EQ(std::memcmp(got.data(), first.data(), n * sizeof(float)), 0);
    double sum = 0;
    for (const float x : elements) sum += x;
    EXPECT_NEAR(scan.all(turns), sum, sum * 1e-5);
  }
}

TEST(array_scan, takes_a_workspace_of_the_callers) {
  using scan_type = array_scan<plus<std::uint32_t>>;
  constexpr std::uint64_t n = 5000;
  const std::size_t nbytes = scan_type::workspace_nbytes(n);
  EXPECT_GE(scan_type::workspace_nbytes(2 * n), nbytes);
  const device_array<std::byte> memory(nbytes + 256);
  const std::vector<std::byte> leftover(memory.size(), std::byte{0xa5});
  memory.write(leftover);
  {
    scan_type scan(std::span(memory.get(), nbytes), n);
    const std::vector<std::uint32_t> ones(n, 1);
    const device_array<std::uint32_t> in{std::span<const std::uint32_t>(ones)};
    const simt::stream turns;
    scan.exclusive(in.get(), in.get(), n, turns);
    EXPECT_EQ(scan.all(turns), n);
    const auto got = in.read();
    for (std::uint64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], i);
  }
  const auto after = memory.read();
  EXPECT_TRUE(std::ranges::all_of(std::span(after).subspan(nbytes), [](std::byte b) { return b == std::byte{0xa5}; }));
  EXPECT_THROW(scan_type(std::span(memory.get(), nbytes - 1), n), std::invalid_argument);
  EXPECT_THROW(scan_type(std::span(memory.get() + 8, nbytes), n), std::invalid_argument);
  EXPECT_THROW(scan_type(std::span<std::byte>(), n), std::invalid_argument);
}

TEST(array_scan, refuses_what_it_cannot_scan) {
  constexpr std::uint64_t n = 100;
  array_scan<plus<std::uint32_t>> scan(n);
  const std::vector<std::uint32_t> ones(2 * n, 1);
  const device_array<std::uint32_t> in{std::span<const std::uint32_t>(ones)};
  const simt::stream turns;
  const auto expect_refused = [&](const auto& call) {
    EXPECT_THROW(call(), std::invalid_argument);
    EXPECT_EQ(scan.all(turns), 0u);
  };
  expect_refused([&] { scan.inclusive(in.get(), in.get(), n + 1, turns); });
  expect_refused([&] { scan.reduce(in.get(), n + 1, turns); });
  expect_refused([&] { scan.inclusive(in.get(), in.get() + 1, n, turns); });
  expect_refused([&] { scan.exclusive(in.get() + n - 1, in.get(), n, turns); });
  expect_refused([&] { scan.inclusive(in.get(), nullptr, n, turns); });
  expect_refused([&] { scan.reduce(nullptr, n, turns); });
  scan.inclusive(nullptr, nullptr, 0, turns);  // none is no address
  EXPECT_EQ(scan.all(turns), 0u);
  if (simt::device_count() > 1) {
    const simt::stream elsewhere(simt::device(1));
    expect_refused([&] { scan.reduce(in.get(), n, elsewhere); });
  }
  scan.inclusive(in.get(), in.get() + n, n, turns);  // side by side they do not overlap
  EXPECT_EQ(scan.all(turns), n);
}

TEST(array_scan, goes_by_pinned_memory) {
  constexpr std::uint64_t n = 4097;
  const simt::pinned_array<std::uint64_t> in(n);
  for (std::uint64_t i = 0; i < n; ++i) in[i] = i;
  array_scan<plus<std::uint64_t>> scan(n);
  const simt::stream turns;
  scan.inclusive(in.get(), in.get(), n, turns);
  EXPECT_EQ(scan.all(turns), n * (n - 1) / 2);
  for (std::uint64_t i = 0; i < n; ++i) ASSERT_EQ(in[i], i * (i + 1) / 2);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
