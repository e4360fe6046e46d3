// SPDX-License-Identifier: Apache-2.0
// The slow look at open pull files: no read of theirs comes by the host, so nobody else would see that they have changed. It also
// tells the device which windows of theirs it may read since the last look.
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

// One thread looks at all in turn. When a look hangs, another goes on in its place, and that file is looked at no more until it
// comes back.
class watch {
 public:
  explicit watch(core& shared) : core_(shared) {}
  void start();  // throws std::system_error
  // Looks no more; waits for looks that hang.
  void end();
  // More windows of the file are registered than the device has been told of: it is told at once, not only at the next look.
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
  std::size_t cursor_ = 0;                        // as pull_handles() has it
  std::vector<std::uint32_t> soon_;               // handles of files that look_soon() was called for
  std::vector<std::unique_ptr<looker>> lookers_;  // the last one looks, the others end when they come back
};

}  // namespace gpufs::service
