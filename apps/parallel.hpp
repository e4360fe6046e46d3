// SPDX-License-Identifier: Apache-2.0
// A loop spread over threads. Host code.
#pragma once
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace gpufs::apps {

// How many processors this thread may run on: a container, or taskset, may leave it fewer than the machine has. A fortieth of what
// std::thread::hardware_concurrency() takes, which reads a file of the system's.
inline unsigned processor_count() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::max(1u, std::thread::hardware_concurrency());  // over 1024
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&allowed)));
}

inline unsigned thread_count(unsigned asked) { return asked != 0 ? asked : processor_count(); }

// Calls run() here and in up to n threads beside, which start for it, and waits for all.
struct new_threads {
  template <class Run>
  void operator()(std::size_t n, const Run& run) const {
    std::vector<std::jthread> helpers;
    for (std::size_t i = 0; i < n; ++i) helpers.emplace_back(run);
    run();
  }
};

// Calls work(i) for every i < n, in any order, from up to nthreads threads (the caller's is one). The first exception stops
// the loop and is thrown again here. threads: whose they are beside the caller's.
template <class Work, class Threads = new_threads>
void parallel_for(unsigned nthreads, std::size_t n, const Work& work, Threads&& threads = Threads()) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_lock;
  const auto run = [&] {
    try {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) work(i);
    } catch (...) {
      const std::lock_guard lock(failure_lock);
      if (!failure) failure = std::current_exception();
      next.store(n, std::memory_order_relaxed);
    }
  };
  threads(n == 0 ? 0 : std::min<std::size_t>(nthreads, n) - 1, run);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace gpufs::apps
