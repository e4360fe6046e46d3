// SPDX-License-Identifier: Apache-2.0
// What the library's own code sees of a mount, and benches and tests that measure the inside.
#pragma once
#include <atomic>

#include "gpufs/mount.hpp"
#include "gpufs/transport/detail/row_buffers.hpp"

namespace gpufs {

// Of a mount, which outlives it.
class mount_inside {
 public:
  explicit mount_inside(const host_mount& mount) : mount_(*mount.impl_) {}

  const mount_layout& layout() const;    // the host's copy; its pointers name device memory
  const mount_layout* resident() const;  // the one in device memory, which kernels use
  // For row_batch: pinned memory in which host threads gather rows, 9 MiB a mount, made when it is first asked for; and whether a
  // file was ever opened whose bytes they may have to read. Both stay where they are until the mount ends.
  transport::row_buffers row_buffers() const;
  const std::atomic<bool>& has_opened_staged() const;

 private:
  host_mount::impl& mount_;
};

}  // namespace gpufs
