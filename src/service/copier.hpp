// SPDX-License-Identifier: Apache-2.0
// The thread that has the copy engine bring pages straight into frames (docs/design/operations.md, "Pages by the copy engine").
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
  explicit copier(core& shared) : core_(shared), counts_(shared.tallies[shared.tallies.size() - 2]) {}

  // Makes what copies need, and starts the thread. Throws what the platform does, and std::system_error.
  void start();
  // A read that worker::begin_copy has checked, and which the copier answers.
  void ask(work&& w);
  // All that was asked for is answered. Nobody asks any more.
  void end();

 private:
  static constexpr std::size_t most = 256;  // pages in a batch: measured, the engine does not get faster with more

  // Two of them: while the engine does one, the other is filled.
  struct batch {
    std::unique_ptr<simt::copy_batch> engine;
    std::vector<work> works;
    std::vector<simt::host_copy> copies;
    bool is_under_way() const { return !works.empty(); }
  };

  void run();
  bool wait_for_work();
  void begin(batch& next);
  bool has_ended(batch& oldest);
  void finish(batch& ended);
  void give_up(batch& broken, const char* why);
  void pass_on(work&& w);

  core& core_;
  tally& counts_;
  batch batches_[2];
  std::mutex lock_;  // of what follows
  std::condition_variable wake_;
  std::deque<work> asked_;
  std::atomic<std::size_t> nasked_{0};  // their number; also without the lock
  bool sleeps_ = false, end_ = false;
  std::thread thread_;
};

}  // namespace gpufs::service
