// SPDX-License-Identifier: Apache-2.0
// Further descriptors of a file that is read often.
#pragma once
#include <cstdint>
#include <vector>

#include "../simt/unique_fd.hpp"

namespace gpufs::service {

// A descriptor for each worker, so that workers which read one file do not meet: each call counts itself in what its descriptor
// names, and 16 threads that pread(2) pages of 4 KiB by one descriptor of a file in memory have 0.73 of the speed that they have by
// descriptors of their own (an H200's host). A worker opens its own once it has made so many calls that it pays.
class own_descriptors {
 public:
  explicit own_descriptors(std::uint32_t nworkers);
  ~own_descriptors();
  own_descriptors(const own_descriptors&) = delete;
  own_descriptors& operator=(const own_descriptors&) = delete;

  // The worker's own, or `shared`, by which that is opened: where it has made few calls, cannot open it, or the process would be
  // short of descriptors. Only this worker calls, as of note().
  int of(std::uint32_t worker, int shared);
  // That the worker has made so many calls.
  void note(std::uint32_t worker, std::uint32_t ncalls);

 private:
  struct one {
    unique_fd fd;
    std::uint32_t ncalls = 0;
    bool was_opened = false;  // or could not be
  };
  static constexpr std::uint32_t often = 64, most = 64;
  std::vector<one> all_;  // further workers have none
};

}  // namespace gpufs::service
