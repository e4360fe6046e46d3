// SPDX-License-Identifier: Apache-2.0
#include "own_descriptors.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <string>

namespace gpufs::service {
namespace {

// The system gives the lowest number that is free, so a number says how many the process has. It keeps a quarter of them, as by
// the store's kept_descriptors.
bool leaves_enough(int fd) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) < limit.rlim_cur / 4 * 3;
}

}  // namespace

int own_descriptors::of(std::uint32_t worker, int shared) {
  one& mine = all_[worker];
  if (!mine.was_asked_for) {
    mine.was_asked_for = true;
    // By /proc, since a descriptor that was duplicated counts in the same place.
    unique_fd fd(::open(("/proc/self/fd/" + std::to_string(shared)).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() >= 0 && leaves_enough(fd.get())) mine.fd = std::move(fd);
  }
  return mine.fd.get() >= 0 ? mine.fd.get() : shared;
}

}  // namespace gpufs::service
