// SPDX-License-Identifier: Apache-2.0
// What happens where several elements go to one place: they are combined there, or the place knows who came.
#pragma once
#include <cerrno>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "gpufs/par/detail/team.hpp"
#include "gpufs/par/operators.hpp"
#include "gpufs/par/places.hpp"
#include "gpufs/simt/atomic.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Replaces `at` by op(at, value), as one step. Relaxed: whoever reads the result has met the callers. What the machine has no
// instruction for goes by compare-exchange; who fails there meets one that has succeeded.
template <simt::scope S, class T, class Op>
GPUFS_DEVICE void combine_at(T& at, const T& value, const Op& op) {
  const simt::atomic_ref<T, S> place(at);
  T seen = place.load_relaxed();
  while (!place.compare_exchange(seen, op(seen, value), std::memory_order_relaxed)) {
  }
}
template <simt::scope S, class T>
GPUFS_DEVICE void combine_at(T& at, const T& value, const plus<T>&) {
  if constexpr (std::is_integral_v<T>) {
    simt::atomic_ref<T, S>(at).add_relaxed(value);
  } else {
    simt::atomic_ref<T, S>(at).fetch_add(value, std::memory_order_relaxed);
  }
}
template <simt::scope S, std::integral T>
GPUFS_DEVICE void combine_at(T& at, const T& value, const minimum<T>&) {
  simt::atomic_ref<T, S>(at).fetch_min(value, std::memory_order_relaxed);
}
template <simt::scope S, std::integral T>
GPUFS_DEVICE void combine_at(T& at, const T& value, const maximum<T>&) {
  simt::atomic_ref<T, S>(at).fetch_max(value, std::memory_order_relaxed);
}
template <simt::scope S, class T>
GPUFS_DEVICE void combine_at(T& at, const T& value, const bit_and<T>&) {
  simt::atomic_ref<T, S>(at).fetch_and(value, std::memory_order_relaxed);
}
template <simt::scope S, class T>
GPUFS_DEVICE void combine_at(T& at, const T& value, const bit_or<T>&) {
  simt::atomic_ref<T, S>(at).fetch_or(value, std::memory_order_relaxed);
}

// 0, or -EDOM: an element's place is neither one of nplaces nor no_place. All of the team call, who meet in it.
template <class Group, place_number Place>
GPUFS_DEVICE int check_places(const team<Group>& all, const Place* places, std::uint64_t n, std::uint64_t nplaces) {
  int error = 0;
  all.each(n, [&](std::uint64_t i) {
    if (places[i] >= nplaces && places[i] != no_place<Place>) error = -EDOM;
  });
  return all.least(error);
}

// Of each place a word, that says which of the elements came that go there: the last one, by its number. Only the words of places
// that somebody goes to are used, so that many places cost nothing. Who calls what, in this order, all have met between.
class comers {
 public:
  GPUFS_DEVICE explicit comers(std::uint64_t* words) : words_(words) {}

  GPUFS_DEVICE void clear(std::uint64_t place) const { word(place).store(0, std::memory_order_relaxed); }
  // Whether another one has come before.
  GPUFS_DEVICE bool come(std::uint64_t place, std::uint64_t i) const {
    return word(place).fetch_max(i + 1, std::memory_order_relaxed) != 0;
  }
  GPUFS_DEVICE bool is_last(std::uint64_t place, std::uint64_t i) const { return word(place).load_relaxed() == i + 1; }

 private:
  GPUFS_DEVICE simt::atomic_ref<std::uint64_t> word(std::uint64_t place) const { return simt::atomic_ref(words_[place]); }
  std::uint64_t* words_;
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
