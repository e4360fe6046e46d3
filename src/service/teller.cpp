// SPDX-License-Identifier: Apache-2.0
#include "teller.hpp"

#include <sys/prctl.h>

#include "worker.hpp"  // core destroys workers

namespace gpufs::service {

void teller::ask(std::uint32_t handle) {
  {
    const std::scoped_lock hold(lock_);
    if (end_) return;
    asked_.push_back(handle);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  wake_.notify_one();
}

void teller::end() {
  {
    const std::scoped_lock hold(lock_);
    end_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void teller::run() {
  ::prctl(PR_SET_NAME, "gpufs-tell");
  core_.machine.stay_current();
  std::unique_lock hold(lock_);
  for (;;) {
    wake_.wait(hold, [this] { return end_ || !asked_.empty(); });
    if (end_) return;
    const std::uint32_t handle = asked_.front();
    asked_.pop_front();
    hold.unlock();
    if (const open_files::ref file = core_.open.acquire(handle)) core_.end_version(*file.get());  // else it was closed
    hold.lock();
  }
}

}  // namespace gpufs::service
