// SPDX-License-Identifier: Apache-2.0
// The thread that makes the device's tables larger. The driver may keep it waiting until a kernel ends
// (docs/design/architecture.md), so this thread answers no other requests.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core.hpp"

namespace gpufs::service {

class extender {
 public:
  explicit extender(core& shared) : core_(shared), counts_(shared.tallies.back()) {}

  // See service::on_extend.
  void on_extend(std::function<std::uint64_t(std::uint32_t n)> make);
  // Takes a request `extend`, and answers it later. The first call starts the thread, and throws if it cannot.
  void ask(const taken_request& taken);
  // Waits until all requests are answered. No thread may call ask() any more.
  void end();

 private:
  void run();
  void make(const taken_request& taken);
  void fail(const taken_request& taken, int error, std::string_view text);

  core& core_;
  tally& counts_;
  std::mutex making_;  // held while make_ is set or called
  std::function<std::uint64_t(std::uint32_t)> make_;
  std::mutex lock_;  // of what follows
  std::condition_variable wake_;
  std::deque<taken_request> asked_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace gpufs::service
