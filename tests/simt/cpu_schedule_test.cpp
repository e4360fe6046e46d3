// SPDX-License-Identifier: Apache-2.0
// The CPU machine's schedules: by seed, block order and residency.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

// Appends its thread's number at every step; steps are separated by atomics, collectives and back-off.
struct trace_kernel {
  std::uint32_t* trace;
  std::uint32_t* next;
  GPUFS_DEVICE void append() const {
    const std::uint32_t at = atomic_ref<std::uint32_t>(*next).fetch_add(1, std::memory_order_relaxed);
    trace[at] = block_rank() * block_size() + thread_rank();
  }
  GPUFS_DEVICE void operator()() const {
    backoff wait;
    for (unsigned i = 0; i < 3; ++i) {
      append();
      this_tile<8>().sync();
      append();
      wait();
    }
    this_block().sync();
    append();
  }
};

std::vector<std::uint32_t> trace_of(const cpu_schedule& schedule) {
  constexpr unsigned grid = 4, threads = 64;
  device_array<std::uint32_t> trace(grid * threads * 7), next(1);
  launch({.grid = grid, .block = threads, .schedule = schedule}, trace_kernel{trace.get(), next.get()});
  return trace.read();
}

TEST(schedule, the_same_seed_repeats) {
  for (const unsigned percent : {0u, 3u, 25u, 100u}) {
    for (std::uint64_t seed = 1; seed < 5; ++seed) {
      const cpu_schedule s{
          .seed = seed, .order = block_order::random, .resident_blocks = 2, .nthreads = 1, .switch_percent = percent};
      EXPECT_EQ(trace_of(s), trace_of(s));
    }
  }
}

TEST(schedule, seeds_differ) {
  std::set<std::vector<std::uint32_t>> traces;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) traces.insert(trace_of({.seed = seed, .nthreads = 1}));
  EXPECT_EQ(traces.size(), 10u);
}

TEST(schedule, blocks_start_in_the_order_asked_for) {
  // With one block resident, the trace is one block after the other.
  const auto blocks = [](block_order order, std::uint64_t seed) {
    std::vector<std::uint32_t> sequence;
    for (const std::uint32_t t : trace_of({.seed = seed, .order = order, .resident_blocks = 1, .nthreads = 1})) {
      if (sequence.empty() || sequence.back() != t / 64) sequence.push_back(t / 64);
    }
    return sequence;
  };
  EXPECT_EQ(blocks(block_order::in_order, 1), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(blocks(block_order::reversed, 1), (std::vector<std::uint32_t>{3, 2, 1, 0}));
  std::set<std::vector<std::uint32_t>> random;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto sequence = blocks(block_order::random, seed);
    random.insert(sequence);
    std::sort(sequence.begin(), sequence.end());
    EXPECT_EQ(sequence, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  }
  EXPECT_GT(random.size(), 5u);
}

struct residency_kernel {
  std::uint32_t* now;
  std::uint32_t* most;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() == 0) {
      const std::uint32_t n = atomic_ref<std::uint32_t>(*now).fetch_add(1, std::memory_order_relaxed) + 1;
      std::uint32_t seen = atomic_ref<std::uint32_t>(*most).load(std::memory_order_relaxed);
      while (seen < n && !atomic_ref<std::uint32_t>(*most).compare_exchange(seen, n, std::memory_order_relaxed)) preempt();
    }
    backoff wait;
    for (unsigned i = 0; i < 20; ++i) wait();
    this_block().sync();
    if (thread_rank() == 0) atomic_ref<std::uint32_t>(*now).fetch_sub(1, std::memory_order_relaxed);
  }
};

TEST(schedule, residency_is_limited) {
  for (const unsigned resident : {1u, 3u, 6u}) {
    for (const unsigned nthreads : {1u, 2u}) {
      device_array<std::uint32_t> now(1), most(1);
      launch({.grid = 24, .block = 32, .schedule = {.resident_blocks = resident, .nthreads = nthreads}},
             residency_kernel{now.get(), most.get()});
      EXPECT_LE(most.read_one(), resident);
      EXPECT_GE(most.read_one(), nthreads == 1 ? resident : 1);
    }
  }
}

struct racy_kernel {
  std::uint32_t* counter;
  GPUFS_DEVICE void operator()() const {
    const atomic_ref<std::uint32_t> c(*counter);
    c.store(c.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
};

TEST(schedule, a_lost_update_shows) {
  unsigned nlost = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    device_array<std::uint32_t> counter(1);
    launch({.grid = 1, .block = 64, .schedule = {.seed = seed, .nthreads = 1}}, racy_kernel{counter.get()});
    nlost += counter.read_one() != 64;
  }
  EXPECT_EQ(nlost, 20u);
}

}  // namespace
}  // namespace gpufs::simt::test
