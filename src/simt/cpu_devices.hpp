// SPDX-License-Identifier: Apache-2.0
// The devices of the CPU machine, for its runtime.
#pragma once
#include <atomic>

namespace gpufs::simt::runtime {

int cpu_current_index();  // the calling thread's current device
// The device that owns the memory at an address, if it is not `mine`; else -1, also for memory of no device.
int cpu_other_device(const void* address, int mine);
inline constinit std::atomic<unsigned> cpu_nlaunches{0};  // how many launches are under way, on all devices

}  // namespace gpufs::simt::runtime
