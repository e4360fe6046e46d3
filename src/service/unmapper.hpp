// SPDX-License-Identifier: Apache-2.0
// The thread that undoes the mappings of closed files. A large one takes as long as many reads, so nobody waits for that.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "../store/readable_mapping.hpp"

namespace gpufs::service {

class unmapper {
 public:
  // Undoes what is left.
  ~unmapper();

  // Undoes the mapping soon. The first call starts the thread; if it cannot, it undoes the mapping itself. Any thread.
  void take(std::unique_ptr<store::readable_mapping> mapping);

 private:
  void run();

  std::mutex lock_;  // of what follows
  std::condition_variable wake_;
  std::unique_ptr<store::readable_mapping> first_;  // and further ones by `next`
  bool end_ = false;
  std::thread thread_;
};

}  // namespace gpufs::service
