// SPDX-License-Identifier: Apache-2.0
// A pair of queues of the host's own, one command at a time: the admin queue, and one for blocks.
#pragma once
#include <cstdint>

#include "dma_region.hpp"
#include "registers.hpp"

namespace gpufs::nvme {

class host_queue {
 public:
  static constexpr std::uint32_t most_slots = 32;

  // id: of both queues; 0, the admin queue. nslots: of each; 2 to most_slots.
  host_queue(controller_access& access, simt::platform& machine, std::uint32_t id = 0, std::uint32_t nslots = most_slots)
      : access_(access),
        submissions_(access, machine, bus_page_nbytes),
        completions_(access, machine, bus_page_nbytes),
        id_(id),
        nslots_(nslots) {}

  // The queues begin anew: the controller does not have them yet. It is told of the admin queue here, and must be disabled.
  void begin(std::uint32_t doorbell_stride);
  std::uint32_t id() const { return id_; }
  std::uint32_t nslots() const { return nslots_; }
  // On the bus: one page each.
  std::uint64_t submissions_at() const { return submissions_.page_at(0); }
  std::uint64_t completions_at() const { return completions_.page_at(0); }

  // Executes a command (all but its identifier). Returns its status, 0 or more; or -ETIMEDOUT, also of a controller that has
  // failed, after which it must be reset before the next one; or -ENODEV, the controller is gone. `result`: dword 0 of its
  // completion.
  int execute(const submission& what, std::uint64_t timeout_ns, std::uint32_t* result = nullptr);

 private:
  controller_access& access_;
  dma_region submissions_, completions_;
  std::uint32_t id_, nslots_, stride_ = 4;
  std::uint64_t next_ = 0;  // commands so far: also completions, as one is under way at a time
};

}  // namespace gpufs::nvme
