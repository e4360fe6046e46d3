// SPDX-License-Identifier: Apache-2.0
// Who is told that a launch has ended, in a process that forks.
#include "gpufs/simt/detail/launch_end.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace gpufs::simt::test {
namespace {

// Watches a launch end in a child of fork(): 0 if it alone was told. Hangs no longer than 20 s.
template <class Inherited>
int status_of_child(const Inherited& times_inherited_was_told) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const int before = times_inherited_was_told();
    int told = 0;
    {
      const launch_watch own([&] { ++told; });
      runtime::tell_launch_ended();
    }
    runtime::tell_launch_ended();
    ::_exit(told == 1 && times_inherited_was_told() == before ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(launch_watch, a_child_of_fork_is_told_of_its_own_launches_only) {
  int told = 0;
  const launch_watch watch([&] { ++told; });
  runtime::tell_launch_ended();
  EXPECT_EQ(status_of_child([&] { return told; }), 0);
  runtime::tell_launch_ended();
  EXPECT_EQ(told, 2) << "the parent goes on";
}

TEST(launch_watch, a_fork_while_one_is_told_leaves_the_child_one_of_its_own) {
  int told = 0;
  std::promise<void> entered, released;
  const launch_watch watch([&] {
    ++told;
    entered.set_value();
    released.get_future().wait();
  });
  std::thread launches([] { runtime::tell_launch_ended(); });
  entered.get_future().wait();
  EXPECT_EQ(status_of_child([&] { return told; }), 0);
  released.set_value();
  launches.join();
}

}  // namespace
}  // namespace gpufs::simt::test
