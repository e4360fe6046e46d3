// SPDX-License-Identifier: Apache-2.0
// Threads that stay, for loops that end before threads would have started (40 microseconds each). Host code.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace gpufs::apps {

// Of the process, for all who ask. They end before a fork(), which waits for what they are at, and start again at the next use, in
// the parent and in the child.
class helper_threads {
 public:
  static helper_threads& of_process();

  // Calls run() here, and in as many of up to n helpers as come before that is done; waits for those. Where no thread can be
  // started there are fewer. run() throws nothing, and does not fork.
  template <class Run>
  void operator()(std::size_t n, const Run& run) {
    spread(
        n, [](const void* of) { (*static_cast<const Run*>(of))(); }, &run);
  }
  std::size_t count();  // that there are now

  helper_threads(const helper_threads&) = delete;
  helper_threads& operator=(const helper_threads&) = delete;

 private:
  using function = void (*)(const void*);
  struct job {
    function work;
    const void* of;
    std::size_t wanted, running;  // helpers
    std::condition_variable done;
  };

  helper_threads();
  ~helper_threads() = delete;  // they go with the process
  void spread(std::size_t n, function work, const void* of);
  void start(std::size_t n);
  void help();
  void wake();
  void end_before_fork();
  void go_on_after_fork(bool in_child);

  std::mutex fork_mutex_;  // held while the process forks
  std::mutex mutex_;       // of all below; held then as well
  std::condition_variable changed_;
  std::deque<job*> jobs_;  // that want helpers; each is on the stack of who asks
  std::vector<std::thread> threads_;
  bool ending_ = false;
};

}  // namespace gpufs::apps
