// SPDX-License-Identifier: Apache-2.0
#include "slot_reader.hpp"

#include <algorithm>
#include <cstddef>

namespace gpufs {

template <class Each>
void slot_reader::each_block(Each each) const {
  const auto blocks = files_.blocks();
  // The device's words are trusted only up to the number of slots that exist.
  const std::uint64_t nused = std::min<std::uint64_t>({words().slots_used, mount_.files.nslots, blocks.size() * block_slots});
  for (std::size_t first = 0; first < nused; first += block_slots)
    each(*blocks[first / block_slots], first, std::min<std::size_t>(nused - first, block_slots));
}

std::vector<file_slot> slot_reader::used() const {
  std::vector<file_slot> all;
  each_block([&](const file_block& block, std::size_t, std::size_t n) {
    const auto part = memory_.read(block.slots, n);
    all.insert(all.end(), part.begin(), part.end());
  });
  return all;
}

std::vector<file_counters> slot_reader::counts() const {
  std::vector<file_counters> sums;
  // Of a block, reads the counters alone: kernels write the rest of it by plain stores.
  each_block([&](const file_block& block, std::size_t first, std::size_t n) {
    sums.resize(first + n);
    const auto hits = memory_.read(&block.hits[0][0], hit_shards * block_slots);
    for (std::size_t i = 0; i < hits.size(); ++i) {
      if (i % block_slots < n) sums[first + i % block_slots] += hits[i];
    }
    const auto calls = memory_.read(&block.calls[0][0], file_shards * block_slots);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (i % block_slots < n) sums[first + i % block_slots] += calls[i];
    }
  });
  return sums;
}

}  // namespace gpufs
