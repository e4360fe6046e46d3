// SPDX-License-Identifier: Apache-2.0
// Threads that stay for short loops: with many callers at once, exceptions, and forks meanwhile.
#include "apps/helper_threads.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "apps/parallel.hpp"

namespace gpufs::apps {
namespace {

helper_threads& helpers() { return helper_threads::of_process(); }

// Whether a loop over n does each once.
bool does_each_once(unsigned nthreads, std::size_t n) {
  std::vector<std::atomic<int>> done(n);
  parallel_for(
      nthreads, n, [&](std::size_t i) { ++done[i]; }, helpers());
  return std::all_of(done.begin(), done.end(), [](const auto& times) { return times == 1; });
}

TEST(helper_threads, do_each_once_and_pass_exceptions_on) {
  for (const std::size_t n : {0, 1, 2, 1000}) EXPECT_TRUE(does_each_once(5, n)) << n;
  const auto throws = [](std::size_t i) {
    if (i == 20) throw std::out_of_range("here");
  };
  EXPECT_THROW(parallel_for(3, 50, throws, helpers()), std::out_of_range);
  EXPECT_TRUE(does_each_once(3, 50));
}

TEST(helper_threads, help_at_the_same_time_and_stay) {
  std::atomic<int> here{0};
  const auto meet = [&](std::size_t) {  // who comes late, comes to nobody
    ++here;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (here < 4 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  };
  for (int times = 0; times < 3; ++times, here = 0) {
    parallel_for(4, 4, meet, helpers());
    EXPECT_EQ(here, 4);
  }
  const std::size_t count = helpers().count();
  EXPECT_GE(count, 3u);
  EXPECT_TRUE(does_each_once(4, 100));
  EXPECT_EQ(helpers().count(), count);
}

TEST(helper_threads, serve_many_callers_beside_forks) {
#ifdef __SANITIZE_THREAD__
  const unsigned in_child = 1;  // it lets no child of several threads start any
#else
  const unsigned in_child = 4;
#endif
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, loops{0};
  std::vector<std::jthread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (; !stop; ++loops) wrong += does_each_once(4, 64) ? 0 : 1;
    });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(helpers().count() == 0 && does_each_once(in_child, 1000) ? 0 : 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  while (loops < 100) std::this_thread::yield();
  stop = true;
  callers.clear();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace gpufs::apps
