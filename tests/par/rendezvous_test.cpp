// SPDX-License-Identifier: Apache-2.0
// Who wants an item meets those that are free, in kernels, against a loop on the host: too few items, too many, none, all; and
// again and again until none is free.
#include "gpufs/par/rendezvous.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "leftovers.hpp"
#include "par/teams.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

using namespace par;  // NOLINT(google-build-using-namespace)
using simt::device_array;

template <class Place>
struct meet {
  const std::uint8_t* wants;
  std::uint64_t n;
  std::uint8_t* is_free;
  std::uint64_t nitems;
  Place* got;
  scan_space space;
  rendezvous_result* results;  // of each block
  template <class Group>
  GPUFS_DEVICE void operator()(Group group) const {
    const rendezvous_result mine = rendezvous(group, wants, n, is_free, nitems, got, space);
    if (tells(group)) results[simt::block_rank()] = mine;
  }
};

std::vector<std::uint8_t> drawn_bytes(std::mt19937_64& draw, std::uint64_t n, unsigned percent) {
  std::vector<std::uint8_t> bytes(n);
  for (std::uint8_t& byte : bytes) byte = draw() % 100 < percent ? static_cast<std::uint8_t>(1 + draw() % 255) : 0;
  return bytes;
}

// What a loop gives: each gets the next free item.
template <class Place>
struct by_loop {
  std::vector<std::uint8_t> is_free;
  std::vector<Place> got;
  std::uint64_t nwanted, nfree;

  by_loop(const std::vector<std::uint8_t>& wants, const std::vector<std::uint8_t>& free) : is_free(free) {
    const auto set = [](std::uint8_t byte) { return byte != 0; };
    nwanted = static_cast<std::uint64_t>(std::count_if(wants.begin(), wants.end(), set));
    nfree = static_cast<std::uint64_t>(std::count_if(free.begin(), free.end(), set));
    std::size_t next = 0;
    for (const std::uint8_t wanted : wants) {
      if (wanted != 0)
        next = static_cast<std::size_t>(std::find_if(is_free.begin() + static_cast<std::ptrdiff_t>(next), is_free.end(), set) -
                                        is_free.begin());
      const bool is_given = wanted != 0 && next < is_free.size();
      got.push_back(is_given ? static_cast<Place>(next) : no_place<Place>);
      if (is_given) is_free[next] = 0;
    }
  }
};

template <class Kind>
std::uint64_t space_for(const Kind& kind, std::uint64_t n, std::uint64_t nitems, unsigned place_nbytes) {
  return kind.is_grid ? scan_space::nbytes_to_meet(n, nitems, place_nbytes, kind.nblocks, kind.nthreads)
                      : scan_space::nbytes_to_meet(n, nitems, place_nbytes);
}

template <class Place>
class rendezvous_by : public ::testing::Test {};
using place_types = ::testing::Types<std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(rendezvous_by, place_types);

TYPED_TEST(rendezvous_by, numbers_gives_what_a_loop_gives) {
  std::mt19937_64 draw(1);
  for (const std::uint64_t n : short_lengths) {
    for (const std::uint64_t nitems : {std::uint64_t{0}, n / 3 + 1, 2 * n}) {
      for (const auto& [wanting, free] : {std::pair{50u, 50u}, {95u, 10u}, {10u, 95u}, {100u, 100u}, {0u, 100u}}) {
        SCOPED_TRACE(testing::Message() << n << " want of " << nitems << ", " << wanting << " % and " << free << " %");
        const std::vector<std::uint8_t> wants = drawn_bytes(draw, n, wanting), is_free = drawn_bytes(draw, nitems, free);
        const by_loop<TypeParam> wanted(wants, is_free);
        const auto who_wants = on_device(wants);
        by_each_kind(draw, [&](const auto& kind) {
          const guarded_array<std::uint8_t> items(is_free);
          const guarded_array<TypeParam> got(std::vector<TypeParam>(n, 77));
          const drawn_space space(draw, space_for(kind, n, nitems, sizeof(TypeParam)));
          const device_array<rendezvous_result> results(kind.nblocks);
          kind.run(meet<TypeParam>{who_wants.get(), n, items.get(), nitems, got.get(), space.get(), results.get()});
          EXPECT_EQ(got.read(), wanted.got);
          EXPECT_EQ(items.read(), wanted.is_free);
          for (const rendezvous_result& result : results.read()) {
            EXPECT_EQ(result.error, 0);
            EXPECT_EQ(result.nwanted, wanted.nwanted);
            EXPECT_EQ(result.nfree, wanted.nfree);
          }
        });
      }
    }
  }
}

TEST(rendezvous, takes_nothing_in_a_space_that_is_too_small) {
  std::mt19937_64 draw(2);
  const std::vector<std::uint8_t> wants = drawn_bytes(draw, 90, 50), is_free = drawn_bytes(draw, 70, 50);
  const auto who_wants = on_device(wants);
  by_each_kind(draw, [&](const auto& kind) {
    const guarded_array<std::uint8_t> items(is_free);
    const guarded_array<std::uint32_t> got(std::vector<std::uint32_t>(90, 77));
    const drawn_space space(draw, space_for(kind, 90, 70, 4));
    const device_array<rendezvous_result> results(kind.nblocks);
    kind.run(meet<std::uint32_t>{who_wants.get(), 90, items.get(), 70, got.get(), space.one_byte_less(), results.get()});
    for (const rendezvous_result& result : results.read()) EXPECT_EQ(result.error, -EINVAL);
    EXPECT_EQ(items.read(), is_free);
    EXPECT_EQ(got.read(), std::vector<std::uint32_t>(90, 77));
  });
}

// A grid allocates until nothing is free: each item goes to one.
struct meet_again_and_again {
  const std::uint8_t* wants;
  std::uint64_t n;
  std::uint8_t* is_free;
  std::uint64_t nitems;
  std::uint32_t *got, *ntaken;
  scan_space space;
  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    for (std::uint64_t turn = 0; turn <= nitems / n + 1; ++turn) {
      if (rendezvous(grid, wants, n, is_free, nitems, got, space).error != 0) return;
      for (std::uint64_t i = grid.size() - 1 - grid.rank(); i < n; i += grid.size()) {
        if (got[i] != no_place<std::uint32_t>) simt::atomic_ref(ntaken[got[i]]).add_relaxed(1);
      }
      grid.sync();
    }
  }
};
TEST(rendezvous, gives_each_item_once) {
  constexpr std::uint64_t n = 100, nitems = 350;
  std::mt19937_64 draw(3);
  const auto wants = on_device(std::vector<std::uint8_t>(n, 1));
  const drawn_space space(draw, scan_space::nbytes_to_meet(n, nitems, 4, 3, 32));
  for (int trial = 0; trial < ntrials / 3; ++trial) {
    const auto is_free = on_device(std::vector<std::uint8_t>(nitems, 1));
    const device_array<std::uint32_t> got(n), ntaken(nitems);
    simt::launch({.grid = 3, .block = 32, .schedule = drawn_schedule(draw), .cooperative = true},
                 meet_again_and_again{wants.get(), n, is_free.get(), nitems, got.get(), ntaken.get(), space.get()});
    EXPECT_EQ(ntaken.read(), std::vector<std::uint32_t>(nitems, 1)) << trial;
    EXPECT_EQ(is_free.read(), std::vector<std::uint8_t>(nitems));
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
