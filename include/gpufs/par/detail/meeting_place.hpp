// SPDX-License-Identifier: Apache-2.0
// Where those who want an item meet those that are free: an array, in which the r-th of both stand at place r.
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/par/compact.hpp"
#include "gpufs/par/places.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

struct is_set {
  GPUFS_DEVICE bool operator()(std::uint8_t byte) const { return byte != 0; }
};

// Free items come.
template <place_number Place>
struct put_free {
  Place* free;
  std::uint64_t most;

  template <class Row>
  GPUFS_DEVICE void put(std::uint64_t i, const Row& row, unsigned k, std::uint64_t below) const {
    if (row[k] != 0 && below < most) free[below] = static_cast<Place>(i);
  }
};

// Those who want one come, and take what they find.
template <place_number Place>
struct put_taken {
  const Place* free;
  std::uint64_t nfree;
  std::uint8_t* is_free;
  Place* got;

  template <class Row>
  GPUFS_DEVICE void put(std::uint64_t i, const Row& row, unsigned k, std::uint64_t below) const {
    const Place item = row[k] != 0 && below < nfree ? free[below] : no_place<Place>;
    if (item != no_place<Place>) is_free[item] = 0;
    got[i] = item;
  }
};

template <place_number Place>
struct meeting_place {
  const std::uint8_t* wants;
  std::uint64_t n;
  std::uint8_t* is_free;
  std::uint64_t nitems;
  Place* got;
  Place* free;  // room for the lesser of n and nitems

  // scan(items, n, put, all): 0 or a negative errno, and how many of the n items count. All have met after it.
  template <class Result, memory In, class Scan>
  GPUFS_DEVICE Result meet(Scan scan) const {
    using bytes = counted_items<std::uint8_t, is_set, In>;
    std::uint64_t nfree = 0, nwanted = 0;
    int error = scan(bytes{{is_free}, {}}, nitems, put_each<std::uint8_t, put_free<Place>>{{free, n}}, nfree);
    if (error == 0)
      error = scan(bytes{{wants}, {}}, n, put_each<std::uint8_t, put_taken<Place>>{{free, nfree, is_free, got}}, nwanted);
    return {error, nwanted, nfree};
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
