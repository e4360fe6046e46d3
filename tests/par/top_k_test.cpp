// SPDX-License-Identifier: Apache-2.0
// The first keys of an array in kernels against std::stable_sort: keys of all kinds, few and many equal ones, none, some and all of
// them, the largest and the smallest.
#include "gpufs/par/top_k.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "leftovers.hpp"
#include "par/keys.hpp"
#include "par/teams.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using par::scan_space;
using par::top;

template <class Key, class Place>
struct select_keys {
  const Key* in;
  std::uint64_t n, k;
  top which;
  Key* keys;
  Place* places;
  scan_space space;
  par::scan_result<std::uint64_t>* results;  // of each block
  template <class Group>
  GPUFS_DEVICE void operator()(Group group) const {
    const auto got = par::top_k(group, in, n, k, which, keys, places, space);
    if (tells(group)) results[simt::block_rank()] = got;
  }
};

template <class Key>
class top_k_of : public ::testing::Test {
 protected:
  // By one kind of team, in a space that has so many bytes too few.
  template <class Place, class Kind>
  void expect_first(const Kind& kind, const std::vector<Key>& all, std::uint64_t k, top which, std::uint64_t too_few = 0) {
    const std::uint64_t n = all.size(), there = std::min(n, k);
    std::vector<Place> order(n);
    std::iota(order.begin(), order.end(), Place{0});
    std::stable_sort(order.begin(), order.end(), [&](Place a, Place b) {
      return which == top::largest ? is_before(all[b], all[a]) : is_before(all[a], all[b]);
    });
    order.resize(there);
    const std::uint64_t nbytes =
        kind.is_grid ? scan_space::nbytes_for_top<Key>(n, k, kind.nblocks, kind.nthreads) : scan_space::nbytes_for_top<Key>(n, k);
    const drawn_space space(draw_, nbytes - too_few);
    const auto in = on_device(all);
    const guarded_array<Key> keys(std::vector<Key>(there, Key{1}));
    const guarded_array<Place> places(std::vector<Place>(there, Place{77}));
    const simt::device_array<par::scan_result<std::uint64_t>> results(kind.nblocks);
    kind.run(select_keys<Key, Place>{in.get(), n, k, which, keys.get(), places.get(), space.get(), results.get()});
    for (const auto& result : results.read()) {
      EXPECT_EQ(result.error, too_few == 0 ? 0 : -EINVAL);
      EXPECT_EQ(result.all, too_few == 0 ? there : 0);
    }
    if (too_few != 0) order.assign(there, Place{77});
    EXPECT_EQ(places.read(), order);
    const std::vector<Key> got = keys.read();
    for (std::uint64_t i = 0; i < there; ++i) {
      const Key wanted = too_few == 0 ? all[order[i]] : Key{1};
      ASSERT_EQ(std::memcmp(&got[i], &wanted, sizeof wanted), 0) << i << " of " << there;
    }
  }
  std::mt19937_64 draw_{1};
};
TYPED_TEST_SUITE(top_k_of, kinds_of_keys);

TYPED_TEST(top_k_of, keys_are_the_first_in_their_order) {
  for (const std::uint64_t n : short_lengths) {
    std::vector<std::uint64_t> some_k = {0, 1, 5, n / 2, n, n + 10, ~std::uint64_t{0}};
    if (n > 0) some_k.push_back(n - 1);
    for (const std::uint64_t k : some_k) {
      SCOPED_TRACE(testing::Message() << k << " of " << n);
      by_blocks_and_grids(this->draw_, [&](const auto& kind) {
        const std::vector<TypeParam> all = drawn_keys<TypeParam>(this->draw_, n);
        const top which = this->draw_() % 2 == 0 ? top::largest : top::smallest;
        if (this->draw_() % 2 == 0) {
          this->template expect_first<std::uint32_t>(kind, all, k, which);
        } else {
          this->template expect_first<std::uint64_t>(kind, all, k, which);
        }
      });
    }
  }
}

TYPED_TEST(top_k_of, keys_is_refused_in_a_space_that_is_too_small) {
  const std::vector<TypeParam> all = drawn_keys<TypeParam>(this->draw_, 300);
  by_blocks_and_grids(this->draw_, [&](const auto& kind) {
    this->template expect_first<std::uint32_t>(kind, all, 20, top::largest, 1);
    this->template expect_first<std::uint32_t>(kind, all, 20, top::largest);
  });
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
