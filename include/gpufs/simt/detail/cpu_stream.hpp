// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>

#include "gpufs/simt/platform.hpp"

namespace gpufs::simt::runtime {

// A host thread that does one piece of work after another, with its device as the current one (src/simt/cpu_stream.cpp).
class cpu_stream {
 public:
  explicit cpu_stream(platform& device);
  ~cpu_stream();  // waits; prints an error to stderr that no call has reported
  cpu_stream(const cpu_stream&) = delete;
  cpu_stream& operator=(const cpu_stream&) = delete;
  void enqueue(std::function<void()> work) const;  // a launch or a copy
  void wait() const;  // for all work; throws what the first work that failed has thrown. Later work does not run

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpufs::simt::runtime
