// SPDX-License-Identifier: Apache-2.0
// How a controller is to be driven.
#pragma once
#include <cstdint>

namespace gpufs::nvme {

struct controller_options {
  std::uint32_t nqueues = 8;           // pairs for kernels, at most; the controller may grant fewer
  std::uint32_t depth = 256;           // slots of each, 2 to 16,384; cut to what the controller can
  std::uint32_t buffer_nbytes = 4096;  // of each record, a multiple of 4,096: the most that one command moves for kernels
  bool writable = false;               // else no command that writes is sent
  std::uint32_t nhost_queues =
      0;  // pairs more, for the host: so many reads and writes at a time (store::nvme_store: 4, unless set)
  std::uint64_t admin_timeout_ns = 1'000'000'000;  // of one admin command
  std::uint64_t host_timeout_ns = 10'000'000'000;  // of one command of the host's queue
  std::uint64_t abort_wait_ns = 20'000'000;        // for the completion of a command that was aborted
  std::uint64_t inside_wait_ns = 1'000'000'000;    // for groups that are inside, before queues are made again
  std::uint64_t look_every_ns = 2'000'000;         // at what kernels gave up; 0: only recover() looks
};

}  // namespace gpufs::nvme
