// SPDX-License-Identifier: Apache-2.0
// Ways in which the warps of a kernel read an array of elements of 2^shift bytes, 4 or 8: in memory, or through gpufs. A warp makes
// a cursor, asks it for runs, and leaves it at the end; all lanes call with equal arguments. In kernels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "gpufs/gpufs.hpp"

namespace gpufs::apps {
inline namespace GPUFS_MACHINE {

// n elements side by side, from the one that was asked for on; none: error.
struct run {
  const std::byte* data;
  std::uint64_t n;
  int error;
};

struct in_memory {
  const std::byte* data;
  unsigned shift;

  class cursor {
   public:
    GPUFS_DEVICE explicit cursor(const in_memory& of) : of_(of) {}
    GPUFS_DEVICE run at(simt::warp, std::uint64_t i, std::uint64_t n) { return {of_.data + (i << of_.shift), n, 0}; }
    GPUFS_DEVICE void leave(simt::warp) {}
    GPUFS_DEVICE unsigned shift() const { return of_.shift; }

   private:
    const in_memory& of_;  // the kernel's
  };
};

// Pages of the cache, in place: for kernels that read most of what they bring in.
struct by_page {
  file of;
  std::uint64_t begin;  // of the array, in bytes
  unsigned shift;

  class cursor {
   public:
    GPUFS_DEVICE explicit cursor(const by_page& of) : of_(of) {}
    GPUFS_DEVICE run at(simt::warp warp, std::uint64_t i, std::uint64_t n) {
      if (i < first_ || i >= end_) {
        leave(warp);
        page_ = map_page(warp, of_.of, static_cast<std::int64_t>(of_.begin + (i << of_.shift)));
        if (page_.error() != 0) return {nullptr, 0, page_.error()};
        first_ = i;
        end_ = i + (page_.nbytes() >> of_.shift);
      }
      return {page_.data() + ((i - first_) << of_.shift), n < end_ - i ? n : end_ - i, 0};
    }
    GPUFS_DEVICE void leave(simt::warp warp) {
      if (first_ < end_) unmap_page(warp, std::move(page_));
      first_ = end_ = 0;
    }
    GPUFS_DEVICE unsigned shift() const { return of_.shift; }

   private:
    const by_page& of_;
    mapped_page<> page_;
    std::uint64_t first_ = 0, end_ = 0;  // of the elements that are mapped
  };
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps
