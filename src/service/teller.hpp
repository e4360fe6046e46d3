// SPDX-License-Identifier: Apache-2.0
// The thread that tells the device which versions have ended. CUDA may keep its copies waiting until a kernel ends
// (docs/guide/getting-started.md, "Kernels beside kernels"), so this thread answers no kernel and looks at no file.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "core.hpp"

namespace gpufs::service {

class teller {
 public:
  explicit teller(core& shared) : core_(shared) {}

  // Asks for core::end_version of the file, soon. The first call starts the thread, and throws if it cannot.
  void ask(std::uint32_t handle);
  // Waits for the file that is being told now. Files that still wait, and files asked for later, are never told.
  void end();

 private:
  void run();

  core& core_;
  std::mutex lock_;  // of what follows
  std::condition_variable wake_;
  std::deque<std::uint32_t> asked_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace gpufs::service
