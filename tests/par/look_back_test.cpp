// SPDX-License-Identifier: Apache-2.0
// Scans by a grid in which one block is slow, so that others look back over many tiles.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "gpufs/par/scan.hpp"
#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

// x -> a x + b as above, of 16 bits each.
struct small_affine {
  struct value {
    std::uint16_t a, b;
    friend bool operator==(const value&, const value&) = default;
  };
  GPUFS_HOST_DEVICE value identity() const { return {1, 0}; }
  GPUFS_HOST_DEVICE value operator()(const value& f, const value& g) const {
    const std::uint32_t a = g.a;
    return {static_cast<std::uint16_t>(f.a * a), static_cast<std::uint16_t>(a * f.b + g.b)};
  }
  static value drawn(std::mt19937_64& draw) { return {static_cast<std::uint16_t>(draw() | 1), static_cast<std::uint16_t>(draw())}; }
};

// But one block goes slowly, so others look back over many tiles that have their own sums alone; or it is missing among them.
template <class Op>
struct slow : Op {
  using value = typename Op::value;
  unsigned block;
  GPUFS_DEVICE value operator()(const value& a, const value& b) const {
    if (simt::block_rank() == block) {
      for (int i = 0; i < 2; ++i) simt::preempt();
      const std::uint64_t until = simt::clock_ns() + 20'000;
      for (simt::backoff wait; simt::clock_ns() < until;) wait();
    }
    return Op::operator()(a, b);
  }
};
template <class Op>
struct far_back {
  using T = typename Op::value;
  const T* in;
  T* out;
  int* errors;
  std::uint64_t n;
  slow<Op> op;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const auto got = inclusive_scan(simt::this_grid(), in, out, n, op, space);
    if (simt::this_block().leader()) errors[simt::block_rank()] = got.error;
  }
};

// Values of one word, of two, and of four, of which tiles look at fewer at a time.
template <class Op>
class looks_far_back : public ::testing::Test {};
using operators_by_words = ::testing::Types<small_affine, affine, product>;
TYPED_TEST_SUITE(looks_far_back, operators_by_words);

TYPED_TEST(looks_far_back, looks_again_and_again) {
  using T = typename TypeParam::value;
  constexpr unsigned nblocks = sizeof(T) == 16 ? 100 : nblocks_to_look_back_over;
  constexpr std::uint64_t n = 2 * nblocks * 32 * scan_space::items_a_thread(sizeof(T)) - 5;
  std::mt19937_64 draw(4);
  std::vector<T> values(n), wanted;
  for (T& x : values) x = TypeParam::drawn(draw);
  T all = TypeParam{}.identity();
  for (const T& x : values) wanted.push_back(all = TypeParam{}(all, x));
  const device_array<T> in{std::span<const T>(values)}, out(n);
  const std::uint64_t nbytes = scan_space::nbytes_for<T>(n, nblocks, 32);
  const device_array<std::byte> space(nbytes);
  for (const unsigned slow_block : {0u, nblocks / 2}) {
    const device_array<int> errors(nblocks);
    simt::launch({.grid = nblocks, .block = 32, .schedule = {.seed = 1}, .cooperative = true},
                 far_back<TypeParam>{in.get(), out.get(), errors.get(), n, {{}, slow_block}, {space.get(), nbytes}});
    EXPECT_EQ(errors.read(), std::vector<int>(nblocks));
    EXPECT_EQ(out.read(), wanted);
  }
}

// A look back over tiles of which few have a head: it stops at none, and forgets all that is to the left of one.
struct far_back_by_segments {
  const affine::value* in;
  any_heads heads;
  affine::value* out;
  int* errors;
  std::uint64_t n;
  slow<affine> op;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const auto got = inclusive_segmented_scan(simt::this_grid(), in, heads, out, n, op, space);
    if (simt::this_block().leader()) errors[simt::block_rank()] = got.error;
  }
};

TEST(looks_far_back_by_segments, looks_again_and_again) {
  constexpr unsigned nblocks = nblocks_to_look_back_over;
  constexpr std::uint64_t tile = segmented_tile<affine::value>(32), n = 2 * nblocks * tile - 5;
  std::mt19937_64 draw(14);
  std::vector<affine::value> values(n), wanted;
  std::vector<std::uint8_t> bytes(n);
  std::vector<std::uint32_t> bits(n / 32 + 1);
  std::vector<std::uint16_t> keys(n);
  std::vector<std::uint64_t> offsets;
  affine::value all{};
  for (std::uint64_t i = 0; i < n; ++i) {
    values[i] = affine::drawn(draw);
    const bool is_head = i == 0 || draw() % (nblocks / 4 * tile) == 0;
    bytes[i] = is_head ? 1 : 0;
    bits[i / 32] |= static_cast<std::uint32_t>(is_head) << i % 32;
    keys[i] = static_cast<std::uint16_t>((i == 0 ? 0 : keys[i - 1]) + (is_head ? 1 : 0));
    if (is_head) offsets.push_back(i);
    all = affine{}(is_head ? affine{}.identity() : all, values[i]);
    wanted.push_back(all);
  }
  ASSERT_GT(offsets.size(), 4u);
  const device_array<affine::value> in{std::span<const affine::value>(values)};
  const device_array<std::uint8_t> of_bytes{std::span<const std::uint8_t>(bytes)};
  const device_array<std::uint32_t> of_bits{std::span<const std::uint32_t>(bits)};
  const device_array<std::uint16_t> of_keys{std::span<const std::uint16_t>(keys)};
  const device_array<std::uint64_t> of_offsets{std::span<const std::uint64_t>(offsets)};
  const std::uint64_t nbytes = scan_space::nbytes_for<affine::value>(n, nblocks, 32);
  const device_array<std::byte> space(nbytes);
  for (int kind = 0; kind < nheads_kinds; ++kind) {
    const unsigned slow_block = kind % 2 == 0 ? 0 : nblocks / 2;
    const device_array<affine::value> out(n);
    const device_array<int> errors(nblocks);
    const any_heads heads{kind, {of_bytes.get()}, {of_bits.get()}, {of_keys.get()}, {of_offsets.get(), offsets.size()}};
    simt::launch({.grid = nblocks, .block = 32, .schedule = {.seed = 1}, .cooperative = true},
                 far_back_by_segments{in.get(), heads, out.get(), errors.get(), n, {{}, slow_block}, {space.get(), nbytes}});
    EXPECT_EQ(errors.read(), std::vector<int>(nblocks));
    EXPECT_TRUE(out.read() == wanted) << "heads of kind " << kind;
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
