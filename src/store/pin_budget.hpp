// SPDX-License-Identifier: Apache-2.0
// How much host memory mappings may pin.
#pragma once
#include <cstdint>
#include <string>

namespace gpufs::store {

// The least memory limit of a process's control groups and those above them (cgroup v2's memory.max, v1's memory.limit_in_bytes),
// as a container has one; ~0 where there is none. process_groups: its /proc/PID/cgroup; mounted: /sys/fs/cgroup. A container may
// see its own group only, mounted in the root's place.
std::uint64_t memory_limit(const std::string& process_groups, const std::string& mounted);

// What a store that is asked for `asked` bytes (0: default_pin_nbytes()) may pin: no more than the limit of the control groups,
// since who pins beyond it is killed.
std::uint64_t pin_budget(std::uint64_t asked);

}  // namespace gpufs::store
