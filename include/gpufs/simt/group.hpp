// SPDX-License-Identifier: Apache-2.0
// Groups of threads and what they do together. Every member that says "collective" must be called by every thread of the
// group, the same one by all; they need not have converged before. A collective orders memory among the group: what a member
// wrote or acquired before it is seen by all members after it. The CPU machine names the lanes that break these rules.
#pragma once
#include <concepts>
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

// What shfl and broadcast carry.
template <class T>
concept exchangeable = std::is_trivially_copyable_v<T> && sizeof(T) <= 64;

// What scans add up.
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

// Threads that make a call together: this_thread(), this_tile<N>(), this_warp(), this_block(). All of them call, with equal
// arguments.
template <class G>
concept group = std::is_trivially_copyable_v<G> && requires(const G& g) {
  { g.rank() } -> std::convertible_to<unsigned>;
  { g.size() } -> std::convertible_to<unsigned>;
  { g.leader() } -> std::same_as<bool>;
  { g.any(true) } -> std::same_as<bool>;
  { g.broadcast(0) } -> std::same_as<int>;
  g.sync();
};

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
  // Collective. How many have it.
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
  // Collective. The value of rank src_rank (0 .. N-1), which may differ between the callers.
  template <exchangeable T>
  GPUFS_DEVICE T shfl(const T& value, unsigned src_rank) const {
    T result(value);
    if constexpr (N > 1) detail::warp_shfl<N>(mask(), base(), &result, src_rank);
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
  // Collective. The order is fixed, and the same on both machines: rank i and i + N/2 first, then these sums with those N/4 further
  // on, and so on. All lanes get the same bits, but where two NaNs are added: which NaN comes of that may differ.
  template <class T>
  requires(std::is_same_v<T, float> || std::is_same_v<T, double>) GPUFS_DEVICE T reduce_add(T value)
  const {
    for (unsigned distance = N / 2; distance > 0; distance /= 2) value += shfl_xor(value, distance);
    return value;
  }
  // Collective. The sum of the values up to the caller's, by rank. Sums of integers wrap around; those of real numbers are added in
  // an order that is fixed, and the same on both machines: with that of the rank 1 below first, then with the sum 2 below, 4 below,
  // ...
  template <summable T>
  GPUFS_DEVICE T inclusive_scan_add(T value) const {
    for (unsigned distance = 1; distance < N; distance *= 2) {
      const bool adds = rank() >= distance;
      const T below = shfl(value, adds ? rank() - distance : rank());
      if (adds) value = detail::sum_of(below, value);
    }
    return value;
  }
  // Collective. The same of the ranks below the caller's: of rank 0 it is 0.
  template <summable T>
  GPUFS_DEVICE T exclusive_scan_add(T value) const {
    const T up_to_me = inclusive_scan_add(value);
    const T below = shfl(up_to_me, rank() == 0 ? 0 : rank() - 1);
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

// Some lanes of a warp: those that arrived at lanes_together() together. Unlike a tile's, its lanes are known at run time only.
// Ranks count its lanes in the order of the warp; members as tile's.
class some_lanes {
 public:
  GPUFS_DEVICE explicit some_lanes(std::uint32_t mask) : mask_(mask) {}

  GPUFS_DEVICE std::uint32_t mask() const { return mask_; }
  GPUFS_DEVICE unsigned size() const { return detail::count_lanes(mask_); }
  GPUFS_DEVICE unsigned rank() const { return detail::count_lanes(mask_ & ((1u << lane_id()) - 1)); }
  GPUFS_DEVICE unsigned first_lane() const { return detail::lowest_lane(mask_); }
  GPUFS_DEVICE bool leader() const { return lane_id() == first_lane(); }
  GPUFS_DEVICE bool elect() const { return leader(); }

  // Collective.
  GPUFS_DEVICE void sync() const { detail::warp_sync(mask_); }
  // Collective. Bit i is lane i's predicate (lanes, not ranks: a subset of it is a group again).
  GPUFS_DEVICE std::uint32_t ballot_lanes(bool predicate) const { return detail::warp_ballot(mask_, predicate); }
  // Collective. The lanes whose value has the same bytes; the caller's bit is set.
  template <class T>
  requires(sizeof(T) == 4 || sizeof(T) == 8) GPUFS_DEVICE std::uint32_t match_any_lanes(const T& value)
  const {
    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t> bits;
    std::memcpy(&bits, &value, sizeof bits);
    return detail::warp_match_any(mask_, bits);
  }
  // Collective. The value of a lane of the group, which may differ between the callers.
  template <exchangeable T>
  GPUFS_DEVICE T shfl_from_lane(const T& value, unsigned lane) const {
    T result(value);
    detail::warp_shfl<warp_lanes>(mask_, 0, &result, lane);
    return result;
  }
  // Collective. The leader's value.
  template <exchangeable T>
  GPUFS_DEVICE T broadcast(const T& value) const {
    T result(value);
    detail::warp_broadcast<warp_lanes>(mask_, 0, &result, first_lane());
    return result;
  }

 private:
  std::uint32_t mask_;
};

// The lanes of the caller's warp that are here together with it: any set that has the caller in it, the same for all its lanes.
// They go on as a group. Which lanes these are is the hardware's choice (CPU machine: the seed's), so only speed may depend on it.
// Site: a type that names this place in the code, as the CPU machine cannot tell where a lane is. After cooperative groups'
// coalesced_threads().
template <class Site>
GPUFS_DEVICE some_lanes lanes_together() {
  return some_lanes(detail::converged_lanes<Site>());
}

// All threads of the block.
class block {
 public:
  GPUFS_DEVICE static unsigned size() { return block_size(); }
  GPUFS_DEVICE static unsigned rank() { return thread_rank(); }
  GPUFS_DEVICE static bool leader() { return rank() == 0; }
  // True in exactly one thread. Not a collective.
  GPUFS_DEVICE static bool elect() { return leader(); }
  GPUFS_DEVICE static unsigned nwarps() { return size() / warp_lanes; }
  // The calling thread's warp.
  GPUFS_DEVICE static tile<warp_lanes> warp() { return {}; }

  // Collective.
  GPUFS_DEVICE void sync() const { detail::block_sync(); }
  // Collective.
  GPUFS_DEVICE bool any(bool predicate) const { return detail::block_any(predicate); }
  // Collective.
  GPUFS_DEVICE bool all(bool predicate) const { return detail::block_all(predicate); }
  // Collective. Lane i of each warp gets the votes of warp i, bit j = its lane j; 0 where the block has no warp i. Two barriers.
  GPUFS_DEVICE std::uint32_t ballot(bool predicate) const { return of_each_warp(warp().ballot(predicate), 0u); }
  // Collective. How many have it.
  GPUFS_DEVICE unsigned count(bool predicate) const { return detail::block_count(predicate); }
  // Collective. The value of rank src_rank, the same for all callers. Two barriers on CUDA.
  template <exchangeable T>
  GPUFS_DEVICE T broadcast(const T& value, unsigned src_rank = 0) const {
    T result(value);
    detail::block_broadcast(&result, src_rank);
    return result;
  }
  // Collective. Integers of up to 8 bytes, whose sums wrap around, float and double. Each warp adds its own first, then the warps'
  // sums are added as if they were a warp's 32 values, those of warps that are not there 0: in the same order each time, and on
  // both machines. Two barriers.
  template <class T>
  requires(std::is_integral_v<T> || std::is_same_v<T, float> || std::is_same_v<T, double>) GPUFS_DEVICE T reduce_add(T value)
  const {
    value = warp().reduce_add(value);
    return warp().reduce_add(of_each_warp(value, T{}));
  }
  // Collective. As a tile's: each warp adds its own, then the sum of the warps below comes before. Two barriers.
  template <summable T>
  GPUFS_DEVICE T inclusive_scan_add(T value) const {
    const T of_mine = warp().inclusive_scan_add(value);
    return detail::sum_of(below_my_warp(of_mine), of_mine);
  }
  template <summable T>
  GPUFS_DEVICE T exclusive_scan_add(T value) const {
    const T up_to_me = warp().inclusive_scan_add(value);
    const T below = warp().shfl(up_to_me, lane_id() == 0 ? 0 : lane_id() - 1);
    return detail::sum_of(below_my_warp(up_to_me), lane_id() == 0 ? T{} : below);
  }
  // Collective. Two barriers.
  template <class T>
  requires std::is_integral_v<T> GPUFS_DEVICE T reduce_min(T value)
  const {
    value = warp().reduce_min(value);
    return warp().reduce_min(of_each_warp(value, value));
  }
  // Collective. Two barriers.
  template <class T>
  requires std::is_integral_v<T> GPUFS_DEVICE T reduce_max(T value)
  const {
    value = warp().reduce_max(value);
    return warp().reduce_max(of_each_warp(value, value));
  }

 private:
  // The sum of the warps below the caller's, of each warp's scan.
  template <class T>
  GPUFS_DEVICE T below_my_warp(T up_to_me) const {
    const T of_warps = of_each_warp(warp().broadcast(up_to_me, warp_lanes - 1), T{});
    return warp().shfl(warp().exclusive_scan_add(of_warps), warp_rank());
  }
  // Through shared memory: lane i of each warp gets warp i's value, and `other` if there is none.
  template <class T>
  GPUFS_DEVICE T of_each_warp(T value, T other) const {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t* slots = detail::block_slots();
    sync();  // all have read what the reduction before this one left
    if (warp().leader()) std::memcpy(slots + warp_rank(), &value, sizeof value);
    sync();
    if (lane_id() < nwarps()) std::memcpy(&other, slots + lane_id(), sizeof other);
    return other;
  }
};

GPUFS_DEVICE thread this_thread() { return {}; }
GPUFS_DEVICE warp this_warp() { return {}; }
template <unsigned N>
GPUFS_DEVICE tile<N> this_tile() {
  return {};
}
GPUFS_DEVICE block this_block() { return {}; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
