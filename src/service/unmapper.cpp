// SPDX-License-Identifier: Apache-2.0
#include "unmapper.hpp"

#include <sys/prctl.h>

#include <exception>
#include <utility>

namespace gpufs::service {

unmapper::~unmapper() {
  {
    const std::scoped_lock hold(lock_);
    end_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void unmapper::take(std::unique_ptr<store::readable_mapping> mapping) {
  {
    const std::scoped_lock hold(lock_);
    try {
      if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    } catch (const std::exception&) {  // no thread, or no memory
      return;                          // `mapping` ends after `hold`
    }
    mapping->next = std::move(first_);
    first_ = std::move(mapping);
  }
  wake_.notify_one();
}

void unmapper::run() {
  ::prctl(PR_SET_NAME, "gpufs-unmapper");
  std::unique_lock hold(lock_);
  for (;;) {
    wake_.wait(hold, [&] { return first_ != nullptr || end_; });
    if (first_ == nullptr) return;
    std::unique_ptr<store::readable_mapping> mapping = std::move(first_);
    first_ = std::move(mapping->next);
    hold.unlock();
    mapping.reset();
    hold.lock();
  }
}

}  // namespace gpufs::service
