// SPDX-License-Identifier: Apache-2.0
// Ends of lists, sums along them and lists that are matched, in kernels, against walks on the host: one list and many, of equal and
// unequal lengths, in memory and in a file, in as few rounds as pointer jumping needs; and links that are no lists.
#include "gpufs/par/lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fstream>
#include <numeric>

#include "file/harness.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/gather.hpp"
#include "leftovers.hpp"
#include "par/teams.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

unsigned most_rounds(std::uint64_t n) { return n < 2 ? 0 : static_cast<unsigned>(std::bit_width(n - 1)); }

// Lists that lie about in an array.
template <class Place>
struct drawn_lists {
  std::vector<std::vector<Place>> lists;
  std::vector<Place> next;

  // Of these lengths.
  drawn_lists(std::mt19937_64& draw, const std::vector<std::uint64_t>& nelements) {
    std::vector<Place> order(std::accumulate(nelements.begin(), nelements.end(), std::uint64_t{0}));
    std::iota(order.begin(), order.end(), Place{0});
    std::shuffle(order.begin(), order.end(), draw);
    next.assign(order.size(), no_place<Place>);
    auto from = order.begin();
    for (const std::uint64_t length : nelements) {
      lists.emplace_back(from, from + static_cast<std::ptrdiff_t>(length));
      from += static_cast<std::ptrdiff_t>(length);
      for (std::uint64_t i = 1; i < length; ++i) next[lists.back()[i - 1]] = lists.back()[i];
    }
  }
  std::uint64_t n() const { return next.size(); }
  std::uint64_t longest() const {
    std::uint64_t most = 0;
    for (const auto& list : lists) most = std::max<std::uint64_t>(most, list.size());
    return most;
  }
};

// None, one, some that are as long as powers of two and one more and less, and many short ones.
std::vector<std::vector<std::uint64_t>> some_lengths(std::mt19937_64& draw) {
  std::vector<std::vector<std::uint64_t>> all = {{}, {1}, {2}, {3}, {64}, {65}, {63}, {1000}, {1, 1, 1}, {8, 7, 9, 1, 33, 32, 31}};
  std::vector<std::uint64_t> many;
  for (int i = 0; i < 200; ++i) many.push_back(draw() % 12);
  all.push_back(many);
  return all;
}

template <class Place, class Op>
struct list_work {
  using T = typename Op::value;
  const Place *next, *firsts, *seconds;
  std::uint64_t n, npairs;
  const T* in;
  Place *ends, *mates;
  T* sums;
  Op op;
  scan_space space;
  list_result* results;  // three of each block

  template <class Group>
  GPUFS_DEVICE void operator()(Group group) const {
    list_result of_ends;
    if constexpr (std::is_same_v<Group, simt::grid>) {
      of_ends = list_ends(group, next, n, ends, space);
    } else {
      of_ends = list_ends(group, next, n, ends);
    }
    const list_result of_sums = list_sums(group, next, in, n, sums, op, space);
    const list_result of_mates = match_lists(group, next, n, firsts, seconds, npairs, mates, space);
    if (!tells(group)) return;
    list_result* const mine = results + 3 * simt::block_rank();
    mine[0] = of_ends;
    mine[1] = of_sums;
    mine[2] = of_mates;
  }
};

// What the calls give of some links, by one kind of team.
template <class Place, class Op>
struct list_calls {
  using T = typename Op::value;
  std::vector<Place> ends, mates;
  std::vector<T> sums;
  std::vector<list_result> results;
  static constexpr Place untouched = 0x5555;

  template <class Kind>
  list_calls(const Kind& kind, const std::vector<Place>& next, const std::vector<T>& values, const std::vector<Place>& firsts,
             const std::vector<Place>& seconds, std::uint64_t space_less = 0) {
    const std::uint64_t n = next.size();
    const auto links = on_device(next), first = on_device(firsts), second = on_device(seconds);
    const guarded_array<Place> ends_of(std::vector<Place>(n, untouched)), mates_of(std::vector<Place>(n, untouched));
    const guarded_array<T> in_place(values);
    const std::uint64_t nbytes =
        std::max(scan_space::nbytes_to_sum_lists<T>(n, sizeof(Place), kind.nblocks), scan_space::nbytes_to_send(0, kind.nblocks));
    const drawn_space space(kind.draw, nbytes - space_less);
    const device_array<list_result> got(3 * kind.nblocks);
    kind.run(list_work<Place, Op>{links.get(),
                                  first.get(),
                                  second.get(),
                                  n,
                                  firsts.size(),
                                  in_place.get(),
                                  ends_of.get(),
                                  mates_of.get(),
                                  in_place.get(),
                                  {},
                                  space.get(),
                                  got.get()});
    ends = ends_of.read();
    mates = mates_of.read();
    sums = in_place.read();
    results = got.read();
  }
  void expect_errors(int of_ends, int of_sums, int of_mates) const {
    for (std::size_t i = 0; i < results.size(); i += 3) {
      EXPECT_EQ(results[i].error, of_ends);
      EXPECT_EQ(results[i + 1].error, of_sums);
      EXPECT_EQ(results[i + 2].error, of_mates);
    }
  }
};

template <class Op>
class lists_of : public ::testing::Test {};
using operators = ::testing::Types<affine, product>;
TYPED_TEST_SUITE(lists_of, operators);

TYPED_TEST(lists_of, values_are_what_a_walk_finds) {
  using T = typename TypeParam::value;
  using Place = std::conditional_t<sizeof(T) == 8, std::uint32_t, std::uint64_t>;
  std::mt19937_64 draw(1);
  for (const auto& lengths_of_lists : some_lengths(draw)) {
    const drawn_lists<Place> all(draw, lengths_of_lists);
    SCOPED_TRACE(testing::Message() << all.lists.size() << " lists of " << all.n() << " elements");
    std::vector<T> in(all.n()), sums(all.n());
    for (T& x : in) x = TypeParam::drawn(draw);
    std::vector<Place> ends(all.n()), mates(all.n(), no_place<Place>), firsts, seconds;
    for (const auto& list : all.lists) {
      T sum = TypeParam{}.identity();
      for (const Place i : list) {
        sums[i] = sum = TypeParam{}(sum, in[i]);
        ends[i] = list.back();
      }
    }
    // Neighbours are matched: 0 and 1, 2 and 3, and so on, some with an empty list, some not at all.
    for (std::size_t k = 0; k + 1 < all.lists.size(); k += 2) {
      if (k % 10 == 4) continue;
      const auto &a = all.lists[k], &b = all.lists[k + 1];
      firsts.push_back(a.empty() ? no_place<Place> : a[0]);
      seconds.push_back(b.empty() ? no_place<Place> : b[0]);
      for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        mates[a[i]] = b[i];
        mates[b[i]] = a[i];
      }
    }
    by_each_kind(draw, [&](const auto& kind) {
      const list_calls<Place, TypeParam> got(kind, all.next, in, firsts, seconds);
      got.expect_errors(0, 0, 0);
      EXPECT_EQ(got.ends, ends);
      EXPECT_EQ(got.sums, sums);
      EXPECT_EQ(got.mates, mates);
      const unsigned nrounds = std::max(1u, most_rounds(all.longest()));
      for (std::size_t i = 0; i < got.results.size(); i += 3) {
        EXPECT_LE(got.results[i].nrounds, nrounds + 1);
        EXPECT_EQ(got.results[i + 1].nrounds, nrounds);
        EXPECT_EQ(got.results[i + 2].nrounds, nrounds);
      }
    });
  }
}

// As the paper prints it, elements that have no mate never reach their list's end, and so the call does not return.
TEST(matched_lists, of_unequal_lengths_come_to_an_end) {
  std::mt19937_64 draw(2);
  for (const auto& [a, b] : {std::pair{1u, 100u}, {100u, 1u}, {64u, 65u}, {3u, 4u}, {0u, 9u}}) {
    const drawn_lists<std::uint32_t> all(draw, {a, b, 40});
    const std::uint32_t first = a == 0 ? no_place<std::uint32_t> : all.lists[0][0];
    by_each_kind(draw, [&](const auto& kind) {
      const list_calls<std::uint32_t, affine> got(kind, all.next, std::vector<affine::value>(all.n()), {first}, {all.lists[1][0]});
      got.expect_errors(0, 0, 0);
      for (std::size_t i = 0; i < b; ++i) {
        EXPECT_EQ(got.mates[all.lists[1][i]], i < a ? all.lists[0][i] : no_place<std::uint32_t>);
      }
      for (const std::uint32_t i : all.lists[2]) EXPECT_EQ(got.mates[i], no_place<std::uint32_t>);
      EXPECT_LE(got.results[2].nrounds, most_rounds(std::max({a, b, 40u})));
    });
  }
}

// Beside good ones: circles of any length, also of a power of two, after as many jumps as that all stand where they began.
TEST(links_that_are_no_lists, have_no_end) {
  std::mt19937_64 draw(3);
  for (const std::uint64_t length : {1, 2, 3, 64, 100}) {
    drawn_lists<std::uint32_t> all(draw, {length, 30, 1, 70});
    all.next[all.lists[0].back()] = all.lists[0][0];
    by_each_kind(draw, [&](const auto& kind) {
      const list_calls<std::uint32_t, affine> got(kind, all.next, std::vector<affine::value>(all.n()), {all.lists[1][0]},
                                                  {all.lists[3][0]});
      got.expect_errors(-ELOOP, -ELOOP, -ELOOP);
      for (const list_result& each : got.results) EXPECT_LE(each.nrounds, most_rounds(all.n()) + 1);
    });
  }
}

TEST(links_that_are_no_lists, are_told_before_anything_is_written) {
  std::mt19937_64 draw(4);
  const drawn_lists<std::uint32_t> all(draw, {50, 40, 5});
  const auto n = static_cast<std::uint32_t>(all.n());
  const std::uint32_t a = all.lists[0][0], b = all.lists[1][0], inside = all.lists[0][7];
  const std::vector<affine::value> in(n, {3, 4});
  const std::vector<std::uint32_t> untouched(n, list_calls<std::uint32_t, affine>::untouched);
  by_each_kind(draw, [&](const auto& kind) {
    const auto expect = [&](const std::vector<std::uint32_t>& next, const std::vector<std::uint32_t>& firsts,
                            const std::vector<std::uint32_t>& seconds, int of_ends, int of_sums, int of_mates,
                            std::uint64_t space_less = 0) {
      const list_calls<std::uint32_t, affine> got(kind, next, in, firsts, seconds, space_less);
      got.expect_errors(of_ends, of_sums, of_mates);
      EXPECT_EQ(got.ends == untouched, of_ends != 0);
      EXPECT_EQ(got.sums == in, of_sums != 0);
      EXPECT_EQ(got.mates == untouched, of_mates != 0);
    };
    expect(all.next, {a}, {b}, 0, 0, 0);
    for (const std::uint32_t wrong : {n, no_place<std::uint32_t> - 1}) {
      auto next = all.next;
      next[draw() % n] = wrong;
      expect(next, {a}, {b}, -EDOM, -EDOM, -EDOM);
      expect(all.next, {a}, {wrong}, 0, 0, -EDOM);
      expect(all.next, {wrong}, {b}, 0, 0, -EDOM);
    }
    // Two lists that join have one end, and no one sum.
    auto joined = all.next;
    joined[all.lists[2].back()] = all.lists[0][9];
    expect(joined, {a}, {b}, 0, -EEXIST, -EEXIST);
    // A list that is matched twice, with itself, or from within.
    expect(all.next, {a, a}, {b, all.lists[2][0]}, 0, 0, -EEXIST);
    expect(all.next, {a}, {a}, 0, 0, -EEXIST);
    expect(all.next, {inside}, {b}, 0, 0, -EEXIST);
    expect(all.next, {a}, {b}, 0, -EINVAL, 0, 1);
  });
}

// Two lists that join: all ends are the one there is.
TEST(list_ends, of_lists_that_join_are_one) {
  std::mt19937_64 draw(5);
  drawn_lists<std::uint64_t> all(draw, {50, 40, 5});
  for (const int k : {1, 2}) all.next[all.lists[k].back()] = all.lists[0][10 * k];
  by_each_kind(draw, [&](const auto& kind) {
    const list_calls<std::uint64_t, affine> got(kind, all.next, std::vector<affine::value>(all.n()), {}, {});
    EXPECT_EQ(got.ends, std::vector<std::uint64_t>(all.n(), all.lists[0].back()));
  });
}

// --- In a file ----------------------------------------------------------------------------------------------------------

// Nodes of 24 bytes behind a header, whose links and values come by two gathers.
struct node {
  std::uint64_t value;
  std::uint32_t name, next;
  std::uint64_t more;
};
constexpr std::uint64_t header = 20;
struct sum_in_file {
  file nodes;
  std::uint64_t n;
  std::uint32_t *numbers, *next, *ends;
  std::uint64_t* values;
  scan_space space;
  int* error;
  GPUFS_DEVICE void operator()() const {
    const auto block = simt::this_block();
    for (std::uint64_t i = block.rank(); i < n; i += block.size()) numbers[i] = static_cast<std::uint32_t>(i);
    block.sync();
    const row_layout links{.row_nbytes = 4, .nrows = n, .begin = header + offsetof(node, next), .stride_nbytes = sizeof(node)};
    const row_layout of_values{.row_nbytes = 8, .nrows = n, .begin = header, .stride_nbytes = sizeof(node)};
    const row_failure no_links = gather(block, nodes, links, numbers, n, next);
    const row_failure no_values = gather(block, nodes, of_values, numbers, n, values);
    block.sync();
    const list_result of_ends = list_ends(block, next, n, ends);
    const list_result of_sums = list_sums(block, next, values, n, values, plus<std::uint64_t>{}, space);
    if (!block.leader()) return;
    for (const int e : {no_links.error, no_values.error, of_ends.error, of_sums.error}) {
      if (e != 0) *error = e;
    }
  }
};
TEST(lists_in_a_file, have_the_sums_that_a_walk_finds) {
  std::mt19937_64 draw(6);
  const drawn_lists<std::uint32_t> all(draw, {300, 1, 2, 900, 64});
  std::vector<std::byte> bytes(header + all.n() * sizeof(node));
  std::vector<std::uint64_t> values(all.n()), sums(all.n());
  std::vector<std::uint32_t> ends(all.n());
  for (std::size_t i = 0; i < all.n(); ++i) {
    values[i] = draw();
    const node here{values[i], static_cast<std::uint32_t>(draw()), all.next[i], draw()};
    std::memcpy(bytes.data() + header + i * sizeof here, &here, sizeof here);
  }
  for (const auto& list : all.lists) {
    std::uint64_t sum = 0;
    for (const std::uint32_t i : list) {
      sums[i] = sum += values[i];
      ends[i] = list.back();
    }
  }
  const temp_dir dir;
  std::ofstream(dir / "nodes", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  mount_options options;
  options.page_nbytes = 512;
  options.cache_nbytes = 16 * 512;
  const mount m(dir.path(), options);
  const host_file nodes(m, "nodes");
  const device_array<std::uint32_t> numbers(all.n()), next(all.n()), of_ends(all.n());
  const device_array<std::uint64_t> of_sums(all.n());
  const drawn_space space(draw, scan_space::nbytes_to_sum_lists<std::uint64_t>(all.n(), 4));
  const device_array<int> error(1);
  simt::launch(
      {.block = 96, .schedule = drawn_schedule(draw)},
      sum_in_file{nodes.ref(), all.n(), numbers.get(), next.get(), of_ends.get(), of_sums.get(), space.get(), error.get()});
  EXPECT_EQ(error.read_one(), 0);
  EXPECT_EQ(of_ends.read(), ends);
  EXPECT_EQ(of_sums.read(), sums);
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
