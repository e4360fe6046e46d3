// SPDX-License-Identifier: Apache-2.0
#include "make_layout.hpp"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <vector>

namespace gpufs {
namespace {

// For the hashes of paths: of 1 to 2^61 - 2.
std::uint64_t secret_point() {
  std::uint64_t x = 0;
  if (getrandom(&x, sizeof x, 0) != sizeof x) throw std::system_error(errno, std::generic_category(), "getrandom");
  return x % ((std::uint64_t{1} << 61) - 2) + 1;
}

}  // namespace

file_layout make_layout(simt::device_memory& memory, const file_options& options) {
  const std::uint32_t nslots = options.max_open_files;
  std::vector<file_slot> slots(nslots);
  std::vector<free_list> lists(free_lists);
  for (std::uint32_t i = nslots; i-- > 0;) {
    std::uint64_t& top = lists[i % free_lists].top;
    slots[i].next = static_cast<std::uint32_t>(top);
    top = i + 1;
  }
  file_layout layout{};
  layout.slots = memory.allocate(slots);
  layout.free_slots = memory.allocate(lists);
  layout.nslots = nslots;
  layout.blocks = memory.allocate<file_block>((nslots + block_slots - 1) / block_slots);
  layout.counters = memory.allocate<call_counters>(std::size_t{file_shards} * nslots);
  layout.windows = memory.allocate<file_windows>(nslots);
  const std::uint32_t npaths = std::bit_ceil(nslots);
  layout.paths = memory.allocate<path_bucket>(npaths);
  layout.path_mask = npaths - 1;
  for (std::uint64_t& point : layout.hash_points) point = secret_point();
  if (options.writable) {
    layout.dirty_lists = memory.allocate<cache::dirty_list>(std::size_t{nslots} * lists_per_slot);
    layout.dirty_limit = options.dirty_limit;
  }
  return layout;
}

}  // namespace gpufs
