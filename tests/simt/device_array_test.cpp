// SPDX-License-Identifier: Apache-2.0
#include "gpufs/simt/device_array.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>

#include "gpufs/simt/detail/device_memory.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::simt::test {
inline namespace GPUFS_MACHINE {

struct add_to_each {
  int* to;
  const int* what;
  std::size_t n;

  GPUFS_DEVICE void operator()() const {
    if (thread_rank() < n) to[thread_rank()] += what[thread_rank()];
  }
};

TEST(device_array, is_zeroed_or_a_copy_and_kernels_and_host_see_each_other) {
  const device_array<int> to(5), what(std::vector<int>{1, 2, 3, 4, 5});
  EXPECT_EQ(to.size(), 5u);
  EXPECT_EQ(to.read(), (std::vector<int>(5)));
  launch({.grid = 1, .block = 32}, add_to_each{to.get(), what.get(), to.size()});
  EXPECT_EQ(to.read(), what.read());
  EXPECT_EQ(to.read_one(4), 5);
  to.write(std::vector<int>{10});
  to.write_one(20, 1);
  launch({.grid = 1, .block = 32}, add_to_each{to.get(), what.get(), to.size()});
  EXPECT_EQ(to.read(), (std::vector<int>{11, 22, 6, 8, 10}));
}

TEST(device_array, moves_and_frees_once) {
  device_array<int> a(std::vector<int>{1, 2}), b(std::move(a));
  EXPECT_EQ(b.read(), (std::vector<int>{1, 2}));
  device_array<int> c(3);
  c = std::move(b);
  EXPECT_EQ(c.read(), (std::vector<int>{1, 2}));
  c = device_array<int>(1);
  EXPECT_EQ(c.read(), (std::vector<int>{0}));
  static_assert(!std::is_copy_constructible_v<device_array<int>> && !std::is_copy_assignable_v<device_array<int>>);
}

TEST(device_array, may_be_empty_and_refuses_what_is_beyond_it) {
  const device_array<int> none(0), two(2);
  EXPECT_TRUE(none.read().empty());
  none.write({});
  EXPECT_NE(none.get(), nullptr);
  EXPECT_THROW(none.read_one(), std::out_of_range);
  EXPECT_THROW(two.read_one(2), std::out_of_range);
  EXPECT_THROW(two.write(std::vector<int>(3)), std::out_of_range);
  EXPECT_THROW(two.write_one(1, 2), std::out_of_range);
  EXPECT_EQ(two.read(), (std::vector<int>{0, 0}));
  EXPECT_THROW(device_array<int>(std::numeric_limits<std::size_t>::max() / 2), std::bad_alloc);
}

TEST(device_memory, pieces_are_zeroed_or_copies_and_kernels_and_host_see_each_other) {
  device_memory memory(this_platform());
  int* to = memory.allocate<int>(5);
  const int* what = memory.allocate(std::vector<int>{1, 2, 3, 4, 5});
  EXPECT_EQ(memory.read(to, 5), std::vector<int>(5));
  launch({.grid = 1, .block = 32}, add_to_each{to, what, 5});
  EXPECT_EQ(memory.read(to, 5), memory.read(what, 5));
  EXPECT_EQ(memory.read_one(to + 4), 5);
  const std::vector<int> first{10};
  memory.write(to, std::span(first));
  memory.write_one(to + 1, 20);
  memory.zero(to + 2, 2);
  launch({.grid = 1, .block = 32}, add_to_each{to, what, 5});
  EXPECT_EQ(memory.read_or_zeros(to, 5), (std::vector<int>{11, 22, 3, 4, 10}));
}

TEST(device_memory, refuses_what_no_memory_can_have_and_keeps_the_rest) {
  device_memory memory(this_platform());
  const int* kept = memory.allocate(std::vector<int>{7});
  EXPECT_THROW(memory.allocate<std::uint64_t>(std::numeric_limits<std::size_t>::max() / 8 + 2), std::bad_alloc);
  EXPECT_NE(memory.allocate<int>(0), nullptr);
  EXPECT_EQ(memory.read_one(kept), 7);
}

TEST(device_array, of_a_string_ends_in_a_nul) {
  EXPECT_EQ(device_string("ab").read(), (std::vector<char>{'a', 'b', '\0'}));
  EXPECT_EQ(device_string("").read(), (std::vector<char>{'\0'}));
}

TEST(pinned_array, is_zeroed_and_at_one_address_for_both) {
  const pinned_array<int> to(5), what(5);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(to[i], 0);
    what[i] = static_cast<int>(i);
  }
  launch({.grid = 1, .block = 32}, add_to_each{to.get(), what.get(), to.size()});
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(to[i], what[i]);
}

TEST(platform, knows_how_much_memory_kernels_reach_from_an_address_on) {
  platform& machine = this_platform();
  const auto reached = [&](const void* ptr, std::size_t nbytes) { return machine.reachable_nbytes(ptr, nbytes); };
  const device_array<char> first(100), large(std::size_t{5} << 20);
  EXPECT_EQ(reached(first.get(), 100), 100u);
  EXPECT_EQ(reached(first.get(), 101), 100u);
  EXPECT_EQ(reached(first.get() + 99, 1000), 1u);
  EXPECT_EQ(reached(first.get(), 0), 0u);
  EXPECT_EQ(reached(large.get() + 10, large.size()), large.size() - 10);
  EXPECT_EQ(reached(nullptr, 1), 0u);
  const pinned_array<char> pinned(5000);
  EXPECT_EQ(reached(pinned.get() + 1000, 4000), 4000u);
  std::string host(1000, 'x');
  const std::size_t of_host = reached(host.data(), host.size());
  EXPECT_TRUE(of_host == host.size() || (machine.is_cuda() && of_host == 0));
  std::thread([&] { EXPECT_EQ(reached(first.get() + 50, 100), 50u); }).join();  // to whom CUDA is new
  if (machine.is_cuda() || device_count() < 2) return;
  EXPECT_EQ(device(1).reachable_nbytes(first.get(), 100), 0u);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt::test
