// SPDX-License-Identifier: Apache-2.0
// The devices of the CPU machine, for its runtime.
#pragma once

namespace gpufs::simt::runtime {

int cpu_current_index();  // the calling thread's current device
// The device that owns the memory at an address, if it is not `mine`; else -1, also for memory of no device.
int cpu_other_device(const void* address, int mine);

}  // namespace gpufs::simt::runtime
