// SPDX-License-Identifier: Apache-2.0
// Further descriptors of a file that is read often.
#pragma once
#include <cstdint>
#include <vector>

#include "../simt/unique_fd.hpp"

namespace gpufs::service {

// A descriptor for each worker, so that workers which read one file do not meet: each call counts itself in what its descriptor
// names, and 16 threads that pread(2) pages of 4 KiB by one descriptor of a file in memory have 0.73 of the speed that they have by
// descriptors of their own (an H200's host).
class own_descriptors {
 public:
  explicit own_descriptors(std::uint32_t nworkers) : all_(nworkers) {}

  // The worker's own; its first call opens it. `shared`, by which it is opened: where it cannot be, or the process would be short
  // of descriptors. Only this worker may call.
  int of(std::uint32_t worker, int shared);

 private:
  struct one {
    unique_fd fd;
    bool was_asked_for = false;
  };
  std::vector<one> all_;
};

}  // namespace gpufs::service
