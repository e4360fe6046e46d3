// SPDX-License-Identifier: Apache-2.0
// How much host memory mappings may pin.
#pragma once
#include <cstdint>
#include <string>

namespace gpufs::store {

// The least memory limit of a process's control groups (for example a container's) and of the groups above them: cgroup v2's
// memory.max, v1's memory.limit_in_bytes. ~0: there is none. process_groups: its /proc/PID/cgroup; mounted: /sys/fs/cgroup. A
// container may see its own group only, mounted in the root's place.
std::uint64_t memory_limit(const std::string& process_groups, const std::string& mounted);

// How many bytes a store may pin if its options ask for `asked` bytes (0: default_pin_nbytes()). The result stays below the limit
// of the control groups, because the kernel kills a process that pins more.
std::uint64_t pin_budget(std::uint64_t asked);

}  // namespace gpufs::store
