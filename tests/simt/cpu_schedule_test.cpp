// SPDX-License-Identifier: Apache-2.0
// The CPU machine's own promises: schedules by seed, block order and residency, and what a launch that stops says.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "device_array.hpp"
#include "gpufs/simt/simt.hpp"

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
  return trace.values();
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
      EXPECT_LE(most.value(), resident);
      EXPECT_GE(most.value(), nthreads == 1 ? resident : 1);
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
    nlost += counter.value() != 64;
  }
  EXPECT_EQ(nlost, 20u);
}

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

// copy_from_host where process_vm_readv is forbidden.
int copies_without_process_vm_readv() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 77;
  std::vector<unsigned char> from(100'000), to(100'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(scramble(i));
  if (copy_from_host(this_thread(), to.data(), from.data(), from.size()) != 0 || from != to) return 1;
  void* map = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ::munmap(static_cast<char*>(map) + 4096, 4096);
  if (copy_from_host(this_thread(), to.data(), map, 8192) != -EIO) return 2;
  return copy_from_host(this_thread(), to.data(), map, 4096) != 0 ? 3 : 0;
}
TEST(copy_from_host, has_a_second_way) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(copies_without_process_vm_readv());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp is not available";
  EXPECT_EQ(status, 0);
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

// copy_from_host while another process truncates the file: an error, never a signal.
struct pull_kernel {
  unsigned char* dst;
  const unsigned char* src;
  std::size_t nbytes;
  unsigned nrounds;
  unsigned* outcomes;  // 0, -EIO, other
  GPUFS_DEVICE void operator()() const {
    for (unsigned i = 0; i < nrounds; ++i) {
      const int rc = copy_from_host(this_warp(), dst + block_rank() * nbytes, src, nbytes);
      if (this_warp().leader()) atomic_ref<unsigned>(outcomes[rc == 0 ? 0 : rc == -EIO ? 1 : 2]).add_relaxed(1);
    }
  }
};

TEST(copy_from_host, survives_truncation) {
  constexpr std::size_t nbytes = 64 * 1024;
  const int fd = ::memfd_create("simt", 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, nbytes), 0);
  void* map = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  device_array<unsigned char> dst(2 * nbytes);
  device_array<unsigned> outcomes(3);
  const pull_kernel kernel{dst.get(), static_cast<const unsigned char*>(map), nbytes, 1, outcomes.get()};
  launch({.grid = 2, .block = 32}, kernel);
  EXPECT_EQ(outcomes.value(0), 2u);
  ASSERT_EQ(::ftruncate(fd, 100), 0);
  launch({.grid = 2, .block = 32}, kernel);
  EXPECT_EQ(outcomes.value(0), 2u);
  EXPECT_EQ(outcomes.value(1), 2u);

  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int i = 0; i < 2000; ++i) {
      if (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, nbytes) != 0) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  unsigned nruns = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    launch({.grid = 2, .block = 32}, pull_kernel{dst.get(), static_cast<const unsigned char*>(map), nbytes, 10, outcomes.get()});
    ++nruns;
  }
  EXPECT_EQ(status, 0);
  const auto counts = outcomes.values();
  EXPECT_EQ(counts[0] + counts[1], 4 + 20 * nruns);
  EXPECT_EQ(counts[2], 0u);
  ::munmap(map, nbytes);
  EXPECT_EQ(copy_from_host(this_thread(), dst.get(), map, 100), -EIO);  // unmapped
  ::close(fd);
}

}  // namespace
}  // namespace gpufs::simt::test
