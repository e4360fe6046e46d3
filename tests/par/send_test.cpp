// SPDX-License-Identifier: Apache-2.0
// Sends in kernels against a loop on the host: each mode, by all kinds of groups and by grids, few and many places, elements that
// go nowhere, and what must be refused.
#include "gpufs/par/send.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "leftovers.hpp"
#include "par/teams.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

template <class T, class Place, class Mode>
struct send_work {
  const T* in;
  const Place* to;
  std::uint64_t n;
  T* out;
  std::uint64_t nout;
  Mode mode;
  scan_space space;
  int* errors;  // of each block

  template <class Group>
  GPUFS_DEVICE void operator()(Group group) const {
    int error = 0;
    if constexpr (delivery<Mode> || std::is_same_v<Group, simt::grid>) {
      error = send(group, in, to, n, out, nout, mode, space);
    } else {
      error = send(group, in, to, n, out, nout, mode);
    }
    if (tells(group)) errors[simt::block_rank()] = error;
  }
};

// Products of complex whole numbers that wrap around: an operator that the library does not know.
struct complex_product {
  struct alignas(8) value {
    std::uint32_t re, im;
    friend bool operator==(const value&, const value&) = default;
  };
  GPUFS_HOST_DEVICE value identity() const { return {1, 0}; }
  GPUFS_HOST_DEVICE value operator()(const value& a, const value& b) const {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};

// What the operators do, in functions for the host, and values to draw.
template <class Mode>
struct on_host;
template <class T>
struct whole_numbers {
  using value = T;
  static T drawn(std::mt19937_64& draw) { return static_cast<T>(draw()); }
};
template <class T>
struct on_host<plus<T>> : whole_numbers<T> {
  static T of(T a, T b) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  }
};
// Whole ones, so that their sums are exact in any order.
template <>
struct on_host<plus<double>> {
  using value = double;
  static double drawn(std::mt19937_64& draw) {
    return static_cast<double>(static_cast<std::int64_t>(draw() % 2'000'001) - 1'000'000);
  }
  static double of(double a, double b) { return a + b; }
};
template <class T>
struct on_host<minimum<T>> : whole_numbers<T> {
  static T of(T a, T b) { return std::min(a, b); }
};
template <class T>
struct on_host<maximum<T>> : whole_numbers<T> {
  static T of(T a, T b) { return std::max(a, b); }
};
template <>
struct on_host<maximum<float>> {
  using value = float;
  static float drawn(std::mt19937_64& draw) {
    return draw() % 5 == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(draw() % 1000) - 500;
  }
  static float of(float a, float b) { return std::fmax(a, b); }
};
template <>
struct on_host<bit_and<std::uint32_t>> : whole_numbers<std::uint32_t> {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b) { return a & b; }
};
template <>
struct on_host<bit_or<std::uint64_t>> {
  using value = std::uint64_t;
  static value drawn(std::mt19937_64& draw) { return value{1} << draw() % 64; }
  static value of(value a, value b) { return a | b; }
};
template <>
struct on_host<bit_xor<std::uint32_t>> : whole_numbers<std::uint32_t> {
  static std::uint32_t of(std::uint32_t a, std::uint32_t b) { return a ^ b; }
};
template <>
struct on_host<complex_product> {
  using value = complex_product::value;
  static value drawn(std::mt19937_64& draw) {
    if (draw() % 8 == 0) return complex_product{}.identity();
    return {static_cast<std::uint32_t>(draw()), static_cast<std::uint32_t>(draw())};
  }
  static value of(const value& a, const value& b) { return complex_product{}(a, b); }
};

template <class T>
bool is_same(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (!(a == a) && !(b == b));
}
template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(is_same(got[i], wanted[i])) << "place " << i << " of " << got.size();
}

// What is sent where, and what is there before.
template <class T, class Place>
struct drawn_send {
  std::vector<T> values, before;
  std::vector<Place> places;

  // drawn(): a value. Some elements go nowhere.
  template <class Drawn>
  drawn_send(std::mt19937_64& draw, std::uint64_t n, std::uint64_t nout, Drawn drawn) : values(n), before(nout), places(n) {
    for (T& x : values) x = drawn();
    for (T& x : before) x = drawn();
    for (Place& place : places) place = nout == 0 || draw() % 8 == 0 ? no_place<Place> : static_cast<Place>(draw() % nout);
  }
  // What a loop gives: op(what is there, what comes).
  template <class Op>
  std::vector<T> by_loop(Op op) const {
    std::vector<T> all = before;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (places[i] != no_place<Place>) all[places[i]] = op(all[places[i]], values[i]);
    }
    return all;
  }
  // By one kind of team, in a space that has so many bytes too few.
  template <class Mode, class Kind>
  void expect(std::mt19937_64& draw, const Kind& kind, int error, const std::vector<T>& wanted, std::uint64_t too_few = 0) const {
    const drawn_space space(draw, scan_space::nbytes_to_send(delivery<Mode> ? before.size() : 0, kind.nblocks) - too_few);
    const auto in = on_device(values);
    const auto to = on_device(places);
    const guarded_array<T> out(before);
    const device_array<int> errors(kind.nblocks);
    kind.run(send_work<T, Place, Mode>{in.get(), to.get(), values.size(), out.get(), before.size(), {}, space.get(), errors.get()});
    EXPECT_EQ(errors.read(), std::vector<int>(kind.nblocks, error));
    expect_same(out.read(), wanted);
  }
};

// n and nout: lengths that a few threads and many go through in several turns, and few places and many.
template <class Call>
void for_some_lengths(Call call) {
  for (const std::uint64_t n : {0, 1, 31, 33, 257, 1500}) {
    for (const std::uint64_t nout : {std::uint64_t{1}, n / 3 + 1, 5 * n}) {
      SCOPED_TRACE(testing::Message() << n << " to " << nout);
      call(n, nout);
    }
  }
}

template <class Op>
class send_by : public ::testing::Test {};
using meeting_operators =
    ::testing::Types<plus<std::uint32_t>, plus<std::int64_t>, plus<double>, minimum<std::int32_t>, maximum<std::uint64_t>,
                     maximum<float>, bit_and<std::uint32_t>, bit_or<std::uint64_t>, bit_xor<std::uint32_t>, complex_product>;
TYPED_TEST_SUITE(send_by, meeting_operators);

TYPED_TEST(send_by, an_operator_gives_what_a_loop_gives) {
  using host = on_host<TypeParam>;
  using T = typename host::value;
  std::mt19937_64 draw(1);
  for_some_lengths([&](std::uint64_t n, std::uint64_t nout) {
    const drawn_send<T, std::uint32_t> all(draw, n, nout, [&] { return host::drawn(draw); });
    const std::vector<T> wanted = all.by_loop([](const T& there, const T& comes) { return host::of(there, comes); });
    by_each_kind(draw, [&](const auto& kind) { all.template expect<TypeParam>(draw, kind, 0, wanted); });
  });
}

// Of a byte, of 4, and of as many as there may be: half of one beside half of another would be seen.
template <std::size_t Nbytes>
struct letter {
  std::uint8_t bytes[Nbytes];
  friend bool operator==(const letter&, const letter&) = default;
};
template <class T>
class send_of : public ::testing::Test {
 protected:
  T drawn() {
    T all{};
    std::fill_n(all.bytes, sizeof all, static_cast<std::uint8_t>(draw_()));
    return all;
  }
  drawn_send<T, std::uint64_t> drawn_to(std::uint64_t n, std::uint64_t nout) {
    return {draw_, n, nout, [&] { return drawn(); }};
  }
  std::mt19937_64 draw_{2};
};
using letters = ::testing::Types<letter<1>, letter<4>, letter<32>>;
TYPED_TEST_SUITE(send_of, letters);

TYPED_TEST(send_of, elements_that_meet_keeps_the_last) {
  for_some_lengths([&](std::uint64_t n, std::uint64_t nout) {
    const auto all = this->drawn_to(n, nout);
    const auto wanted = all.by_loop([](const TypeParam&, const TypeParam& comes) { return comes; });
    by_each_kind(this->draw_, [&](const auto& kind) { all.template expect<keep_last>(this->draw_, kind, 0, wanted); });
  });
}

// Each place has one element at most, but for one pair, or none: then all arrive, or nothing does.
TYPED_TEST(send_of, elements_that_must_not_meet_is_whole_or_nothing) {
  for (const std::uint64_t n : {2u, 33u, 700u}) {
    for (const bool meet : {false, true}) {
      SCOPED_TRACE(testing::Message() << n << (meet ? ", of which two meet" : ""));
      auto all = this->drawn_to(n, n + this->draw_() % 50);
      std::vector<std::uint64_t> places(all.before.size());
      std::iota(places.begin(), places.end(), std::uint64_t{0});
      std::shuffle(places.begin(), places.end(), this->draw_);
      places.resize(n);
      if (n > 2) places[n / 2] = no_place<std::uint64_t>;
      if (meet) places[n - 1] = places[0];
      all.places = places;
      const auto wanted = meet ? all.before : all.by_loop([](const TypeParam&, const TypeParam& comes) { return comes; });
      by_each_kind(this->draw_,
                   [&](const auto& kind) { all.template expect<refuse_to_meet>(this->draw_, kind, meet ? -EEXIST : 0, wanted); });
    }
  }
}

template <class Mode>
class send_refused : public ::testing::Test {};
using modes = ::testing::Types<plus<std::uint32_t>, complex_product, keep_last, refuse_to_meet>;
TYPED_TEST_SUITE(send_refused, modes);

// One element of many goes just behind the last place, or far away; or the space has a byte too few.
TYPED_TEST(send_refused, leaves_all_as_it_was) {
  using T = std::conditional_t<std::is_same_v<TypeParam, complex_product>, complex_product::value, std::uint32_t>;
  std::mt19937_64 draw(4);
  constexpr std::uint32_t n = 300, nout = 400;
  drawn_send<T, std::uint32_t> all(draw, n, nout, [&] {
    T x{};
    std::memset(&x, static_cast<int>(draw() % 256), sizeof x);
    return x;
  });
  std::iota(all.places.begin(), all.places.end(), 7u);
  by_each_kind(draw, [&](const auto& kind) {
    for (const std::uint32_t wrong : {nout, no_place<std::uint32_t> - 1}) {
      auto some_wrong = all;
      some_wrong.places[draw() % n] = wrong;
      some_wrong.template expect<TypeParam>(draw, kind, -EDOM, all.before);
    }
    if (delivery<TypeParam> || kind.is_grid) all.template expect<TypeParam>(draw, kind, -EINVAL, all.before, 1);
  });
}

// All groups of a launch at once, to the same places.
struct many_send {
  const std::uint32_t *in, *to;
  std::uint64_t n;
  std::uint32_t* out;
  std::uint64_t nout;
  GPUFS_DEVICE void operator()() const {
    const auto warp = simt::this_warp();
    const std::uint64_t share = n / simt::global_warp_count(), begin = share * simt::global_warp_rank();
    send(warp, in + begin, to + begin, share, out, nout, plus<std::uint32_t>{});
  }
};
TEST(sends_of_many_groups, add_up_in_the_same_places) {
  constexpr std::uint64_t n = 6 * 100, nout = 7;
  std::mt19937_64 draw(5);
  drawn_send<std::uint32_t, std::uint32_t> all(draw, n, nout, [&] { return static_cast<std::uint32_t>(draw()); });
  std::fill(all.before.begin(), all.before.end(), 0u);
  const auto wanted = all.by_loop([](std::uint32_t there, std::uint32_t comes) { return there + comes; });
  const auto in = on_device(all.values), to = on_device(all.places);
  for (int trial = 0; trial < ntrials / 10; ++trial) {
    const device_array<std::uint32_t> out(nout);
    simt::launch({.grid = 3, .block = 64, .schedule = drawn_schedule(draw)}, many_send{in.get(), to.get(), n, out.get(), nout});
    EXPECT_EQ(out.read(), wanted);
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
