// SPDX-License-Identifier: Apache-2.0
// For parts of the library that report something when a kernel has ended.
#pragma once
#include <functional>

namespace gpufs::simt {

// While it lives, the thread that launched calls `at_end` at the end of each gpufs::simt::launch of this process, also of one that
// failed. In a child of fork(), the parent's watches are not called. One such call runs at a time; it must not launch. Neither
// copied nor moved.
class launch_watch {
 public:
  explicit launch_watch(std::function<void()> at_end);
  ~launch_watch();  // waits for a call that is under way
  launch_watch(const launch_watch&) = delete;
  launch_watch& operator=(const launch_watch&) = delete;

 private:
  friend struct launch_watches;
  std::function<void()> at_end_;
};

namespace runtime {
void tell_launch_ended();
}  // namespace runtime
}  // namespace gpufs::simt
