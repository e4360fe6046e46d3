// SPDX-License-Identifier: Apache-2.0
// Tests in which others change files that a mount has open.
#pragma once
#include <thread>

#include "file/writing.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// The watch has found that a file has changed, and kernels know it: the watch says so in the log, and a thread tells the device
// then.
inline void expect_the_watch_has_told(const mount& m) {
  EXPECT_TRUE(wait_until([&] { return !m.log().empty(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
