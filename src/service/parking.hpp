// SPDX-License-Identifier: Apache-2.0
// Which workers look for requests and which sleep: at least one worker polls whenever one is free to.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>

namespace gpufs::service {

// A worker counts as polling unless it sleeps here or is inside a blocking call. The last polling worker never sleeps here;
// when it enters a blocking call, it wakes another.
class parking {
 public:
  explicit parking(int nworkers) : npolling_(nworkers) {}

  // Sleeps until woken, if another worker polls; else returns false at once.
  bool try_sleep() {
    std::unique_lock hold(lock_);
    if (open_) return false;
    // Announced before the count drops: a worker that then takes the last place sees a sleeper to wake. Both sides are seq_cst.
    nsleeping_.fetch_add(1);
    int n = npolling_.load();
    do {
      if (n <= 1) {
        nsleeping_.fetch_sub(1);
        return false;
      }
    } while (!npolling_.compare_exchange_weak(n, n - 1));
    woken_.wait(hold, [this] { return npermits_ > 0 || open_; });
    if (npermits_ > 0) --npermits_;
    nsleeping_.fetch_sub(1);
    npolling_.fetch_add(1);
    return true;
  }

  // Wakes a sleeping worker, if there is one.
  void wake_one() {
    if (nsleeping_.load() == 0) return;
    {
      const std::scoped_lock hold(lock_);
      if (npermits_ >= nsleeping_.load()) return;
      ++npermits_;
    }
    woken_.notify_one();
  }

  // The calls before and after a call that may block.
  void begin_blocking() {
    if (npolling_.fetch_sub(1) == 1) wake_one();
  }
  void end_blocking() { npolling_.fetch_add(1); }

  // Adds a worker, which polls.
  void add_worker() { npolling_.fetch_add(1); }

  // From now on no worker sleeps.
  void open_all() {
    {
      const std::scoped_lock hold(lock_);
      open_ = true;
    }
    woken_.notify_all();
  }

 private:
  std::atomic<int> npolling_;
  std::atomic<int> nsleeping_{0};
  std::mutex lock_;
  std::condition_variable woken_;
  int npermits_ = 0;  // wakes not yet taken
  bool open_ = false;
};

}  // namespace gpufs::service
