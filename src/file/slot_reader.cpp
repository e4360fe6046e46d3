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
  // Of a block, its counters alone: kernels write the rest of it plainly.
  for (std::size_t first = 0; first < sums.size(); first += block_slots) {
    const std::size_t n = std::min<std::size_t>(sums.size() - first, block_slots);
    const auto hits = memory_.read(&mount_.files.blocks[first / block_slots].hits[0][0], hit_shards * block_slots);
    for (std::size_t i = 0; i < hits.size(); ++i) {
      if (i % block_slots < n) sums[first + i % block_slots] += hits[i];
    }
  }
  for (std::uint32_t shard = 0; shard < file_shards; ++shard) {
    const auto part = memory_.read(mount_.files.counters + std::size_t{shard} * mount_.files.nslots, sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  return sums;
}

}  // namespace gpufs
