// SPDX-License-Identifier: Apache-2.0
// A clock of the system, in ns.
#pragma once
#include <time.h>

#include <cstdint>

namespace gpufs::service {

inline std::uint64_t clock_ns(clockid_t which = CLOCK_MONOTONIC) {
  timespec t;
  ::clock_gettime(which, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

}  // namespace gpufs::service
