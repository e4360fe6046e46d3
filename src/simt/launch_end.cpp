// SPDX-License-Identifier: Apache-2.0
#include "gpufs/simt/detail/launch_end.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace gpufs::simt {

// Each process has one list: a child of fork() begins with an empty one. The parent's watches report on the parent; and at the
// fork, a thread that the child does not have may have held the mutex or been changing the list.
struct launch_watches {
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::vector<launch_watch*> all;
  launch_watches* parents = nullptr;  // not used, but keeps the parent's list from being a leak

  // Never destroyed: a static mount may end later.
  static launch_watches& get() {
    static constinit std::atomic<launch_watches*> current{nullptr};
    launch_watches* now = current.load(std::memory_order_acquire);  // meets the exchange of the thread that made the list
    if (now != nullptr && now->process == ::getpid()) return *now;
    auto mine = std::make_unique<launch_watches>();
    mine->parents = now;
    // Fails if another thread of this process was first: then `now` is that thread's list.
    return current.compare_exchange_strong(now, mine.get(), std::memory_order_acq_rel) ? *mine.release() : *now;
  }
  void tell() {
    const std::lock_guard lock(mutex);
    for (const launch_watch* watch : all) watch->at_end_();
  }
};

launch_watch::launch_watch(std::function<void()> at_end) : at_end_(std::move(at_end)) {
  launch_watches& watches = launch_watches::get();
  const std::lock_guard lock(watches.mutex);
  watches.all.push_back(this);
}

launch_watch::~launch_watch() {
  launch_watches& watches = launch_watches::get();
  const std::lock_guard lock(watches.mutex);
  std::erase(watches.all, this);
}

void runtime::tell_launch_ended() { launch_watches::get().tell(); }

}  // namespace gpufs::simt
