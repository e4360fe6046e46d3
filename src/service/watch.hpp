// SPDX-License-Identifier: Apache-2.0
// The slow look at open pull files: their reads do not come to the host, so without it no thread would see that they have changed.
// It also tells the device which more windows of these files it may read since the last look.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core.hpp"

namespace gpufs::service {

// One thread looks at all files in turn. If a look hangs, another thread takes its place, and does not look at that file until the
// call comes back.
class watch {
 public:
  explicit watch(core& shared) : core_(shared) {}
  void start();  // throws std::system_error
  // Ends the looks; waits for looks that hang.
  void end();
  // Called when more windows of the file are registered than the device has been told of. Has the device told at once, not only at
  // the next look.
  void look_soon(open_files::entry& file) noexcept;
  // Starts another thread in place of one that hangs. Called by one thread.
  void look_for_hung();

 private:
  struct looker {
    blocked_call look;
    std::atomic<bool> ended{false};
    std::thread thread;
  };
  void add_looker();
  void run(looker& self);
  bool look_at(looker& self, std::uint32_t handle, std::uint64_t now_ns);

  core& core_;
  std::mutex lock_;  // of what follows
  std::condition_variable wake_;
  bool end_ = false;
  std::size_t cursor_ = 0;                        // pull_handles()'s cursor
  std::vector<std::uint32_t> soon_;               // handles of files that look_soon() was called for
  std::vector<std::unique_ptr<looker>> lookers_;  // the last one looks; the others end when their calls come back
};

}  // namespace gpufs::service
