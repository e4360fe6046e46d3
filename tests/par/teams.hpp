// SPDX-License-Identifier: Apache-2.0
// What tests of calls share that groups of all kinds make, and grids: each call by each of them, in schedules drawn at random.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/simt.hpp"
#include "par/scans.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// work(group), by the launch's first group of this kind, or by all blocks.
template <class Group, class Work>
struct by_one_team {
  Work work;
  GPUFS_DEVICE void operator()() const {
    if constexpr (std::is_same_v<Group, simt::grid>) {
      work(simt::this_grid());
    } else {
      const Group group{};
      if (simt::block_rank() == 0 && simt::thread_rank() / group.size() == 0) work(group);
    }
  }
};

// By whom a kernel tells the host what its team, or each block of a grid, has got.
template <class Group>
GPUFS_DEVICE bool tells(Group group) {
  if constexpr (std::is_same_v<Group, simt::grid>) {
    return group.this_block().leader();
  } else {
    return group.leader();
  }
}

// Who calls.
template <class Group>
struct kind_of_team {
  static constexpr bool is_grid = std::is_same_v<Group, simt::grid>;
  unsigned nblocks, nthreads;
  std::mt19937_64& draw;

  template <class Work>
  void run(const Work& work) const {
    simt::launch({.grid = nblocks, .block = nthreads, .schedule = drawn_schedule(draw), .cooperative = is_grid},
                 by_one_team<Group, Work>{work});
  }
};

// call(kind) for each kind of team.
template <class Call>
void by_blocks_and_grids(std::mt19937_64& draw, Call call) {
  call(kind_of_team<simt::block>{1, 32, draw});
  call(kind_of_team<simt::block>{1, 160, draw});
  call(kind_of_team<simt::grid>{1, 64, draw});
  call(kind_of_team<simt::grid>{4, 32, draw});
}
template <class Call>
void by_each_kind(std::mt19937_64& draw, Call call) {
  call(kind_of_team<simt::thread>{1, 32, draw});
  call(kind_of_team<simt::tile<8>>{1, 32, draw});
  call(kind_of_team<simt::warp>{1, 64, draw});
  by_blocks_and_grids(draw, call);
}

template <class T>
simt::device_array<T> on_device(const std::vector<T>& values) {
  return simt::device_array<T>(std::span<const T>(values));
}

// A space at any address, full of other bytes.
class drawn_space {
 public:
  drawn_space(std::mt19937_64& draw, std::uint64_t nbytes)
      : before_(draw() % 9), nbytes_(nbytes), all_(on_device(std::vector<std::byte>(before_ + nbytes, std::byte{0xab}))) {}
  par::scan_space get() const { return {all_.get() + before_, nbytes_}; }
  par::scan_space one_byte_less() const { return {all_.get() + before_, nbytes_ - 1}; }

 private:
  std::uint64_t before_, nbytes_;
  simt::device_array<std::byte> all_;
};

// An array with other elements around it, which must stay as they are.
template <class T>
class guarded_array {
 public:
  explicit guarded_array(const std::vector<T>& values) : n_(values.size()), all_(on_device(around(values))) {}
  T* get() const { return all_.get() + nguards; }
  std::vector<T> read() const {
    const std::vector<T> all = all_.read();
    const std::vector<T> values(all.begin() + nguards, all.end() - nguards), as_they_were = around(values);
    for (std::size_t i : {std::size_t{0}, std::size_t{1}, n_ + 2, n_ + 3}) EXPECT_TRUE(same(all[i], as_they_were[i])) << i;
    return values;
  }

 private:
  static constexpr std::ptrdiff_t nguards = 2;
  static bool same(const T& a, const T& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
  static std::vector<T> around(const std::vector<T>& values) {
    T guard{};
    std::memset(&guard, 0x5a, sizeof guard);
    std::vector<T> all(values.size() + 2 * nguards, guard);
    std::copy(values.begin(), values.end(), all.begin() + nguards);
    return all;
  }
  std::size_t n_;
  simt::device_array<T> all_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
