// SPDX-License-Identifier: Apache-2.0
// A hint for sequential walks: what other pointers do once they are seen to walk, from the first page on.
#pragma once
#include "gpufs/pointer/map.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What a sequential pointer is compiled with. See handled_by.
struct sequential_access : plain_access {
  template <bool Wrote, detail::walking>
  GPUFS_DEVICE static std::uint64_t pin_hit(mapping_name from, std::uint32_t page, detail::room around,
                                            const detail::held_pages& held) {
    return detail::pin_hit<Wrote, detail::walking::surely>(from, page, around, held);
  }
};

template <class T>
using sequential_ptr = ptr<T, sequential_access>;

// As gpufs::map, for walks in order: a warp whose lanes want the same page links to as many as it may that are in the cache and lie
// behind it, also where it has not walked before. Pointers of gpufs::map do so one page later, and link to all of them after four
// faults; so this is for walks of few pages. To no use where T is not const, or its elements may straddle pages.
template <class T, class Group>
GPUFS_DEVICE sequential_ptr<T> map_sequential(Group group, const file& opened, std::int64_t offset = 0,
                                              std::int64_t count = to_the_end, map_flags flags = map_flags::none) {
  return detail::map_with<T, sequential_access>(group, opened, offset, count, flags, no_handler{});
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
