// SPDX-License-Identifier: Apache-2.0
// A kernel that runs for long, while its host looks after it. Host code.
#pragma once
#include <chrono>
#include <exception>
#include <future>
#include <thread>

#include "gpufs/gpufs.hpp"

namespace gpufs::apps {
inline namespace GPUFS_MACHINE {

// Runs the kernel on the device, and waits. Meanwhile this thread calls look() every 20 ms. If that throws, it calls stop(), which
// has the kernel end early, and throws the same when the kernel has ended.
template <unsigned MaxThreads, unsigned MinBlocks, class Kernel, class Look, class Stop>
void launch_watched(const simt::launch_config& config, const Kernel& kernel, simt::platform& device, const Look& look,
                    const Stop& stop) {
  std::promise<void> ended;
  std::future<void> end = ended.get_future();
  const std::jthread waiter([&] {
    try {
      const simt::on_device here(device);
      simt::launch<MaxThreads, MinBlocks>(config, kernel);
      ended.set_value();
    } catch (...) {
      ended.set_exception(std::current_exception());
    }
  });
  std::exception_ptr stopped;
  while (end.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    if (stopped) continue;
    try {
      look();
    } catch (...) {
      stopped = std::current_exception();
      stop();
    }
  }
  end.get();
  if (stopped) std::rethrow_exception(stopped);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps
