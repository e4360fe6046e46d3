// SPDX-License-Identifier: Apache-2.0
// Several devices in one process. The CPU machine has two; on CUDA these tests need a machine with two GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/simt/detail/device_memory.hpp"
#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
inline namespace GPUFS_MACHINE {
namespace {

#define GPUFS_NEEDS_TWO_DEVICES() \
  if (device_count() < 2) GTEST_SKIP() << "there is one device here"

struct add_to_each {
  int* numbers;
  std::size_t n;
  int what;

  GPUFS_DEVICE void operator()() const {
    for (std::size_t i = block_rank() * block_size() + thread_rank(); i < n; i += std::size_t{grid_size()} * block_size()) {
      numbers[i] += what;
    }
  }
};

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(device, has_a_number_and_stays) {
  ASSERT_GE(device_count(), 1);
  for (int i = 0; i < device_count(); ++i) {
    if (const std::string why = refusal([i] { device(i); }); !why.empty()) {  // an old GPU beside one that will do
      EXPECT_NE(why.find("gpufs needs 8.0"), std::string::npos) << why;
      continue;
    }
    platform& one = device(i);
    EXPECT_EQ(one.index(), i);
    EXPECT_EQ(&one, &device(i));
    EXPECT_EQ(one.is_cuda(), GPUFS_ON_CUDA == 1);
    EXPECT_GT(one.free_nbytes(), 0u);
    EXPECT_LE(one.free_nbytes(), one.memory_nbytes());
  }
  EXPECT_EQ(&this_platform(), &device(0));
}

TEST(device, that_there_is_not_is_refused_with_how_many_there_are) {
  EXPECT_THROW(device(device_count()), std::out_of_range);
  EXPECT_THROW(device(-1), std::out_of_range);
  const std::string why = refusal([] { device(99); });
  EXPECT_NE(why.find("there is no device 99"), std::string::npos) << why;
  EXPECT_NE(why.find(std::to_string(device_count())), std::string::npos) << why;
  EXPECT_NE(why.find(GPUFS_ON_CUDA == 1 ? "CUDA_VISIBLE_DEVICES" : "GPUFS_SIMT_DEVICES"), std::string::npos) << why;
}

TEST(device, is_current_for_a_thread_as_long_as_asked) {
  GPUFS_NEEDS_TWO_DEVICES();
  EXPECT_EQ(this_platform().index(), 0);
  {
    const on_device here(device(1));
    EXPECT_EQ(this_platform().index(), 1);
    EXPECT_EQ(device_array<int>(1).device().index(), 1);
    EXPECT_EQ(stream().device().index(), 1);
    {
      const on_device there(device(0));
      EXPECT_EQ(this_platform().index(), 0);
    }
    EXPECT_EQ(this_platform().index(), 1);
    std::thread([] { EXPECT_EQ(this_platform().index(), 0); }).join();
  }
  EXPECT_EQ(this_platform().index(), 0);
}

// Streams of both at once, each with its own copies and kernels.
TEST(device, two_run_kernels_in_one_process) {
  GPUFS_NEEDS_TWO_DEVICES();
  constexpr std::size_t n = 5000;
  constexpr int nrounds = 4;
  struct half {
    platform& on;
    stream turns{on};
    device_array<int> numbers{n, on};
    pinned_array<int> in{n, on}, out{n, on};
  };
  half halves[] = {{device(0)}, {device(1)}};
  for (half& h : halves) std::iota(h.in.get(), h.in.get() + n, 10 * h.on.index());
  for (half& h : halves) {
    h.numbers.write(h.in.span(), h.turns);
    for (int round = 0; round < nrounds; ++round) {
      launch({.grid = 3, .block = 64}, add_to_each{h.numbers.get(), n, 1000 * (h.on.index() + 1)}, h.turns);
    }
    h.numbers.read(h.out.span(), h.turns);
  }
  for (half& h : halves) {
    h.turns.wait();
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(h.out[i], static_cast<int>(i) + 10 * h.on.index() + nrounds * 1000 * (h.on.index() + 1))
          << "device " << h.on.index();
    }
  }
  EXPECT_EQ(this_platform().index(), 0);  // as it was
}

TEST(device, two_run_kernels_of_two_host_threads) {
  GPUFS_NEEDS_TWO_DEVICES();
  std::vector<std::thread> threads;
  std::vector<int> sums(2);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([i, &sums] {
      const on_device here(device(i));
      const device_array<int> numbers(1000);
      for (int round = 0; round < 5; ++round) launch({.grid = 2, .block = 32}, add_to_each{numbers.get(), numbers.size(), i + 1});
      const std::vector<int> all = numbers.read();
      sums[static_cast<std::size_t>(i)] = std::accumulate(all.begin(), all.end(), 0);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(sums, (std::vector<int>{5000, 10000}));
}

// Made while one device is current, used and ended while another is.
TEST(device, what_has_one_keeps_it) {
  GPUFS_NEEDS_TWO_DEVICES();
  const std::size_t before = device(1).free_nbytes();
  {
    const device_array<int> numbers(std::vector<int>{1, 2, 3}, device(1));
    device_memory pieces(device(1));
    const int* piece = pieces.allocate(std::vector<int>{4, 5});
    const stream turns(device(1));
    EXPECT_EQ(this_platform().index(), 0);
    launch({}, add_to_each{numbers.get(), 3, 10}, turns);
    turns.wait();
    EXPECT_EQ(numbers.read(), (std::vector<int>{11, 12, 13}));
    EXPECT_EQ(pieces.read(piece, 2), (std::vector<int>{4, 5}));
  }
  if constexpr (GPUFS_ON_CUDA == 0) {  // others may use a GPU
    EXPECT_EQ(device(1).free_nbytes(), before);
  }
}

TEST(device, reads_pinned_memory_that_another_has_allocated) {
  GPUFS_NEEDS_TWO_DEVICES();
  const pinned_array<int> numbers(100, device(0));
  for (int& number : numbers.span()) number = 1;
  const on_device here(device(1));
  launch({}, add_to_each{numbers.get(), numbers.size(), 5});
  EXPECT_EQ(std::count(numbers.span().begin(), numbers.span().end(), 6), 100);
}

TEST(stream, copies_in_its_turn_and_refuses_what_does_not_fit) {
  const device_array<int> numbers(4);
  const pinned_array<int> in(4), out(4);
  std::iota(in.get(), in.get() + 4, 1);
  const stream turns;
  numbers.write(in.span(), turns);
  launch({}, add_to_each{numbers.get(), 4, 100}, turns);
  numbers.read(out.span().first(3), turns);
  turns.wait();
  EXPECT_EQ((std::vector<int>(out.get(), out.get() + 4)), (std::vector<int>{101, 102, 103, 0}));
  const pinned_array<int> five(5);
  EXPECT_THROW(numbers.write(five.span(), turns), std::out_of_range);
  EXPECT_THROW(numbers.read(five.span(), turns), std::out_of_range);
  turns.wait();
}

#if !GPUFS_ON_CUDA  // what the CPU machine looks for

TEST(device, has_its_own_account_of_memory) {
  GPUFS_NEEDS_TWO_DEVICES();
  const std::size_t before[] = {device(0).free_nbytes(), device(1).free_nbytes()};
  {
    const device_array<char> some(1 << 20, device(1));
    EXPECT_EQ(device(0).free_nbytes(), before[0]);
    EXPECT_EQ(device(1).free_nbytes(), before[1] - (1 << 20));
    EXPECT_THROW(device(1).allocate_device(device(1).free_nbytes() + 1), std::bad_alloc);
  }
  EXPECT_EQ(device(1).free_nbytes(), before[1]);
}

TEST(device, refuses_to_copy_from_and_to_another) {
  GPUFS_NEEDS_TWO_DEVICES();
  const device_array<int> here(4, device(0)), there(4, device(1));
  int word = 0;
  EXPECT_THROW(device(0).copy_from_device(&word, there.get(), sizeof word), std::invalid_argument);
  EXPECT_THROW(device(1).copy_to_device(here.get() + 3, &word, sizeof word), std::invalid_argument);
  EXPECT_THROW(device(1).zero_device(here.get(), sizeof word), std::invalid_argument);
  const std::string why = refusal([&] { device(0).copy_from_device(&word, there.get(), sizeof word); });
  EXPECT_NE(why.find("device 0 of the cpu machine, but the memory is device 1's"), std::string::npos) << why;
  const stream turns(device(0));
  turns.copy_from_device(&word, there.get(), sizeof word);
  EXPECT_THROW(turns.wait(), std::invalid_argument);
}

TEST(device, ends_the_process_that_gives_it_back_memory_of_another) {
  GPUFS_NEEDS_TWO_DEVICES();
  const device_array<int> there(4, device(1));
  EXPECT_DEATH(device(0).deallocate_device(there.get()), "device 0 of the cpu machine is given back memory that is not its own");
}

template <class Group>
struct calling_kernel {
  const int* memory;
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const group_call call(group, "look(n, memory)", 7, memory_of_all{memory});
    group.sync();
  }
};

template <class Group>
void expect_a_call_is_refused() {
  const device_array<int> here(4, device(0)), there(4, device(1));
  const auto call_with = [](const device_array<int>& memory) {
    return refusal([&] { launch({.grid = 1, .block = 64}, calling_kernel<Group>{memory.get() + 3}); });
  };
  EXPECT_EQ(call_with(here), "");
  const std::string why = call_with(there);
  EXPECT_NE(why.find("runs on device 0 and calls gpufs::look with what is device 1's (memory)"), std::string::npos) << why;
  EXPECT_NE(why.find("seed"), std::string::npos) << why;
  const on_device on(device(1));
  EXPECT_EQ(call_with(there), "");
  EXPECT_NE(call_with(here), "");
}

TEST(device, refuses_a_call_with_memory_of_another) {
  GPUFS_NEEDS_TWO_DEVICES();
  expect_a_call_is_refused<thread>();
  expect_a_call_is_refused<tile<8>>();
  expect_a_call_is_refused<warp>();
  expect_a_call_is_refused<block>();
}

TEST(device, that_never_had_memory_refuses_a_call_with_memory_of_another) {
  GPUFS_NEEDS_TWO_DEVICES();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, in which device 1 never had any
  const auto call_on_device_1 = [] {
    const device_array<int> there(4, device(0));
    const on_device here(device(1));
    std::fputs(refusal([&] { launch({.grid = 1, .block = 32}, calling_kernel<warp>{there.get()}); }).c_str(), stderr);
    std::exit(0);
  };
  EXPECT_EXIT(call_on_device_1(), testing::ExitedWithCode(0), "runs on device 1 and calls gpufs::look with what is device 0's");
}

#endif

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt::test
