// SPDX-License-Identifier: Apache-2.0
// Switches for tests of the service; other code must not set them. Read when a service starts, and when one of its threads does.
#pragma once
#include <atomic>
#include <cstdint>

namespace gpufs::service::for_tests {

inline std::atomic<bool> io_uring{true};      // false: reads that miss the page cache block a worker each
inline std::atomic<bool> eager_loads{false};  // files in memory are mapped at their first read, and loaded from; read each time
inline std::atomic<std::uint32_t> first_cache_id{1};  // ids count from here to 2^28 - 1

}  // namespace gpufs::service::for_tests
