// SPDX-License-Identifier: Apache-2.0
// Every checker is seen failing once: planted bugs in lanes that the sanitizers must find across fibers. Each runs in a child
// process (not a forked one: after a fork with fibers about, ThreadSanitizer no longer follows the main thread). In an ordinary
// build there is little to see.
#include <gtest/gtest.h>

#include <cstdlib>

#include "gpufs/simt/simt.hpp"

namespace gpufs::simt::test {
namespace {

struct message_kernel {
  int* payload;
  int* flag;
  std::memory_order order;
  GPUFS_DEVICE void operator()() const {
    if (thread_rank() == 3) {
      *payload = 1;
      atomic_ref<int>(*flag).store(1, order == std::memory_order_acquire ? std::memory_order_release : order);
    } else if (thread_rank() == 9) {
      backoff wait;
      while (atomic_ref<int>(*flag).load(order) == 0) wait();
      *payload += 1;
    }
  }
};

struct unsynchronised_kernel {
  int* words;
  GPUFS_DEVICE void operator()() const {
    words[lane_id()] = 1;
    this_warp().sync();
    words[lane_id()] += words[(lane_id() + 1) % 32];
  }
};

template <class Kernel>
void run_and_exit(const Kernel& kernel) {
  launch({.grid = 1, .block = 32, .schedule = {.seed = 4, .nthreads = 1}}, kernel);
  std::exit(0);
}

// Keeps the compiler and UBSan from knowing where p points.
char* launder(char* p) {
  asm volatile("" : "+r"(p));
  return p;
}

struct heap_kernel {
  GPUFS_DEVICE void operator()() const {
    char* p = launder(new char[8]);
    this_warp().sync();
    p[8 + lane_id() % 2] = 1;
    delete[] p;
  }
};

struct stack_kernel {
  GPUFS_DEVICE void operator()() const {
    char local[16];
    char* p = launder(local);
    this_warp().sync();
    p[16] = 1;
    launder(p);
  }
};

struct unassigned_shared_kernel {
  struct object {
    char bytes[24];
  };
  GPUFS_DEVICE void operator()() const {
    char* p = launder(shared<object>().bytes);
    this_warp().sync();
    p[24] = 1;
  }
};

#if defined(__SANITIZE_THREAD__)

TEST(checkers, a_race_between_lanes_of_one_os_thread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int words[2] = {};
  EXPECT_DEATH(run_and_exit(message_kernel{words, words + 1, std::memory_order_relaxed}), "data race");
  int many[32];
  EXPECT_EXIT(run_and_exit(message_kernel{words, words + 1, std::memory_order_acquire}), ::testing::ExitedWithCode(0), "");
  EXPECT_DEATH(run_and_exit(unsynchronised_kernel{many}), "data race");
}

#elif defined(__SANITIZE_ADDRESS__)

TEST(checkers, a_wild_access_of_a_lane) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_and_exit(heap_kernel{}), "heap-buffer-overflow");
  EXPECT_DEATH(run_and_exit(stack_kernel{}), "stack-buffer-overflow");
  EXPECT_DEATH(run_and_exit(unassigned_shared_kernel{}), "use-after-poison");
}

#else

TEST(checkers, need_a_sanitizer) { GTEST_SKIP() << "not a sanitizer build"; }

#endif

struct deep_kernel {
  GPUFS_DEVICE static unsigned dive(unsigned depth) {
    volatile char frame[4096];
    frame[0] = static_cast<char>(depth);
    return depth == 0 ? 0 : dive(depth - 1) + static_cast<unsigned char>(frame[0]);
  }
  unsigned depth;
  unsigned* out;
  GPUFS_DEVICE void operator()() const {
    const unsigned sum = dive(depth);
    if (lane_id() == 0) *out = sum;
  }
};

TEST(checkers, a_stack_that_is_too_deep) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  unsigned out = 0;
  launch({.grid = 1, .block = 32}, deep_kernel{12, &out});
  EXPECT_EQ(out, 78u);
  EXPECT_DEATH(run_and_exit(deep_kernel{1000, &out}), "");
}

}  // namespace
}  // namespace gpufs::simt::test
