// SPDX-License-Identifier: Apache-2.0
// Scans and reductions of arrays in kernels against a loop on the host: operators that commute and that do not, all kinds of
// groups, lengths, places in memory and heads, orders of blocks.
#include "gpufs/par/scan.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "leftovers.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

// The library's operators have no functions for the host.
struct host_sum {
  std::uint32_t identity() const { return 0; }
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a + b; }
};
struct host_maximum {
  float identity() const { return std::numeric_limits<float>::quiet_NaN(); }
  float operator()(float a, float b) const { return a != a || b > a ? b : a; }
};
template <class Op>
struct on_host {
  using type = Op;
  static typename Op::value drawn(std::mt19937_64& draw) { return Op::drawn(draw); }
};
template <>
struct on_host<plus<std::uint32_t>> {
  using type = host_sum;
  static std::uint32_t drawn(std::mt19937_64& draw) { return static_cast<std::uint32_t>(draw()); }
};
template <>
struct on_host<maximum<float>> {
  using type = host_maximum;
  static float drawn(std::mt19937_64& draw) {
    if (draw() % 8 == 0) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(static_cast<std::int64_t>(draw() % 20001) - 10000);
  }
};

bool is_same(float a, float b) { return a == b || (a != a && b != b); }
template <class T>
bool is_same(const T& a, const T& b) {
  return a == b;
}

// What one group says of one stretch of the array.
template <class T>
struct totals {
  T reduced, inclusive, exclusive, inclusive_segmented, exclusive_segmented;
  int error = 0;
};

template <class Op>
struct arrays {
  using T = typename Op::value;
  const T* in;
  any_heads heads;
  T *inclusive, *exclusive, *inclusive_segmented, *exclusive_segmented, *in_place;
  totals<T>* all;
  std::uint64_t n;
};

// Heads of a stretch that begins elsewhere.
struct heads_from {
  any_heads all;
  std::uint64_t begin;
  GPUFS_DEVICE bool operator()(std::uint64_t i) const { return all(begin + i); }
  template <unsigned N>
  GPUFS_DEVICE std::uint32_t several(std::uint64_t first) const {
    return all.several<N>(begin + first);
  }
};

// Each group has its stretch.
template <class Op, class Group>
struct by_groups {
  arrays<Op> of;
  Op op;
  std::uint64_t stretch;

  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const std::uint64_t mine = simt::thread_rank() / group.size(), begin = mine * stretch;
    const std::uint64_t n = begin >= of.n ? 0 : of.n - begin < stretch ? of.n - begin : stretch;
    const heads_from heads{of.heads, begin};
    totals<typename Op::value> all{};
    all.reduced = reduce(group, of.in + begin, n, op);
    all.inclusive = inclusive_scan(group, of.in + begin, of.inclusive + begin, n, op);
    all.exclusive = exclusive_scan(group, of.in + begin, of.exclusive + begin, n, op);
    all.inclusive_segmented = inclusive_segmented_scan(group, of.in + begin, heads, of.inclusive_segmented + begin, n, op);
    all.exclusive_segmented = exclusive_segmented_scan(group, of.in + begin, heads, of.exclusive_segmented + begin, n, op);
    exclusive_scan(group, of.in_place + begin, of.in_place + begin, n, op);
    if (group.leader()) of.all[mine] = all;
  }
};

template <class Op>
struct by_grid {
  arrays<Op> of;
  Op op;
  scan_space space;
  scan_order order;

  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    totals<typename Op::value> all{};
    const auto took = [&](const auto& result) {
      all.error = result.error != 0 ? result.error : all.error;
      return result.all;
    };
    all.reduced = took(reduce(grid, of.in, of.n, op, space));
    all.inclusive = took(inclusive_scan(grid, of.in, of.inclusive, of.n, op, space, order));
    all.exclusive = took(exclusive_scan(grid, of.in, of.exclusive, of.n, op, space, order));
    all.inclusive_segmented = took(inclusive_segmented_scan(grid, of.in, of.heads, of.inclusive_segmented, of.n, op, space, order));
    all.exclusive_segmented = took(exclusive_segmented_scan(grid, of.in, of.heads, of.exclusive_segmented, of.n, op, space, order));
    took(exclusive_scan(grid, of.in_place, of.in_place, of.n, op, space, order));
    if (simt::this_block().leader()) of.all[simt::block_rank()] = all;
  }
};

// An array of random values and heads, and what comes out of it.
template <class Op>
class scans {
  using T = typename Op::value;
  using host_op = typename on_host<Op>::type;

 public:
  scans(std::uint64_t seed, std::uint64_t n) : draw_(seed), n_(n), offset_(draw_() % 4) {
    for (std::uint64_t i = 0; i < n; ++i) in_.push_back(on_host<Op>::drawn(draw_));
    // All are heads; segments are short; they go over tiles and blocks; there is one.
    const std::uint64_t means[] = {1, 2 + draw_() % 30, 3 * segmented_tile<T>(32), 0}, mean = means[draw_() % 4];
    is_head_.resize(n);
    for (std::uint64_t i = 0; i < n; ++i) is_head_[i] = mean != 0 && draw_() % mean == 0;
    heads_kind_ = static_cast<int>(draw_() % nheads_kinds);
  }
  // The elements with is_head(i), by heads of that kind.
  template <class IsHead>
  scans(std::uint64_t seed, std::uint64_t n, IsHead is_head, int kind) : scans(seed, n) {
    for (std::uint64_t i = 0; i < n; ++i) is_head_[i] = is_head(i);
    heads_kind_ = kind;
  }

  template <class Group>
  void by(unsigned nthreads) {
    const std::uint64_t ngroups = std::is_same_v<Group, simt::block> ? 1 : nthreads / Group{}.size();
    const std::uint64_t stretch = (n_ + ngroups - 1) / ngroups;
    run(ngroups, [&](const arrays<Op>& of) {
      simt::launch<1024>({.block = nthreads, .schedule = drawn_schedule(draw_)}, by_groups<Op, Group>{of, {}, stretch});
    });
    for (std::uint64_t k = 0; k < ngroups; ++k) expect(k, std::min(n_, k * stretch), std::min(n_, (k + 1) * stretch));
  }

  void by_grid_of(unsigned nblocks, unsigned nthreads, scan_order order) {
    const std::uint64_t nbytes = scan_space::nbytes_for<T>(n_, nblocks, nthreads), before = draw_() % 9;
    const device_array<std::byte> space{std::span<const std::byte>(std::vector<std::byte>(before + nbytes, std::byte{0xab}))};
    run(nblocks, [&](const arrays<Op>& of) {
      simt::launch({.grid = nblocks, .block = nthreads, .schedule = drawn_schedule(draw_), .cooperative = true},
                   by_grid<Op>{of, {}, {space.get() + before, nbytes}, order});
    });
    for (unsigned k = 0; k < nblocks; ++k) {
      EXPECT_EQ(all_[k].error, 0);
      expect(k, 0, n_);
    }
  }

 private:
  template <class Work>
  void run(std::uint64_t nanswers, Work work) {
    const auto on_device = [&](const auto& values) {
      return device_array<typename std::remove_cvref_t<decltype(values)>::value_type>(std::span(values));
    };
    std::vector<T> shifted(offset_);
    shifted.insert(shifted.end(), in_.begin(), in_.end());
    std::vector<std::uint8_t> bytes(n_ + 1);
    std::vector<std::uint32_t> bits(n_ / 32 + 1);
    std::vector<std::uint16_t> keys(n_ + 1);
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < n_; ++i) {
      bytes[i] = is_head_[i] ? 7 : 0;
      bits[i / 32] |= static_cast<std::uint32_t>(is_head_[i]) << i % 32;
      keys[i] = static_cast<std::uint16_t>((i == 0 ? 0 : keys[i - 1]) + (is_head_[i] ? 1 : 0));
      if (is_head_[i]) offsets.insert(offsets.end(), 1 + i % 3, i);
    }
    const auto in = on_device(shifted), in_place = on_device(shifted);
    const auto of_bytes = on_device(bytes);
    const auto of_bits = on_device(bits);
    const auto of_keys = on_device(keys);
    const auto of_offsets = on_device(offsets);
    const device_array<T> inclusive(n_ + offset_), exclusive(n_ + offset_), inclusive_segmented(n_ + offset_),
        exclusive_segmented(n_ + offset_);
    const device_array<totals<T>> all(nanswers);
    work(arrays<Op>{in.get() + offset_,
                    {heads_kind_, {of_bytes.get()}, {of_bits.get()}, {of_keys.get()}, {of_offsets.get(), offsets.size()}},
                    inclusive.get() + offset_,
                    exclusive.get() + offset_,
                    inclusive_segmented.get() + offset_,
                    exclusive_segmented.get() + offset_,
                    in_place.get() + offset_,
                    all.get(),
                    n_});
    inclusive_ = inclusive.read();
    exclusive_ = exclusive.read();
    inclusive_segmented_ = inclusive_segmented.read();
    exclusive_segmented_ = exclusive_segmented.read();
    in_place_ = in_place.read();
    all_ = all.read();
  }

  // Of the elements from `begin` to `end`, which answer k is of.
  void expect(std::uint64_t k, std::uint64_t begin, std::uint64_t end) const {
    const host_op op;
    T all = op.identity(), of_segment = op.identity();
    int nwrong = 0;
    const auto same = [&](const std::vector<T>& got, std::uint64_t i, const T& wanted, const char* what) {
      if (!is_same(got[offset_ + i], wanted) && nwrong++ == 0) ADD_FAILURE() << what << " of element " << i << " of " << n_;
    };
    for (std::uint64_t i = begin; i < end; ++i) {
      if (is_head_[i]) of_segment = op.identity();
      same(exclusive_, i, all, "exclusive scan");
      same(in_place_, i, all, "exclusive scan in place");
      same(exclusive_segmented_, i, of_segment, "exclusive segmented scan");
      all = op(all, in_[i]);
      of_segment = op(of_segment, in_[i]);
      same(inclusive_, i, all, "inclusive scan");
      same(inclusive_segmented_, i, of_segment, "inclusive segmented scan");
    }
    EXPECT_EQ(nwrong, 0);
    EXPECT_TRUE(is_same(all_[k].reduced, all)) << k;
    EXPECT_TRUE(is_same(all_[k].inclusive, all)) << k;
    EXPECT_TRUE(is_same(all_[k].exclusive, all)) << k;
    EXPECT_TRUE(is_same(all_[k].inclusive_segmented, of_segment)) << k;
    EXPECT_TRUE(is_same(all_[k].exclusive_segmented, of_segment)) << k;
  }

  std::mt19937_64 draw_;
  std::uint64_t n_, offset_;
  std::vector<T> in_, inclusive_, exclusive_, inclusive_segmented_, exclusive_segmented_, in_place_;
  std::vector<totals<T>> all_;
  std::vector<bool> is_head_;
  int heads_kind_;
};

template <class Op>
class scan_of : public ::testing::Test {};
using operators = ::testing::Types<plus<std::uint32_t>, maximum<float>, affine, product>;
TYPED_TEST_SUITE(scan_of, operators);

TYPED_TEST(scan_of, by_groups_gives_what_a_loop_gives) {
  for (const std::uint64_t n : lengths) {
    SCOPED_TRACE(n);
    scans<TypeParam>(n + 1, n).template by<simt::thread>(32);
    scans<TypeParam>(n + 2, n).template by<simt::tile<8>>(64);
    scans<TypeParam>(n + 3, n).template by<simt::warp>(96);
    scans<TypeParam>(n + 4, n).template by<simt::block>(32);
    scans<TypeParam>(n + 5, n).template by<simt::block>(160);
  }
  scans<TypeParam>(1, 5000).template by<simt::block>(1024);
}

TYPED_TEST(scan_of, by_a_grid_gives_what_a_loop_gives) {
  for (const std::uint64_t n : lengths) {
    SCOPED_TRACE(n);
    for (const scan_order order : {scan_order::any, scan_order::fixed}) {
      scans<TypeParam>(n + 6, n).by_grid_of(1, 64, order);
      scans<TypeParam>(n + 7, n).by_grid_of(3, 32, order);
      scans<TypeParam>(n + 8, n).by_grid_of(4, 96, order);
    }
  }
  scans<TypeParam>(9, 40000).by_grid_of(4, 32, scan_order::any);
}

// --- Where segments begin and end -----------------------------------------------------------------------------------------

// By a grid whose blocks have about two tiles each.
template <class Op>
class segments_by_a_grid : public ::testing::Test {
 protected:
  static constexpr unsigned nblocks = 4, nthreads = nthreads_for_segments;
  static constexpr std::uint64_t tile = segmented_tile<typename Op::value>(nthreads), n = 7 * tile + tile / 2 + 3;
  static constexpr std::uint64_t row = 32 * scan_space::items_a_row(sizeof(typename Op::value));  // of a warp

  // is_head(i): whether element i is one.
  template <class IsHead>
  static void are_those_of_a_loop(IsHead is_head) {
    for (int kind = 0; kind < nheads_kinds; ++kind) {
      for (unsigned k = 0; k < norders_of_segments; ++k) {
        const scan_order order = (static_cast<unsigned>(kind) + k) % 2 == 0 ? scan_order::any : scan_order::fixed;
        SCOPED_TRACE(testing::Message() << "heads of kind " << kind << (order == scan_order::any ? "" : ", fixed order"));
        scans<Op>(20 + static_cast<std::uint64_t>(kind), n, is_head, kind).by_grid_of(nblocks, nthreads, order);
      }
    }
  }
};
TYPED_TEST_SUITE(segments_by_a_grid, operators);

TYPED_TEST(segments_by_a_grid, all_elements_are_heads) {
  this->are_those_of_a_loop([](std::uint64_t) { return true; });
}

TYPED_TEST(segments_by_a_grid, no_element_is_a_head) {
  this->are_those_of_a_loop([](std::uint64_t) { return false; });
}

TYPED_TEST(segments_by_a_grid, only_the_first_elements_of_warps_rows_are_heads) {
  this->are_those_of_a_loop([](std::uint64_t i) { return i % TestFixture::row == 0; });
}

TYPED_TEST(segments_by_a_grid, only_the_first_elements_of_tiles_are_heads) {
  this->are_those_of_a_loop([](std::uint64_t i) { return i % TestFixture::tile == 0; });
}

// From the first block's share through the second's and the third's into the fourth's (by tiles that blocks take in turn, through
// more of them).
TYPED_TEST(segments_by_a_grid, a_segment_over_three_blocks_ends_in_the_middle_of_a_tile) {
  constexpr std::uint64_t of_tile = TestFixture::tile;
  this->are_those_of_a_loop([](std::uint64_t i) { return i == of_tile / 4 + 1 || i == 6 * of_tile + of_tile / 2 + 1; });
}

// --- Several heads at a time ------------------------------------------------------------------------------------------------

struct several_heads {
  heads_by_bytes bytes;
  heads_by_bits bits;
  std::uint32_t* nwrong;
  std::uint64_t n;

  template <unsigned N>
  GPUFS_DEVICE void compare(std::uint64_t first) const {
    if (first + N > n) return;
    std::uint32_t wanted = 0;
    for (unsigned k = 0; k < N; ++k) wanted |= std::uint32_t{bytes.bytes[first + k] != 0} << k;
    if (bytes.several<N>(first) != wanted) simt::atomic_ref(nwrong[0]).add_relaxed(1);
    if (bits.several<N>(first) != wanted) simt::atomic_ref(nwrong[1]).add_relaxed(1);
  }
  GPUFS_DEVICE void operator()() const {
    for (std::uint64_t i = simt::thread_rank(); i < n; i += simt::block_size()) {
      compare<1>(i);
      compare<2>(i);
      compare<4>(i);
      compare<8>(i);
    }
  }
};

TEST(heads, are_the_same_several_at_a_time) {
  constexpr std::uint64_t n = 192;
  std::mt19937_64 draw(11);
  std::vector<std::uint8_t> bytes(n);
  std::vector<std::uint32_t> bits(n / 32);  // no word behind them is read
  for (std::uint64_t i = 0; i < n; ++i) {
    bytes[i] = draw() % 2 == 0 ? static_cast<std::uint8_t>(1 + draw() % 255) : 0;
    bits[i / 32] |= std::uint32_t{bytes[i] != 0} << i % 32;
  }
  const device_array<std::uint8_t> of_bytes{std::span<const std::uint8_t>(bytes)};
  const device_array<std::uint32_t> of_bits{std::span<const std::uint32_t>(bits)}, nwrong(2);
  simt::launch({.block = 32}, several_heads{{of_bytes.get()}, {of_bits.get()}, nwrong.get(), n});
  EXPECT_EQ(nwrong.read(), std::vector<std::uint32_t>(2));
}

// --- Just before ------------------------------------------------------------------------------------------------------------

// Elements that threads have just written are seen without a barrier of the caller's.
struct written_just_before {
  std::uint32_t *in, *out, *all;
  std::uint64_t n;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const plus<std::uint32_t> op;
    const auto write = [&](std::uint32_t value) {
      for (std::uint64_t i = grid.size() - 1 - grid.rank(); i < n; i += grid.size()) in[i] = value;
    };
    write(1);
    const std::uint32_t reduced = reduce(grid, in, n, op, space).all;
    grid.sync();
    write(2);
    const std::uint32_t fixed = inclusive_scan(grid, in, out, n, op, space, scan_order::fixed).all;
    write(3);
    const std::uint32_t any = inclusive_scan(grid, in, out, n, op, space).all;
    if (!grid.leader()) return;
    all[0] = reduced;
    all[1] = fixed;
    all[2] = any;
  }
};

TEST(scan_by_a_grid, sees_what_was_written_just_before) {
  constexpr std::uint64_t n = 1000;
  std::mt19937_64 draw(6);
  const std::uint64_t nbytes = scan_space::nbytes_for<std::uint32_t>(n, 3, 32);
  const device_array<std::byte> space(nbytes);
  for (int trial = 0; trial < ntrials; ++trial) {
    const device_array<std::uint32_t> in(n), out(n), all(3);
    simt::launch({.grid = 3, .block = 32, .schedule = drawn_schedule(draw), .cooperative = true},
                 written_just_before{in.get(), out.get(), all.get(), n, {space.get(), nbytes}});
    EXPECT_EQ(all.read(), (std::vector<std::uint32_t>{n, 2 * n, 3 * n})) << trial;
  }
}

// --- Real numbers ---------------------------------------------------------------------------------------------------------

struct sum_of_reals {
  const double* in;
  double *out, *all;
  std::uint64_t n;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const double sum = inclusive_scan(grid, in, out, n, plus<double>{}, space, scan_order::fixed).all;
    const double reduced = reduce(grid, in, n, plus<double>{}, space).all;
    if (grid.leader()) {
      all[0] = sum;
      all[1] = reduced;
    }
  }
};

TEST(scan_of_reals, has_the_same_bits_each_time_in_a_fixed_order) {
  constexpr std::uint64_t n = nreals;
  std::mt19937_64 draw(3);
  std::vector<double> values(n);
  for (double& x : values) x = std::ldexp(static_cast<double>(static_cast<std::int64_t>(draw())), static_cast<int>(draw() % 40));
  const device_array<double> in{std::span<const double>(values)};
  const std::uint64_t nbytes = scan_space::nbytes_for<double>(n, 5, 64);
  const device_array<std::byte> space(nbytes);
  std::vector<double> first;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const device_array<double> out(n), all(2);
    simt::launch({.grid = 5, .block = 64, .schedule = {.seed = seed}, .cooperative = true},
                 sum_of_reals{in.get(), out.get(), all.get(), n, {space.get(), nbytes}});
    std::vector<double> got = out.read();
    const std::vector<double> totals = all.read();
    got.insert(got.end(), totals.begin(), totals.end());
    if (seed == 1) first = got;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), first.begin(), [](double a, double b) {
      return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
    })) << seed;
    EXPECT_NEAR(totals[0] / std::accumulate(values.begin(), values.end(), 0.0), 1, 1e-9);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
