// SPDX-License-Identifier: Apache-2.0
#include "gpufs/simt/detail/cpu_stream.hpp"

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "gpufs/simt/detail/cpu_machine.hpp"

namespace gpufs::simt::runtime {

struct cpu_stream::impl {
  platform& device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool running = false, ends = false;
  std::exception_ptr failed;
  std::thread thread{[this] { run(); }};

  explicit impl(platform& on) : device(on) {}

  void run() {
    device.stay_current();
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::function<void()> work = std::move(waiting.front());
      waiting.pop_front();
      if (failed != nullptr) {
        changed.notify_all();
        continue;
      }
      running = true;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        work();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      failed = thrown;
      running = false;
      changed.notify_all();
    }
  }
};

cpu_stream::cpu_stream(platform& device) : impl_(std::make_unique<impl>(device)) {}

cpu_stream::~cpu_stream() {
  try {
    wait();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpufs: a stream ends, and nobody has waited for what failed in it: %s\n", e.what());
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ends = true;
    impl_->changed.notify_all();
  }
  impl_->thread.join();
}

void cpu_stream::enqueue(std::function<void()> work) const {
  if (cpu_current->countdown != 0) throw launch_error("a kernel cannot launch another one");
  const std::lock_guard lock(impl_->mutex);
  impl_->waiting.push_back(std::move(work));
  impl_->changed.notify_all();
}

void cpu_stream::wait() const {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return impl_->waiting.empty() && !impl_->running; });
  if (const std::exception_ptr failed = std::exchange(impl_->failed, nullptr); failed != nullptr) std::rethrow_exception(failed);
}

}  // namespace gpufs::simt::runtime
