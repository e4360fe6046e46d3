// SPDX-License-Identifier: Apache-2.0
#include "slot_reader.hpp"

#include <algorithm>
#include <cstddef>

namespace gpufs {

// What the device's words say is not believed beyond what there is.
std::uint64_t slot_reader::nused() const { return std::min<std::uint64_t>(words().slots_used, mount_.files.nslots); }

std::vector<file_counters> slot_reader::counts() const {
  std::vector<file_counters> sums(nused());
  if (sums.empty()) return sums;
  const auto blocks = memory_.read(mount_.files.blocks, (sums.size() + block_slots - 1) / block_slots);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    for (const auto& copy : blocks[i / block_slots].hits) sums[i] += copy[i % block_slots];
  }
  for (std::uint32_t shard = 0; shard < file_shards; ++shard) {
    const auto part = memory_.read(mount_.files.counters + std::size_t{shard} * mount_.files.nslots, sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  return sums;
}

}  // namespace gpufs
