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
  const auto hits = memory_.read(mount_.files.hits, hits_length(static_cast<std::uint32_t>(sums.size())));
  for (std::uint32_t i = 0; i < sums.size(); ++i) {
    for (std::uint32_t shard = 0; shard < hit_shards; ++shard) sums[i] += hits[hits_at(i) + shard * hits_a_line];
  }
  for (std::uint32_t shard = 0; shard < file_shards; ++shard) {
    const auto part = memory_.read(mount_.files.counters + std::size_t{shard} * mount_.files.nslots, sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  return sums;
}

}  // namespace gpufs
