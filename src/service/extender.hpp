// SPDX-License-Identifier: Apache-2.0
// The thread that has the device's tables made larger. The driver may keep it waiting until a kernel ends
// (docs/design/architecture.md), so it is none that answers anything else.
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

  // As the service's.
  void on_extend(std::function<std::uint64_t(std::uint32_t n)> make);
  // A request `extend`, which it answers. The thread starts with the first one; throws where it cannot.
  void ask(const taken_request& taken);
  // Waits for what was asked. Nobody asks any more.
  void end();

 private:
  void run();
  void make(const taken_request& taken);
  void fail(const taken_request& taken, int error, std::string_view text);

  core& core_;
  tally& counts_;
  std::mutex making_;  // of make_, which is called under it
  std::function<std::uint64_t(std::uint32_t)> make_;
  std::mutex lock_;  // of what follows
  std::condition_variable wake_;
  std::deque<taken_request> asked_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace gpufs::service
