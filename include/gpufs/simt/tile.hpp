// SPDX-License-Identifier: Apache-2.0
// A warp's lanes as a group: all of them, or 1, 2, 4, 8 or 16 side by side; group.hpp says what holds for all groups.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/thread.hpp"
#include "gpufs/simt/types.hpp"
#if GPUFS_ON_CUDA
#include "gpufs/simt/detail/cuda_group.hpp"
#else
#include "gpufs/simt/detail/cpu_group.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// The types that shfl and broadcast carry.
template <class T>
concept exchangeable = std::is_trivially_copyable_v<T> && sizeof(T) <= 64;

// The types that scans add up.
template <class T>
concept summable = (std::is_integral_v<T> && !std::is_same_v<T, bool>) || std::is_same_v<T, float> || std::is_same_v<T, double>;

namespace detail {
// Integers wrap around.
template <summable T>
GPUFS_DEVICE T sum_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using wide = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(static_cast<wide>(a) + static_cast<wide>(b));
  } else {
    return a + b;
  }
}
}  // namespace detail

// N consecutive lanes of a warp, aligned to N. Ranks are 0 .. N-1. Operations of tile<1> cost nothing.
template <unsigned N>
class tile {
  static_assert(N >= 1 && N <= warp_lanes && (N & (N - 1)) == 0);

 public:
  static constexpr unsigned lanes = N;
  GPUFS_DEVICE static constexpr unsigned size() { return N; }
  GPUFS_DEVICE static unsigned rank() { return N == 1 ? 0 : lane_id() & (N - 1); }
  GPUFS_DEVICE static bool leader() { return rank() == 0; }
  // True in exactly one thread. Not a collective.
  GPUFS_DEVICE static bool elect() { return leader(); }
  // The group's lanes in the warp, bit i = lane i.
  GPUFS_DEVICE static std::uint32_t mask() {
    if constexpr (N == warp_lanes) {
      return 0xffffffffu;
    } else {
      return ((1u << N) - 1) << base();
    }
  }

  // Collective.
  GPUFS_DEVICE void sync() const {
    if constexpr (N > 1) detail::warp_sync(mask());
  }
  // Collective. Bit i is rank i's predicate.
  GPUFS_DEVICE std::uint32_t ballot(bool predicate) const {
    if constexpr (N == 1) {
      return predicate ? 1u : 0u;
    } else {
      return detail::warp_ballot(mask(), predicate) >> base();
    }
  }
  // Collective. For how many lanes the predicate is true.
  GPUFS_DEVICE unsigned count(bool predicate) const { return detail::count_lanes(ballot(predicate)); }
  // Collective.
  GPUFS_DEVICE bool any(bool predicate) const {
    if constexpr (N == 1) {
      return predicate;
    } else {
      return detail::warp_any(mask(), predicate);
    }
  }
  // Collective.
  GPUFS_DEVICE bool all(bool predicate) const {
    if constexpr (N == 1) {
      return predicate;
    } else {
      return detail::warp_all(mask(), predicate);
    }
  }
  // Collective. The value of rank src_rank (0 .. N-1); callers may name different ranks.
  template <exchangeable T>
  GPUFS_DEVICE T shfl(const T& value, unsigned src_rank) const {
    T result(value);
    if constexpr (N > 1) detail::warp_shfl<N>(mask(), base(), &result, src_rank);
    return result;
  }
  // Collective. The value of the rank that is `distance` (1 .. N-1, the same for all callers) below the caller's; the caller's own
  // if there is none. Takes fewer registers than shfl.
  template <exchangeable T>
  GPUFS_DEVICE T shfl_up(const T& value, unsigned distance) const {
    T result(value);
    if constexpr (N > 1) detail::warp_shfl_up<N>(mask(), base(), &result, distance);
    return result;
  }
  // Collective. The value of rank src_rank, the same for all callers.
  template <exchangeable T>
  GPUFS_DEVICE T broadcast(const T& value, unsigned src_rank = 0) const {
    T result(value);
    if constexpr (N > 1) detail::warp_broadcast<N>(mask(), base(), &result, src_rank);
    return result;
  }
  // Collective. The value of the rank whose number is the caller's with the bits of `distance` (below N) flipped.
  template <exchangeable T>
  GPUFS_DEVICE T shfl_xor(const T& value, unsigned distance) const {
    return shfl(value, rank() ^ distance);
  }
  // Collective. The ranks whose value has the same bytes, bit i = rank i; the caller's bit is set.
  template <class T>
  requires std::is_trivially_copyable_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8) GPUFS_DEVICE std::uint32_t
      match_any(const T& value) const {
    if constexpr (N == 1) {
      return 1u;
    } else {
      std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t> bits;
      std::memcpy(&bits, &value, sizeof bits);
      return detail::warp_match_any(mask(), bits) >> base();
    }
  }
  // Collective. Sums wrap around.
  template <class T>
  requires std::is_integral_v<T> GPUFS_DEVICE T reduce_add(T value)
  const {
    if constexpr (N == 1) {
      return value;
    } else {
      return detail::warp_reduce_add<N>(mask(), value);
    }
  }
  // Collective. The order is fixed, and the same on both machines: first each rank i adds the value of rank i + N/2, then to these
  // sums the one N/4 further on, and so on. All lanes get the same bits, except that the sum of two NaNs may be either NaN.
  template <class T>
  requires(std::is_same_v<T, float> || std::is_same_v<T, double>) GPUFS_DEVICE T reduce_add(T value)
  const {
    for (unsigned distance = N / 2; distance > 0; distance /= 2) value += shfl_xor(value, distance);
    return value;
  }
  // Collective. The sum of the values of the ranks up to the caller's. Sums of integers wrap around. Real numbers are added in an
  // order that is fixed, and the same on both machines: each rank adds the value of the rank 1 below first, then the sum 2 below, 4
  // below, ...
  template <summable T>
  GPUFS_DEVICE T inclusive_scan_add(T value) const {
    for (unsigned distance = 1; distance < N; distance *= 2) {
      const T below = shfl_up(value, distance);
      if (rank() >= distance) value = detail::sum_of(below, value);
    }
    return value;
  }
  // Collective. The sum of the values of the ranks below the caller's; 0 for rank 0.
  template <summable T>
  GPUFS_DEVICE T exclusive_scan_add(T value) const {
    const T up_to_me = inclusive_scan_add(value);
    if constexpr (N == 1) return T{};
    const T below = shfl_up(up_to_me, 1);
    return rank() == 0 ? T{} : below;
  }
  // Collective.
  template <class T>
  requires std::is_integral_v<T> GPUFS_DEVICE T reduce_min(T value)
  const {
    if constexpr (N == 1) {
      return value;
    } else {
      return detail::warp_reduce_min<N>(mask(), value);
    }
  }
  // Collective.
  template <class T>
  requires std::is_integral_v<T> GPUFS_DEVICE T reduce_max(T value)
  const {
    if constexpr (N == 1) {
      return value;
    } else {
      return detail::warp_reduce_max<N>(mask(), value);
    }
  }

 private:
  GPUFS_DEVICE static unsigned base() {
    if constexpr (N == warp_lanes) {
      return 0;
    } else {
      return lane_id() & ~(N - 1);
    }
  }
};

using thread = tile<1>;
using warp = tile<warp_lanes>;

using detail::count_lanes;  // of a mask
using detail::highest_lane;
using detail::lowest_lane;  // of a mask that is not 0

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
