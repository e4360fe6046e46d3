// SPDX-License-Identifier: Apache-2.0
// The threads that have the copy engine bring pages straight into frames (docs/design/operations.md, "Pages by the copy engine").
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker.hpp"

namespace gpufs::service {

class copier {
 public:
  explicit copier(core& shared);

  // Makes the batches, and starts the threads. Throws what the platform does, and std::system_error.
  void start();
  // Takes a read that worker::begin_copy has checked. The copier answers it.
  void ask(work&& w);
  // Waits until all reads are answered. No thread may call ask() any more.
  void end();

 private:
  // Each thread has two batches: while the engine copies one, the thread fills the other. There are several threads (ncopiers),
  // because the driver takes a thread about as long for one copy as the engine takes for 64 KiB.
  static constexpr std::size_t most = 128;  // pages in a batch

  struct batch {
    std::unique_ptr<simt::copy_batch> engine;
    std::vector<work> works;
    std::vector<simt::host_copy> copies;
    bool is_under_way() const { return !works.empty(); }
  };
  struct copying_thread {
    batch batches[2];
    tally* counts = nullptr;
    std::thread thread;
  };

  void run(copying_thread& self);
  bool wait_for_work();
  void begin(batch& next);
  bool has_ended(batch& oldest);
  void finish(batch& ended, tally& counts);
  void give_up(batch& broken, const char* why);
  void pass_on(work&& w);

  core& core_;
  copying_thread threads_[ncopiers];
  std::mutex lock_;  // of what follows
  std::condition_variable wake_;
  std::deque<work> asked_;
  std::atomic<std::size_t> nasked_{0};  // how many; also read without the lock
  std::size_t nsleeping_ = 0;
  bool end_ = false;
};

}  // namespace gpufs::service
