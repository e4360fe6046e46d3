// SPDX-License-Identifier: Apache-2.0
// Devices of the CPU machine, for its runtime.
#pragma once

namespace gpufs::simt::runtime {

int cpu_current_index();  // of the calling thread
// The device whose memory an address is in, if that is another one than `mine`; else -1, also for memory that is no device's.
int cpu_other_device(const void* address, int mine);

}  // namespace gpufs::simt::runtime
