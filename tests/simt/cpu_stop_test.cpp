// SPDX-License-Identifier: Apache-2.0
// What a launch on the CPU machine says that stops, and what it leaves behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

// Runs and returns the message with which the launch stopped.
template <class Kernel>
std::string error_of(const launch_config& config, const Kernel& kernel) {
  try {
    launch(config, kernel);
  } catch (const launch_error& e) {
    return e.what();
  }
  return "";
}

#define EXPECT_SAYS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << text

// One resident block exposes a wait for a block that has not started.
struct wait_for_last_block_kernel {
  std::uint32_t* flag;
  GPUFS_DEVICE void operator()() const {
    if (block_rank() + 1 == grid_size()) atomic_ref<std::uint32_t>(*flag).store(1, std::memory_order_release);
    backoff wait;
    while (atomic_ref<std::uint32_t>(*flag).load(std::memory_order_acquire) == 0) wait();
  }
};

TEST(stop, the_deadline_of_a_launch) {
  device_array<std::uint32_t> flag(1);
  // Without switches between its look and its back-off, a lane that does not run backs off.
  const std::string text = error_of(
      {.grid = 3, .block = 32, .schedule = {.seed = 9, .resident_blocks = 1, .switch_percent = 0, .timeout_ns = 200'000'000}},
      wait_for_last_block_kernel{flag.get()});
  EXPECT_SAYS(text, "ran into its deadline");
  EXPECT_SAYS(text, "32 backing off");
  EXPECT_SAYS(text, "2 of 3 blocks have not started (at most 1 resident)");
  EXPECT_SAYS(text, "seed 9");
  EXPECT_EQ(error_of({.grid = 3, .block = 32, .schedule = {.resident_blocks = 3}}, wait_for_last_block_kernel{flag.get()}), "");
}

struct spin_kernel {
  std::uint32_t* flag;
  GPUFS_DEVICE void operator()() const {
    while (atomic_ref<std::uint32_t>(*flag).load(std::memory_order_relaxed) == 0) {
    }
  }
};

TEST(stop, the_deadline_reaches_lanes_that_only_spin) {
  device_array<std::uint32_t> flag(1);
  for (const unsigned percent : {0u, 25u}) {
    const std::string text = error_of({.grid = 1, .block = 32, .schedule = {.switch_percent = percent, .timeout_ns = 50'000'000}},
                                      spin_kernel{flag.get()});
    EXPECT_SAYS(text, "ran into its deadline");
    EXPECT_SAYS(text, "32 running");
  }
}

// Lane 0 waits for nobody; the others of its warp wait for it, and warp 1 for both.
struct wait_for_a_lane_kernel {
  std::uint32_t* flag;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() == 0) {
      backoff wait;
      while (atomic_ref<std::uint32_t>(*flag).load(std::memory_order_relaxed) == 0) wait();
    }
    if (warp_rank() == 0) this_warp().ballot(true);
    this_block().sync();
  }
};

TEST(stop, the_deadline_names_who_waits_for_whom) {
  device_array<std::uint32_t> flag(1);
  const std::string text = error_of({.grid = 1, .block = 64, .schedule = {.switch_percent = 0, .timeout_ns = 200'000'000}},
                                    wait_for_a_lane_kernel{flag.get()});
  EXPECT_SAYS(text, "lanes: 1 backing off, 31 in warp collectives, 32 in block collectives");
  EXPECT_SAYS(text, "block 0 warp 0 lane 1 waits in ballot for lanes {0}");
  EXPECT_SAYS(text, "block 0 warp 1 lane 0 waits in block barrier for warp 0 lanes {0 - 31}");
}

// Lanes of warp 1 do what `how` says, the others nothing.
enum class mistake {
  exited_in_ballot,
  barrier_and_ballot,
  ballot_and_barrier,
  other_operation,
  other_mask,
  other_size,
  other_source,
  missing_in_block,
  exited_before_block,
  block_operations,
  bad_rank,
  part_of_a_line,
  none
};
alignas(128) constexpr std::uint32_t words_of_a_line[32] = {};
struct mistake_kernel {
  mistake how;
  GPUFS_DEVICE void operator()() const {
    if (how == mistake::missing_in_block && thread_rank() != 37) this_block().sync();
    if (how == mistake::exited_before_block) {
      if (thread_rank() == 37) return;
      backoff wait;
      for (int i = 0; i < 50; ++i) wait();
      this_block().sync();
    }
    if (how == mistake::block_operations) {
      if (thread_rank() == 37) {
        this_block().any(true);
      } else {
        this_block().sync();
      }
    }
    if (warp_rank() != 1) return;
    const bool odd_one = lane_id() == 5;
    switch (how) {
      case mistake::exited_in_ballot:
        if (!odd_one) this_warp().ballot(true);
        return;
      case mistake::barrier_and_ballot:
        if (odd_one) {
          backoff wait;
          for (int i = 0; i < 50; ++i) wait();
          this_block().sync();
        } else {
          this_warp().ballot(true);
        }
        return;
      case mistake::ballot_and_barrier: {
        backoff wait;
        if (!odd_one) {
          for (int i = 0; i < 50; ++i) wait();
          this_warp().ballot(true);
        } else {
          this_block().sync();
        }
        return;
      }
      case mistake::other_operation:
        if (odd_one) {
          this_warp().any(true);
        } else {
          this_warp().all(true);
        }
        return;
      case mistake::other_mask:
        if (lane_id() < 8 && !odd_one) {
          this_tile<8>().sync();
        } else {
          this_warp().sync();
        }
        return;
      case mistake::other_size:
        if (odd_one) {
          this_warp().shfl(1u, 0);
        } else {
          struct {
            char c[20];
          } wide{};
          this_warp().shfl(wide, 0);
        }
        return;
      case mistake::other_source:
        this_warp().broadcast(1u, odd_one ? 1 : 2);
        return;
      case mistake::bad_rank:
        this_tile<4>().shfl(1u, 4);
        return;
      case mistake::part_of_a_line: {
        const warp_line line(words_of_a_line);
        if (!odd_one) line.get<std::uint32_t>(4);
        this_warp().sync();
        return;
      }
      default:
        return;
    }
  }
};

std::string report_of(mistake how, std::uint64_t seed = 3) {
  return error_of({.grid = 1, .block = 64, .schedule = {.seed = seed, .nthreads = 1, .timeout_ns = 5'000'000'000}},
                  mistake_kernel{how});
}

TEST(stop, names_a_lane_that_has_exited) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    const std::string text = report_of(mistake::exited_in_ballot, seed);
    EXPECT_SAYS(text, "block 0 warp 1 lane ");
    EXPECT_SAYS(text, " waits in ballot for lanes {");
    EXPECT_SAYS(text, "; lane 5 has exited");
    EXPECT_SAYS(text, "cpu_schedule{.seed = " + std::to_string(seed) + "}");
  }
}
TEST(stop, names_a_lane_at_a_barrier) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    for (const mistake how : {mistake::barrier_and_ballot, mistake::ballot_and_barrier}) {
      const std::string text = report_of(how, seed);
      EXPECT_TRUE(text.find(" waits in ballot for lanes {") != std::string::npos ||
                  text.find("waits in block barrier") != std::string::npos)
          << text;
      EXPECT_SAYS(text, "lane ");
    }
  }
  EXPECT_SAYS(report_of(mistake::barrier_and_ballot), "waits in ballot for lanes {5}; lane 5 waits in block barrier");
}
TEST(stop, names_lanes_in_different_collectives) {
  EXPECT_SAYS(report_of(mistake::other_operation), "lanes of one warp wait in different collectives: block 0 warp 1 lane ");
  EXPECT_SAYS(report_of(mistake::other_operation), "waits in any");
  EXPECT_SAYS(report_of(mistake::other_operation), "waits in all");
  EXPECT_SAYS(report_of(mistake::other_mask), "waits in sync of lanes {0 - 7}");
  EXPECT_SAYS(report_of(mistake::other_size), "different collectives");
  EXPECT_SAYS(report_of(mistake::other_source), "different collectives");
  EXPECT_SAYS(report_of(mistake::bad_rank), "from a rank that is not in the group");
}
TEST(stop, names_a_lane_that_had_a_word_of_a_line_alone) {
  const std::string text = report_of(mistake::part_of_a_line);
  EXPECT_SAYS(text, "warp_line::get was not called by all lanes: ");
  EXPECT_SAYS(text, "0 times by block 0 warp 1 lane 5");
}
TEST(stop, names_a_lane_that_misses_the_blocks_barrier) {
  EXPECT_SAYS(report_of(mistake::missing_in_block), "waits in block barrier for warp ");
  EXPECT_SAYS(report_of(mistake::missing_in_block), "warp 1 lane 5 has exited");
  EXPECT_SAYS(report_of(mistake::exited_before_block), "lane 5 has exited");
  EXPECT_SAYS(report_of(mistake::block_operations), "threads of one block wait in different collectives");
}
TEST(stop, repeats_from_its_seed) { EXPECT_EQ(report_of(mistake::exited_in_ballot, 77), report_of(mistake::exited_in_ballot, 77)); }

// Tiles that hold each other up across the block: nobody has exited, nobody runs.
struct crossed_kernel {
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() == 0) this_block().sync();
    if (thread_rank() == 32) this_warp().sync();
    if (warp_rank() == 0 && thread_rank() != 0) this_block().sync();
    if (warp_rank() == 1 && thread_rank() != 32) this_block().sync();
  }
};
TEST(stop, a_deadlock) { EXPECT_SAYS(error_of({.grid = 1, .block = 64}, crossed_kernel{}), "waits in "); }

// Unwinding a launch that stops.
struct guard {
  int* live;
  explicit guard(int* counter) : live(counter) { atomic_ref<int>(*live).add_relaxed(1); }
  ~guard() { atomic_ref<int>(*live).add_relaxed(-1); }
  guard(const guard&) = delete;
  guard& operator=(const guard&) = delete;
};
struct unwind_kernel {
  int* live;
  int* nstarted;
  GPUFS_DEVICE void operator()() const {
    const guard a(live);
    atomic_ref<int>(*nstarted).add_relaxed(1);
    const std::vector<int> on_heap(100, 1);
    if (thread_rank() == 40) throw std::out_of_range("thread 40 fell over");
    const guard b(live);
    this_block().sync();
  }
};

TEST(stop, passes_an_exception_on) {
  for (const unsigned nthreads : {1u, 2u}) {
    int live = 0, nstarted = 0;
    try {
      launch({.grid = 6, .block = 64, .schedule = {.seed = 5, .nthreads = nthreads}}, unwind_kernel{&live, &nstarted});
      ADD_FAILURE() << "no exception";
    } catch (const launch_error& e) {
      EXPECT_SAYS(e.what(), " warp 1 lane 8 threw an exception (");
      EXPECT_SAYS(e.what(), "thread 40 fell over");
      EXPECT_SAYS(e.what(), "seed 5");
      EXPECT_THROW(std::rethrow_if_nested(e), std::out_of_range);
    }
    EXPECT_GT(nstarted, 0);
    // A lane that is stopped inside the atomic of a guard's own constructor or destructor may leave it counted.
    EXPECT_LE(live, 12);
  }
}

struct clean_kernel {
  int* live;  // of each thread
  struct plain_guard {
    int* live;
    explicit plain_guard(int* counter) : live(counter) { ++*live; }
    ~plain_guard() { --*live; }
  };
  GPUFS_DEVICE void operator()() const {
    int* mine = live + block_rank() * block_size() + thread_rank();
    const plain_guard a(mine);
    backoff wait;
    for (unsigned i = 0; i < thread_rank() % 7; ++i) wait();
    const plain_guard b(mine);
    if (thread_rank() == 63) return;
    this_block().sync();
  }
};
TEST(stop, destructors_run) {
  for (std::uint64_t seed = 1; seed < 10; ++seed) {
    int live[3 * 64] = {};
    EXPECT_NE(error_of({.grid = 3, .block = 64, .schedule = {.seed = seed}}, clean_kernel{live}), "");
    EXPECT_EQ(std::count(std::begin(live), std::end(live), 0), 3 * 64);
  }
}

// Lanes that wait inside a destructor (noexcept) cannot be unwound; the process lives on.
struct noexcept_kernel {
  std::uint32_t* never;
  struct waits {
    std::uint32_t* never;
    ~waits() {
      backoff wait;
      while (atomic_ref<std::uint32_t>(*never).load(std::memory_order_acquire) == 0) wait();
    }
  };
  GPUFS_DEVICE void operator()() const {
    const waits w{never};
    if (thread_rank() == 5) this_block().sync();
  }
};
TEST(stop, survives_lanes_inside_noexcept_functions) {
  std::uint32_t never = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_SAYS(error_of({.grid = 2, .block = 32, .schedule = {.timeout_ns = 30'000'000}}, noexcept_kernel{&never}), "deadline");
  }
  EXPECT_EQ(report_of(mistake::none), "");
}

// A destructor that spins for ever while its lane is being unwound.
struct stubborn_kernel {
  std::uint32_t* never;
  GPUFS_DEVICE void operator()() const {
    if (lane_id() == 3) return;
    const noexcept_kernel::waits w{never};
    this_block().sync();
  }
};
TEST(stop, leaves_a_lane_behind_that_does_not_end) {
  std::uint32_t never = 0;
  EXPECT_SAYS(error_of({.grid = 1, .block = 32}, stubborn_kernel{&never}), "lane 3 has exited");
  EXPECT_EQ(report_of(mistake::none), "");
}

struct catch_kernel {
  int* caught;
  GPUFS_DEVICE void operator()() const {
    try {
      this_warp().sync();
      if (lane_id() % 2 == 0) throw lane_id();
      this_tile<1>().sync();
    } catch (std::uint32_t lane) {
      preempt();  // other lanes run while this one handles its exception
      try {
        if (lane % 4 == 0) throw 1.5;
      } catch (double) {
        atomic_ref<int>(*caught).add_relaxed(1);
      }
      backoff wait;
      wait();
      if (lane == lane_id()) atomic_ref<int>(*caught).add_relaxed(1);
    }
    this_warp().sync();
  }
};
TEST(exceptions, of_one_lane_do_not_mix_with_anothers) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    int caught = 0;
    launch({.grid = 4, .block = 32, .schedule = {.seed = seed, .switch_percent = 100}}, catch_kernel{&caught});
    EXPECT_EQ(caught, 4 * (16 + 8));
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  }
}

struct nested_kernel {
  GPUFS_DEVICE void operator()() const { launch({.grid = 1, .block = 32}, mistake_kernel{mistake::none}); }
};
TEST(host, what_only_lanes_may_do) {
  EXPECT_SAYS(error_of({.grid = 1, .block = 32}, nested_kernel{}), "a kernel cannot launch another one");
  EXPECT_THROW(this_warp().sync(), launch_error);
  EXPECT_THROW(this_block().sync(), launch_error);
  EXPECT_THROW(shared<int>(), launch_error);
}
TEST(host, what_host_threads_may_do_too) {
  std::uint64_t word = 1;
  EXPECT_EQ(atomic_ref<std::uint64_t>(word).fetch_add(4, std::memory_order_relaxed), 1u);
  EXPECT_EQ(this_thread().ballot(true), 1u);
  EXPECT_EQ(this_thread().broadcast(word), 5u);
  preempt();
  fence(std::memory_order_seq_cst, scope::system);
  backoff()();
  char from[100] = "bytes", to[100] = "";
  EXPECT_EQ(copy_from_host(this_thread(), to, from, sizeof to), 0);
  EXPECT_STREQ(to, "bytes");
}

struct too_much_shared_kernel {
  struct large {
    char bytes[40'000];
  };
  struct large_too {
    char bytes[10'000];
  };
  GPUFS_DEVICE void operator()() const {
    shared<large>();
    shared<large_too>();
  }
};
TEST(shared, has_a_gpus_size) { EXPECT_SAYS(error_of({.grid = 1, .block = 32}, too_much_shared_kernel{}), "exceed 48 KiB"); }

struct wrong_place_kernel {
  struct object {
    unsigned word;
  };
  bool on_stack;
  GPUFS_DEVICE void operator()() const {
    unsigned local = 0;
    atomic_ref<unsigned, scope::block>(shared<object>().word).store(1, std::memory_order_relaxed);
    atomic_ref<unsigned, scope::block>(local).add_relaxed(1);
    atomic_ref<unsigned>(on_stack ? local : shared<object>().word).add_relaxed(1);
  }
};
TEST(stop, names_an_atomic_where_cuda_has_none) {
  EXPECT_SAYS(error_of({.grid = 1, .block = 32}, wrong_place_kernel{true}), "on its own stack");
  EXPECT_SAYS(error_of({.grid = 1, .block = 32}, wrong_place_kernel{false}), "on shared memory");
}

// The defaults come from the environment; read once a process, so in processes of their own.
TEST(schedule, defaults_come_from_the_environment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail_with = [](const char* seed, const char* threads) {
    ::setenv("GPUFS_SIMT_SEED", seed, 1);
    ::setenv("GPUFS_SIMT_THREADS", threads, 1);
    std::cerr << error_of({.grid = 8, .block = 64}, mistake_kernel{mistake::exited_in_ballot});
    std::exit(0);
  };
  EXPECT_EXIT(fail_with("4711", "1"), ::testing::ExitedWithCode(0), "seed 4711 .repeat with GPUFS_SIMT_SEED=4711.$");
  EXPECT_EXIT(fail_with("4712", "3"), ::testing::ExitedWithCode(0), "GPUFS_SIMT_SEED=4712, nearly: 3 OS threads");
}

struct count_or_throw_kernel {
  unsigned* count;
  bool throws;
  GPUFS_DEVICE void operator()() const {
    if (throws && thread_rank() == 3) throw std::runtime_error("the third one throws");
    atomic_ref<unsigned>(*count).add_relaxed(1);
  }
};

TEST(stop, a_launch_on_a_stream) {
  device_array<unsigned> before(1), after(1);
  const stream on;
  const auto wait = [&] {
    try {
      on.wait();
    } catch (const launch_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  launch({}, count_or_throw_kernel{before.get(), false}, on);
  launch({}, count_or_throw_kernel{before.get(), true}, on);
  launch({}, count_or_throw_kernel{after.get(), false}, on);
  EXPECT_SAYS(wait(), "the third one throws");
  EXPECT_GE(before.read_one(), 32u);
  EXPECT_EQ(after.read_one(), 0u);  // what comes behind may need what did not happen
  EXPECT_EQ(wait(), "");            // told once
  launch({}, count_or_throw_kernel{after.get(), false}, on);
  EXPECT_EQ(wait(), "");
  EXPECT_EQ(after.read_one(), 32u);
}

TEST(stop, a_stream_ends_with_a_failure_nobody_knows_of) {
  device_array<unsigned> count(1);
  ::testing::internal::CaptureStderr();
  {
    const stream on;
    launch({}, count_or_throw_kernel{count.get(), true}, on);
  }
  EXPECT_SAYS(::testing::internal::GetCapturedStderr(), "nobody has waited for what failed in it: block 0 warp 0 lane 3 threw");
}

struct launching_kernel {
  const stream* on;
  GPUFS_DEVICE void operator()() const { launch({}, count_or_throw_kernel{nullptr, false}, *on); }
};

TEST(stop, a_kernel_that_launches_on_a_stream) {
  const stream on;
  EXPECT_SAYS(error_of({}, launching_kernel{&on}), "a kernel cannot launch another one");
}

}  // namespace
}  // namespace gpufs::simt::test
