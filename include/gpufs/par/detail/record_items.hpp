// SPDX-License-Identifier: Apache-2.0
// Records of any sizes as a scan sees them, which brings them one behind the other.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "gpufs/par/operators.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/memory.hpp"
#include "gpufs/simt/unroll.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// How many bytes records have together, or why they cannot be put one behind the other: what is wrong is greater than all sums, and
// the greatest of all wrong things, so that the brackets do not matter.
struct sum_of_sizes {
  using value = std::uint64_t;
  static constexpr value none_above = std::uint64_t{1} << 63, too_many = none_above, no_bytes = none_above + 1,
                         is_negative = none_above + 2;

  GPUFS_DEVICE value identity() const { return 0; }
  GPUFS_DEVICE value operator()(const value& a, const value& b) const {
    if (error(a) != 0 || error(b) != 0) return a > b ? a : b;
    return a + b < none_above ? a + b : too_many;
  }
  template <class Record>
  GPUFS_DEVICE static value of(const Record& record) {
    if (record.nbytes < 0) return is_negative;
    return record.bytes == nullptr && record.nbytes != 0 ? no_bytes : static_cast<value>(record.nbytes);
  }
  GPUFS_DEVICE static int error(value all) {
    if (all < none_above) return 0;
    return all == is_negative ? -EINVAL : all == no_bytes ? -EFAULT : -EOVERFLOW;
  }
};

// records(i): asked once for each.
template <class Record, class Records>
struct record_items {
  using element = std::uint64_t;
  using value = std::uint64_t;
  static constexpr unsigned n = scan_space::items_a_row(sizeof(element)), nrows = scan_space::rows_a_thread(sizeof(element));
  Records records;

  struct row {
    Record of[n];
    GPUFS_DEVICE value operator[](unsigned k) const { return sum_of_sizes::of(of[k]); }
  };
  GPUFS_DEVICE void prefetch(std::uint64_t, std::uint64_t) const {}
  GPUFS_DEVICE bool is_wide(std::uint64_t) const { return true; }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const { load_row(first, n, 0, to); }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, value, row& to) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) to.of[k] = k < valid ? records(first + k) : Record{nullptr, 0};
  }
};

// Copies each record to where those below it end, as far as there is room, by the thread that has asked for it.
struct put_records {
  std::byte* staging;
  std::uint64_t room;
  std::uint64_t* places;  // or null

  template <class Row>
  GPUFS_DEVICE void put(std::uint64_t i, const Row& row, unsigned k, std::uint64_t below) const {
    if (places != nullptr) places[i] = below;
    const std::uint64_t nbytes = row[k];
    if (below <= room && nbytes <= room - below) {
      simt::copy_bytes(simt::this_thread(), staging + below, row.of[k].bytes, nbytes);
    }
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
