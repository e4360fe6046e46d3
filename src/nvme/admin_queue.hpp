// SPDX-License-Identifier: Apache-2.0
// The admin queue: the host's own, one command at a time.
#pragma once
#include <cstdint>

#include "dma_region.hpp"
#include "registers.hpp"

namespace gpufs::nvme {

class admin_queue {
 public:
  admin_queue(controller_access& access, simt::platform& machine)
      : access_(access), submissions_(access, machine, bus_page_nbytes), completions_(access, machine, bus_page_nbytes) {}

  // The controller is disabled: tells it where the queues lie, which begin anew. Then it may be enabled.
  void begin(std::uint32_t doorbell_stride);

  // Executes a command (all but its identifier). Returns its status, 0 or more; or -ETIMEDOUT, after which the controller must be
  // reset before the next one; or -ENODEV, the controller is gone. `result`: dword 0 of its completion.
  int execute(const submission& what, std::uint64_t timeout_ns, std::uint32_t* result = nullptr);

 private:
  static constexpr std::uint32_t nslots = 32;

  controller_access& access_;
  dma_region submissions_, completions_;
  std::uint32_t stride_ = 4;
  std::uint64_t next_ = 0;  // commands so far: also completions, as one is under way at a time
};

}  // namespace gpufs::nvme
