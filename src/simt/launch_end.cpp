// SPDX-License-Identifier: Apache-2.0
#include "gpufs/simt/launch_end.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace gpufs::simt {

struct launch_watches {
  std::mutex mutex;
  std::vector<launch_watch*> all;

  // Never destroyed: a static mount may end later.
  static launch_watches& get() {
    static auto* watches = new launch_watches;
    return *watches;
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
