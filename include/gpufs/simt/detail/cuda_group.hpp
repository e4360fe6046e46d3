// SPDX-License-Identifier: Apache-2.0
// Collectives of the CUDA machine. All of them name their mask. A warp collective starts with __syncwarp: it alone orders memory
// (shuffles and votes do not), and within a warp it costs no more than an instruction.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/simt/config.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {
namespace detail {

__device__ inline unsigned count_lanes(std::uint32_t mask) { return static_cast<unsigned>(__popc(mask)); }
__device__ inline unsigned lowest_lane(std::uint32_t mask) { return static_cast<unsigned>(__ffs(static_cast<int>(mask)) - 1); }
__device__ inline unsigned highest_lane(std::uint32_t mask) { return 31 - static_cast<unsigned>(__clz(static_cast<int>(mask))); }
// The whole warp, or the lane alone. A part of a warp could be a group too, but then lanes that come later might run the same code
// at the same time under another mask; the hardware and the compiler serve full warps and single lanes best.
template <class Site>
__device__ inline std::uint32_t converged_lanes() {
  const std::uint32_t active = __activemask();
  if (active == ~0u) return active;
  std::uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return 1u << lane;
}

__device__ inline void warp_sync(std::uint32_t mask) { __syncwarp(mask); }
// Two syncs, the first with a mask that the compiler does not know: then it makes the second one bring the lanes together. By one
// alone (nvcc 13.0, sm_90) lanes only wait for each other, and go on apart.
__device__ inline void warp_rejoin() {
  std::uint32_t up_to_me, from_me_on;
  asm("mov.u32 %0, %%lanemask_le;" : "=r"(up_to_me));
  asm("mov.u32 %0, %%lanemask_ge;" : "=r"(from_me_on));
  __syncwarp(up_to_me | from_me_on);
  __syncwarp();
}
__device__ inline std::uint32_t warp_ballot(std::uint32_t mask, bool predicate) {
  __syncwarp(mask);
  return __ballot_sync(mask, predicate) & mask;
}
__device__ inline bool warp_any(std::uint32_t mask, bool predicate) {
  __syncwarp(mask);
  return __any_sync(mask, predicate) != 0;
}
__device__ inline bool warp_all(std::uint32_t mask, bool predicate) {
  __syncwarp(mask);
  return __all_sync(mask, predicate) != 0;
}
__device__ inline std::uint32_t warp_match_any(std::uint32_t mask, std::uint32_t bits) {
  __syncwarp(mask);
  return __match_any_sync(mask, bits);
}
__device__ inline std::uint32_t warp_match_any(std::uint32_t mask, std::uint64_t bits) {
  __syncwarp(mask);
  return __match_any_sync(mask, static_cast<unsigned long long>(bits));
}

template <class T, class Move>
__device__ inline void warp_move_words(std::uint32_t mask, T* value, Move move) {
  __syncwarp(mask);
  constexpr unsigned nwords = (sizeof(T) + 3) / 4;
  std::uint32_t word[nwords];
  word[nwords - 1] = 0;
  std::memcpy(word, value, sizeof(T));
#pragma unroll
  for (unsigned i = 0; i < nwords; ++i) word[i] = move(word[i]);
  std::memcpy(static_cast<void*>(value), word, sizeof(T));
}
template <unsigned N, class T>
__device__ inline void warp_shfl(std::uint32_t mask, unsigned /*base*/, T* value, unsigned src_rank) {
  warp_move_words(mask, value, [=](std::uint32_t word) { return __shfl_sync(mask, word, static_cast<int>(src_rank), N); });
}
template <unsigned N, class T>
__device__ inline void warp_shfl_up(std::uint32_t mask, unsigned /*base*/, T* value, unsigned distance) {
  warp_move_words(mask, value, [=](std::uint32_t word) { return __shfl_up_sync(mask, word, distance, N); });
}
template <unsigned N, class T>
__device__ inline void warp_broadcast(std::uint32_t mask, unsigned base, T* value, unsigned src_rank) {
  warp_shfl<N>(mask, base, value, src_rank);
}

struct add_op {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  }
};
struct min_op {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct max_op {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

// For 8-byte values, which redux.sync does not take.
template <unsigned N, class T, class Op>
__device__ inline T warp_butterfly(std::uint32_t mask, T value, Op op) {
#pragma unroll
  for (unsigned distance = N / 2; distance > 0; distance /= 2) {
    using wide = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
    value = op(value, static_cast<T>(__shfl_xor_sync(mask, static_cast<wide>(value), static_cast<int>(distance), N)));
  }
  return value;
}

template <class T>
using reduce_word = std::conditional_t<std::is_signed_v<T>, int, unsigned>;

template <unsigned N, class T>
__device__ inline T warp_reduce_add(std::uint32_t mask, T value) {
  __syncwarp(mask);
  if constexpr (sizeof(T) <= 4) {
    return static_cast<T>(__reduce_add_sync(mask, static_cast<unsigned>(value)));
  } else {
    return warp_butterfly<N>(mask, value, add_op{});
  }
}
template <unsigned N, class T>
__device__ inline T warp_reduce_min(std::uint32_t mask, T value) {
  __syncwarp(mask);
  if constexpr (sizeof(T) <= 4) {
    return static_cast<T>(__reduce_min_sync(mask, static_cast<reduce_word<T>>(value)));
  } else {
    return warp_butterfly<N>(mask, value, min_op{});
  }
}
template <unsigned N, class T>
__device__ inline T warp_reduce_max(std::uint32_t mask, T value) {
  __syncwarp(mask);
  if constexpr (sizeof(T) <= 4) {
    return static_cast<T>(__reduce_max_sync(mask, static_cast<reduce_word<T>>(value)));
  } else {
    return warp_butterfly<N>(mask, value, max_op{});
  }
}

// The words of warp_line, one a lane.
class warp_line_words {
 public:
  __device__ explicit warp_line_words(const void* line) : word_(static_cast<const std::uint32_t*>(line)[lane()]) {}
  template <class T>
  __device__ T get(unsigned offset) const {
    std::uint32_t words[sizeof(T) / 4];
    for (unsigned i = 0; i < sizeof(T) / 4; ++i) words[i] = __shfl_sync(~0u, word_, static_cast<int>(offset / 4 + i));
    T value;
    std::memcpy(&value, words, sizeof value);
    return value;
  }

 private:
  __device__ static std::uint32_t lane() {
    std::uint32_t rank;
    asm("mov.u32 %0, %%laneid;" : "=r"(rank));
    return rank;
  }
  std::uint32_t word_;
};

__device__ inline void block_sync() { __syncthreads(); }
__device__ inline bool block_any(bool predicate) { return __syncthreads_or(predicate) != 0; }
__device__ inline bool block_all(bool predicate) { return __syncthreads_and(predicate) != 0; }

__device__ inline unsigned block_count(bool predicate) { return static_cast<unsigned>(__syncthreads_count(predicate)); }

// A word for each warp, for all reductions of a kernel, whatever their type.
__device__ inline std::uint64_t* block_slots() {
  __shared__ std::uint64_t slots[32];
  return slots;
}

// Sixteen words for all broadcasts of a kernel, whatever their type.
__device__ inline std::uint32_t* block_slot() {
  __shared__ alignas(16) std::uint32_t slot[16];
  return slot;
}
template <class T>
__device__ inline void block_broadcast(T* value, unsigned src_rank) {
  std::uint32_t* slot = block_slot();
  const unsigned rank = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  __syncthreads();  // all threads have read the value of the previous broadcast
  if (rank == src_rank) std::memcpy(static_cast<void*>(slot), value, sizeof(T));
  __syncthreads();
  std::memcpy(static_cast<void*>(value), slot, sizeof(T));
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
