// SPDX-License-Identifier: Apache-2.0
// The parts of a call that reads or writes several pages: which pages, which bytes, and which page failed.
#pragma once
#include "gpufs/file/detail/layout.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The pages first, first + step, ..., last of a file: a group's part of a call, in the order in which it wants them. They are
// counted from 0: places.
struct page_run {
  std::uint64_t first, last;
  std::uint32_t step;

  GPUFS_DEVICE std::uint64_t size() const { return (last - first) / step + 1; }
  GPUFS_DEVICE std::uint64_t page(std::uint64_t place) const { return first + place * step; }
};

// The bytes that a call reads, and where to.
struct byte_range {
  std::byte* dst;
  std::uint64_t begin, end;

  // What of it lies in a page.
  GPUFS_DEVICE byte_range in_page(std::uint64_t page, std::uint32_t page_nbytes) const {
    const std::uint64_t page_begin = page * page_nbytes, page_end = page_begin + page_nbytes;
    const std::uint64_t from = begin > page_begin ? begin : page_begin;
    return {dst + (from - begin), from, end < page_end ? end : page_end};
  }
  // Where the page goes, if the caller wants all of it, and it can be stored there by 16 bytes; else null.
  GPUFS_DEVICE std::byte* whole(std::uint64_t page, std::uint32_t page_nbytes) const {
    const byte_range part = in_page(page, page_nbytes);
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(part.dst) % sizeof(simt::vec16) == 0;
    return is_aligned && part.end - part.begin == page_nbytes ? part.dst : nullptr;
  }
};

// Copies what of the range lies in the page whose bytes are at `data`. All lanes call.
template <class Group>
GPUFS_DEVICE void copy_part(Group group, const byte_range& range, std::uint64_t page, std::uint32_t page_nbytes,
                            const std::byte* data) {
  const byte_range part = range.in_page(page, page_nbytes);
  simt::copy_bytes(group, part.dst, data + (part.begin - page * page_nbytes), part.end - part.begin);
}

// Returns the first `most` of the lanes that want, and takes their number off `most`. All lanes of a group within a warp call.
template <class Group>
GPUFS_DEVICE std::uint32_t first_lanes(Group group, bool want, std::uint32_t& most) {
  std::uint32_t lanes = group.ballot(want), n = simt::count_lanes(lanes);
  for (; n > most; --n) lanes &= ~(1u << simt::highest_lane(lanes));
  most -= n;
  return lanes;
}

inline constexpr int not_by_host = 1;  // in place of an error: no host thread reads the page, so it needs no window

// Which page of a call failed, and why; or error == 0.
struct page_failure {
  std::uint64_t page;
  int error;
};

// Calls work(group, first, last, step) -> page_failure for the pages first to last, in parts whose pages lie `step` apart. Which
// page failed, or error == 0.
template <class Group, class Work>
GPUFS_DEVICE page_failure each_run(Group group, std::uint64_t first, std::uint64_t last, Work work) {
  return work(group, first, last, 1u);
}

// A block spreads the pages over its warps; the first page that failed decides.
template <class Work>
GPUFS_DEVICE page_failure each_run(simt::block group, std::uint64_t first, std::uint64_t last, Work work) {
  struct failure {
    std::uint64_t page_and_error;  // page number relative to the first << 16 | -error; all ones: none
  };
  auto& first_failure = simt::shared<failure>();
  simt::atomic_ref<std::uint64_t, simt::scope::block> word(first_failure.page_and_error);
  group.sync();  // the last call's readers are done
  if (group.leader()) word.store(~std::uint64_t{0}, std::memory_order_relaxed);
  group.sync();
  const auto warp = group.warp();
  if (last - first >= simt::warp_rank()) {
    const page_failure failed = work(warp, first + simt::warp_rank(), last, group.nwarps());
    if (failed.error != 0 && warp.leader()) {
      const std::uint64_t mine = ((failed.page - first) << 16) | static_cast<std::uint32_t>(-failed.error);
      std::uint64_t seen = word.load(std::memory_order_relaxed);
      while (mine < seen && !word.compare_exchange(seen, mine, std::memory_order_relaxed)) {
      }
    }
  }
  group.sync();
  const std::uint64_t failed = word.load(std::memory_order_relaxed);
  if (failed == ~std::uint64_t{0}) return {0, 0};
  return {first + (failed >> 16), -static_cast<int>(failed & 0xffff)};
}

// Calls work(group, page) -> 0 or a negative errno for the pages first to last, until one fails.
template <class Group, class Work>
GPUFS_DEVICE page_failure each_page(Group group, std::uint64_t first, std::uint64_t last, Work work) {
  return each_run(group, first, last, [&](auto part, std::uint64_t begin, std::uint64_t end, std::uint32_t step) -> page_failure {
    for (std::uint64_t page = begin; page <= end; page += step) {
      const int error = work(part, page);
      if (error != 0) return {page, error};
    }
    return {0, 0};
  });
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
