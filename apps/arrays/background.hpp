// SPDX-License-Identifier: Apache-2.0
// What a file does meanwhile: prefetches. Host code.
#pragma once
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "apps/arrays/rows.hpp"

namespace gpufs::apps::arrays {

// A thread that prefetches, one list of rows after another. Ending it drops what has not begun, and stops what has. To be left as
// it is in a child of fork(), which has no such thread.
class prefetcher {
 public:
  explicit prefetcher(row_file& file) : file_(file) {}
  ~prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  prefetcher(const prefetcher&) = delete;
  prefetcher& operator=(const prefetcher&) = delete;

  void add(std::vector<std::int64_t> ids, std::uint64_t first, std::uint64_t n) {
    const std::lock_guard lock(mutex_);
    constexpr std::size_t most = 64;
    if (waiting_.size() == most) waiting_.pop_front();  // who asks that often reads elsewhere by now
    waiting_.push_back({std::move(ids), first, n});
    changed_.notify_all();
  }
  bool idle() const {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() && !running_;
  }

 private:
  struct job {
    std::vector<std::int64_t> ids;
    std::uint64_t first, n;
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      const job next = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = true;
      lock.unlock();
      try {
        file_.prefetch({next.ids.empty() ? nullptr : next.ids.data(), next.first, next.n}, stop_);
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who reads the rows is told
      }
      lock.lock();
      running_ = false;
    }
  }

  row_file& file_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<job> waiting_;
  std::atomic<bool> stop_{false};
  bool running_ = false;
  std::thread thread_{[this] { run(); }};
};

}  // namespace gpufs::apps::arrays
