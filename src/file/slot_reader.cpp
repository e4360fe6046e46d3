// SPDX-License-Identifier: Apache-2.0
#include "slot_reader.hpp"

#include <algorithm>
#include <cstddef>

namespace gpufs {

// What the device's words say is not believed beyond what there is.
std::uint64_t slot_reader::nused() const { return std::min<std::uint64_t>(words().slots_used, mount_.files.nslots); }

std::vector<file_counters> slot_reader::counts() const {
  std::vector<file_counters> sums(nused());
  const auto add = [&](const auto* counters, std::uint32_t nshards) {
    for (std::uint32_t shard = 0; shard < nshards && !sums.empty(); ++shard) {
      const auto part = memory_.read(counters + std::size_t{shard} * mount_.files.nslots, sums.size());
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
    }
  };
  add(mount_.files.hits, hit_shards);
  add(mount_.files.counters, file_shards);
  return sums;
}

}  // namespace gpufs
