// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/simt/platform.hpp"

namespace gpufs::simt::runtime {

// 64 bytes of pinned memory in which a kernel leaves an answer for the host code that launched it. The process keeps the memory
// until it ends, because giving pinned memory back waits for all work of the device.
class pinned_answer {
 public:
  static constexpr std::size_t nbytes = 64;

  explicit pinned_answer(platform& machine);
  ~pinned_answer();
  pinned_answer(const pinned_answer&) = delete;
  pinned_answer& operator=(const pinned_answer&) = delete;
  void* get() const { return data_; }

 private:
  platform& machine_;
  void* data_;
};

}  // namespace gpufs::simt::runtime
