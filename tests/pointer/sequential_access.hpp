// SPDX-License-Identifier: Apache-2.0
// Pointers that link to runs of pages from the first fault on, which those of gpufs::map do once they are seen to walk, and
// for_each_n's at once: so that tests need not walk first.
#pragma once
#include "gpufs/pointer/map.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

struct sequential_access : plain_access {
  template <bool Wrote, detail::walking>
  GPUFS_DEVICE static std::uint64_t pin_hit(mapping_name from, std::uint32_t page_number, detail::room around,
                                            const detail::held_pages& held) {
    return detail::pin_hit<Wrote, detail::walking::surely>(from, page_number, around, held);
  }
};

template <class T>
using sequential_ptr = ptr<T, sequential_access>;

template <class T, class Group>
GPUFS_DEVICE sequential_ptr<T> map_sequential(Group group, const file& opened, std::int64_t offset = 0,
                                              std::int64_t count = to_the_end, map_flags flags = map_flags::none) {
  return detail::map_with<T, sequential_access>(group, opened, offset, count, flags, no_handler{});
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
