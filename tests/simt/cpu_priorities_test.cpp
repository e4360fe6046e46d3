// SPDX-License-Identifier: Apache-2.0
// Schedules by priorities and with delays: they repeat, find planted mistakes as often as PCT promises, and shrink.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"
#include "schedule_points.hpp"

namespace gpufs::simt::test {
namespace {

using gpufs::test::fewest;
using gpufs::test::points_from_text;
using gpufs::test::points_to_text;
using gpufs::test::schedule_points;
constexpr auto relaxed = std::memory_order_relaxed;

cpu_schedule by_priorities(std::uint64_t seed, unsigned depth, std::uint64_t nsteps = 0) {
  return {.seed = seed, .nthreads = 1, .policy = schedule_policy::priorities, .depth = depth, .nsteps = nsteps};
}

std::uint32_t read(std::uint32_t& word) { return atomic_ref<std::uint32_t>(word).load(relaxed); }
void write(std::uint32_t& word, std::uint32_t value) { atomic_ref<std::uint32_t>(word).store(value, relaxed); }

// Everything that a lane can wait in. Each lane appends its number at every step.
struct busy_kernel {
  std::uint32_t* trace;
  std::uint32_t* next;  // and a flag
  void append() const {
    trace[atomic_ref<std::uint32_t>(*next).fetch_add(1, relaxed)] = block_rank() * block_size() + thread_rank();
  }
  void operator()() const {
    append();
    this_tile<8>().sync();
    append();
    backoff wait;
    if (thread_rank() == 5) write(next[1 + block_rank()], 1);
    while (read(next[1 + block_rank()]) == 0) wait();
    append();
    this_block().sync();
    append();
  }
};

struct busy_run {
  std::vector<std::uint32_t> who;
  schedule_trace trace;
};
busy_run run_busy(cpu_schedule schedule, const schedule_points* given = nullptr) {
  constexpr unsigned grid = 6, threads = 64;
  busy_run run;
  if (given != nullptr) {
    run.trace.points = *given;
    run.trace.given = true;
  }
  schedule.trace = &run.trace;
  device_array<std::uint32_t> trace(grid * threads * 4), next(1 + grid);
  launch({.grid = grid, .block = threads, .schedule = schedule}, busy_kernel{trace.get(), next.get()});
  run.who = trace.read();
  return run;
}

TEST(priorities, the_same_seed_repeats_and_so_do_its_points) {
  std::set<std::uint64_t> orders;
  for (const unsigned percent : {0u, 1u, 20u}) {
    for (unsigned depth = 1; depth <= 5; ++depth) {
      cpu_schedule s = by_priorities(depth * 10 + percent, depth, 500);
      s.delay_percent = percent;
      const busy_run first = run_busy(s), second = run_busy(s), replayed = run_busy(s, &first.trace.points);
      EXPECT_EQ(first.who, second.who);
      EXPECT_EQ(first.who, replayed.who);
      EXPECT_EQ(first.trace.order, second.trace.order);
      EXPECT_EQ(first.trace.order, replayed.trace.order);
      EXPECT_EQ(first.trace.nsteps, replayed.trace.nsteps);
      EXPECT_GT(first.trace.nswitches, 0u);
      const std::size_t ndelays = first.trace.points.size() - (depth - 1);
      EXPECT_TRUE(percent == 0 ? ndelays == 0 : percent == 1 || ndelays > 5) << percent << " %: " << ndelays << " delays";
      orders.insert(first.trace.order);
    }
  }
  EXPECT_EQ(orders.size(), 15u);
}

TEST(priorities, a_trace_is_of_one_thread_and_priorities) {
  schedule_trace trace;
  cpu_schedule s = by_priorities(1, 2);
  s.trace = &trace;
  s.nthreads = 2;
  s.resident_blocks = 2;
  device_array<std::uint32_t> words(4 * 64 * 4), next(5);
  const busy_kernel kernel{words.get(), next.get()};
  EXPECT_THROW(launch({.grid = 4, .block = 64, .schedule = s}, kernel), launch_error);
  s.nthreads = 1;
  s.policy = schedule_policy::random;
  EXPECT_THROW(launch({.grid = 4, .block = 64, .schedule = s}, kernel), launch_error);
}

TEST(priorities, points_as_text) {
  const schedule_points points = {{.step = 120, .priority = 2}, {.step = 340, .nwrites = 64}};
  EXPECT_EQ(points_to_text(points), "120>2,340+64");
  EXPECT_EQ(points_to_text(points_from_text("120>2,340+64")), "120>2,340+64");
  EXPECT_EQ(points_to_text(points_from_text("")), "");
}

// Waits end whatever the priorities: of one who backs off, and of one who does not.
struct waiting_kernel {
  std::uint32_t* flag;
  bool backs_off;
  void operator()() const {
    if (thread_rank() == grid_size() % block_size()) return write(*flag, 1);
    backoff wait;
    while (read(*flag) == 0) {
      if (backs_off) wait();
    }
  }
};
TEST(priorities, waits_end) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const bool backs_off : {false, true}) {
      device_array<std::uint32_t> flag(1);
      cpu_schedule s = by_priorities(seed, 1 + seed % 5);
      s.delay_percent = seed % 2 == 0 ? 10 : 0;
      s.timeout_ns = 10'000'000'000;
      EXPECT_NO_THROW(launch({.grid = 2, .block = 64, .schedule = s}, waiting_kernel{flag.get(), backs_off}));
    }
  }
}

// Many wait, looking all the time, for one who is held back.
struct locking_kernel {
  std::uint32_t* words;  // lock, sum, waits
  void operator()() const {
    for (unsigned i = 0; i < 3; ++i) {
      backoff wait;
      const atomic_ref<std::uint32_t> lock(words[0]), waits(words[2]);
      while (lock.exchange(1, std::memory_order_acquire) != 0) {
        waits.add_relaxed(1);  // a wait that writes
        for (unsigned n = 0; n < 40; ++n) read(words[0]);
        wait();
      }
      words[1] += 1;
      atomic_ref<std::uint32_t>(words[0]).store(0, std::memory_order_release);
    }
  }
};
TEST(delays, end_when_all_wait_for_who_is_held) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const unsigned percent : {5u, 100u}) {
      device_array<std::uint32_t> words(2);
      cpu_schedule s =
          seed % 2 == 0 ? by_priorities(seed, 5, 300) : cpu_schedule{.seed = seed, .nthreads = 1, .switch_percent = percent};
      s.delay_percent = 20;
      s.timeout_ns = 10'000'000'000;
      EXPECT_NO_THROW(launch({.grid = 1, .block = 64, .schedule = s}, locking_kernel{words.get()}));
      EXPECT_EQ(words.read_one(1), 3 * 64u);
    }
  }
}

// A mistake that needs `depth` orderings to show; lane 0 is A and lane 1 is B.
//   1: B uses, after much work, what A makes in its first step
//   2: B does all its work while A is between two steps
//   3: the same, and then A ends while B is between two steps
struct planted_kernel {
  std::uint32_t* words;  // A is in, B is in, A has begun, the mistake shows
  unsigned depth;
  std::uint32_t nwork;
  void operator()() const {
    if (thread_rank() > 1) return;
    std::uint32_t &a_in = words[0], &b_in = words[1], &begun = words[2], &shows = words[3];
    if (thread_rank() == 0) {
      write(begun, 1);
      for (std::uint32_t i = 0; i < nwork && depth > 1; ++i) read(words[4]);
      write(a_in, 1);
      write(a_in, 0);
      for (std::uint32_t i = 0; i < nwork && depth > 2; ++i) read(words[4]);
      if (depth == 3 && read(b_in) == 1) write(shows, 1);
      return;
    }
    bool good = true;
    for (std::uint32_t i = 0; i < nwork; ++i) good &= depth == 1 ? read(begun) == 0 : read(a_in) == 1;
    if (!good) return;
    if (depth < 3) return write(shows, 1);
    write(b_in, 1);
    write(b_in, 0);
  }
};

bool shows(unsigned depth, std::uint32_t nwork, const cpu_schedule& schedule) {
  device_array<std::uint32_t> words(5);
  launch({.grid = 1, .block = 32, .schedule = schedule}, planted_kernel{words.get(), depth, nwork});
  return words.read_one(3) != 0;
}

struct planted {
  unsigned depth, nwork, nruns;  // nwork: steps
};

TEST(priorities, find_planted_mistakes_as_often_as_promised) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "too many runs";
#endif
  for (const planted& p : {planted{1, 40, 200}, planted{2, 40, 2000}, planted{3, 10, 10000}}) {
    schedule_trace length;
    cpu_schedule first = by_priorities(1, 1);
    first.trace = &length;
    shows(p.depth, p.nwork, first);
    const std::uint64_t k = length.nsteps;
    unsigned found = 0, at_random[2] = {};
    for (std::uint64_t seed = 1; seed <= p.nruns; ++seed) {
      found += shows(p.depth, p.nwork, by_priorities(seed, p.depth, k));
      at_random[0] += shows(p.depth, p.nwork, {.seed = seed, .nthreads = 1, .switch_percent = 25});
      at_random[1] += shows(p.depth, p.nwork, {.seed = seed, .nthreads = 1, .switch_percent = 100});
    }
    double promised = p.nruns / 2.0;  // 1 in n k^(depth - 1), of two lanes that do anything
    for (unsigned i = 1; i < p.depth; ++i) promised /= static_cast<double>(k);
    std::cout << "depth " << p.depth << ", " << k << " steps: found in " << found << " of " << p.nruns << " runs by priorities, in "
              << at_random[0] << " and " << at_random[1] << " at random; promised are " << promised << '\n';
    EXPECT_GT(found, promised * 0.7);
    EXPECT_GT(found, 5 * std::max(at_random[0], at_random[1]));
  }
}

// From one that fails with many points to those that it takes: none of them can be left out. They may be more than depth - 1, as
// the priorities stay: a lane that was drawn too high must fall first.
TEST(priorities, shrink_to_the_points_that_matter) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "too many runs";
#endif
  for (const planted& p : {planted{2, 40, 4000}, planted{3, 10, 20000}}) {
    unsigned nshrunk = 0, nleast = 0;
    for (std::uint64_t seed = 1; seed <= p.nruns && nshrunk < 6; ++seed) {
      cpu_schedule s = by_priorities(seed, p.depth + 6, 60);
      s.delay_percent = 20;
      schedule_trace trace;
      s.trace = &trace;
      if (!shows(p.depth, p.nwork, s)) continue;
      ++nshrunk;
      const auto fails = [&](const schedule_points& points) {
        trace.points = points;
        trace.given = true;
        return shows(p.depth, p.nwork, s);
      };
      const schedule_points all = trace.points, least = fewest(all, fails);
      EXPECT_GT(all.size(), least.size());
      EXPECT_LE(least.size(), p.depth + 1) << "seed " << seed << ": " << points_to_text(least);
      EXPECT_TRUE(fails(least)) << "seed " << seed;
      for (std::size_t i = 0; i < least.size(); ++i) {
        schedule_points fewer = least;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_FALSE(fails(fewer)) << "seed " << seed;
      }
      nleast += least.size() == p.depth - 1;
    }
    EXPECT_EQ(nshrunk, 6u);
    EXPECT_GT(nleast, 0u);
  }
}

// Says that the bytes are there, and only then writes them, without an atomic between.
struct too_early_kernel {
  std::uint32_t* words;  // ready, the bytes, who saw it
  void operator()() const {
    if (thread_rank() == 0) {
      write(words[0], 1);
      words[1] = 1;
      return;
    }
    if (read(words[0]) == 1 && words[1] == 0) atomic_ref<std::uint32_t>(words[2]).add_relaxed(1);
  }
};
TEST(delays, show_what_lies_between_two_atomics) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the mistake is a data race";
#endif
  unsigned nseen[3] = {};
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    for (const unsigned i : {0u, 1u, 2u}) {
      cpu_schedule s = i == 2 ? by_priorities(seed, 5, 300) : cpu_schedule{.seed = seed, .nthreads = 1};
      s.delay_percent = i == 0 ? 0 : 20;
      device_array<std::uint32_t> words(3);
      launch({.grid = 1, .block = 32, .schedule = s}, too_early_kernel{words.get()});
      nseen[i] += words.read_one(2) != 0;
    }
  }
  EXPECT_EQ(nseen[0], 0u);
  EXPECT_GT(nseen[1], 20u);
  EXPECT_GT(nseen[2], 20u);
}

// A state that lasts from one atomic to the next, and how many see it.
struct brief_state_kernel {
  std::uint32_t* words;  // the state, who saw it
  void operator()() const {
    if (thread_rank() == 0) {
      write(words[0], 1);
      return write(words[0], 0);
    }
    bool seen = false;
    for (unsigned i = 0; i < 20; ++i) seen |= read(words[0]) == 1;
    if (seen) atomic_ref<std::uint32_t>(words[1]).add_relaxed(1);
  }
};
TEST(delays, make_states_last) {
  std::uint64_t nsaw[2] = {};
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    for (const unsigned i : {0u, 1u}) {
      device_array<std::uint32_t> words(2);
      launch({.grid = 1, .block = 32, .schedule = {.seed = seed, .nthreads = 1, .switch_percent = 5, .delay_percent = 25 * i}},
             brief_state_kernel{words.get()});
      nsaw[i] += words.read_one(1);
    }
  }
  EXPECT_GT(nsaw[1], 2 * nsaw[0]) << nsaw[0];
}

}  // namespace
}  // namespace gpufs::simt::test
