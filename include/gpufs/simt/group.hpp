// SPDX-License-Identifier: Apache-2.0
// Groups of threads and what they do together. Every member that says "collective" must be called by every thread of the
// group, the same one by all; they need not have converged before. A collective orders memory among the group: what a member
// wrote or acquired before it is seen by all members after it. The CPU machine names the lanes that break these rules.
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

// What shfl and broadcast carry.
template <class T>
concept exchangeable = std::is_trivially_copyable_v<T> && sizeof(T) <= 64;

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
  // Collective. The value of rank src_rank, the same for all callers. Two barriers on CUDA.
  template <exchangeable T>
  GPUFS_DEVICE T broadcast(const T& value, unsigned src_rank = 0) const {
    T result(value);
    detail::block_broadcast(&result, src_rank);
    return result;
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
