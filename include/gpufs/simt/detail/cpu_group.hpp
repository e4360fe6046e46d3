// SPDX-License-Identifier: Apache-2.0
// Collectives of the CPU machine: each lane hands its value to the runtime, and the last lane to come computes all results.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/detail/cpu_machine.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {
namespace detail {
using namespace simt::runtime;

inline unsigned count_lanes(std::uint32_t mask) { return static_cast<unsigned>(std::popcount(mask)); }
inline unsigned lowest_lane(std::uint32_t mask) { return static_cast<unsigned>(std::countr_zero(mask)); }
inline unsigned highest_lane(std::uint32_t mask) { return 31 - static_cast<unsigned>(std::countl_zero(mask)); }
template <class Site>
std::uint32_t converged_lanes() {
  static constexpr char site = 0;
  return cpu_converge(&site);
}

inline void warp_sync(std::uint32_t mask) { cpu_warp(cpu_op::sync, mask, 0, 0, nullptr, nullptr); }

inline std::uint64_t warp_word(cpu_op op, std::uint32_t mask, std::uint64_t value) {
  std::uint64_t result = 0;
  cpu_warp(op, mask, 1, 0, &value, &result);
  return result;
}
inline std::uint32_t warp_ballot(std::uint32_t mask, bool predicate) {
  return static_cast<std::uint32_t>(warp_word(cpu_op::ballot, mask, predicate));
}
inline bool warp_any(std::uint32_t mask, bool predicate) { return warp_word(cpu_op::any, mask, predicate) != 0; }
inline bool warp_all(std::uint32_t mask, bool predicate) { return warp_word(cpu_op::all, mask, predicate) != 0; }
template <class Bits>
std::uint32_t warp_match_any(std::uint32_t mask, Bits bits) {
  return static_cast<std::uint32_t>(warp_word(cpu_op::match_any, mask, bits));
}

// Values travel as whole 8-byte words; they may be pointers. NOLINTBEGIN(bugprone-sizeof-expression)
template <class T>
struct cpu_words {
  static constexpr unsigned count = (sizeof(T) + 7) / 8;
  std::uint64_t word[count] = {};
};

template <unsigned N, class T>
void warp_exchange(cpu_op op, std::uint32_t mask, unsigned base, T* value, unsigned src_rank) {
  cpu_words<T> in, out;
  std::memcpy(in.word, value, sizeof(T));
  cpu_warp(op, mask, in.count, src_rank < N ? base + src_rank : ~0u, in.word, out.word);
  std::memcpy(static_cast<void*>(value), out.word, sizeof(T));
}
// NOLINTEND(bugprone-sizeof-expression)
template <unsigned N, class T>
void warp_shfl(std::uint32_t mask, unsigned base, T* value, unsigned src_rank) {
  warp_exchange<N>(cpu_op::shfl, mask, base, value, src_rank);
}
template <unsigned N, class T>
void warp_shfl_up(std::uint32_t mask, unsigned base, T* value, unsigned distance) {
  const unsigned rank = lane_id() - base;
  warp_shfl<N>(mask, base, value, rank >= distance ? rank - distance : rank);
}
template <unsigned N, class T>
void warp_broadcast(std::uint32_t mask, unsigned base, T* value, unsigned src_rank) {
  warp_exchange<N>(cpu_op::broadcast, mask, base, value, src_rank);
}

// Integers travel sign- or zero-extended.
template <class T>
std::uint64_t extend(T value) {
  if constexpr (std::is_signed_v<T>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  } else {
    return static_cast<std::uint64_t>(value);
  }
}
template <unsigned N, class T>
T warp_reduce_add(std::uint32_t mask, T value) {
  return static_cast<T>(warp_word(cpu_op::reduce_add, mask, extend(value)));
}
template <unsigned N, class T>
T warp_reduce_min(std::uint32_t mask, T value) {
  constexpr cpu_op op = std::is_signed_v<T> ? cpu_op::reduce_min_signed : cpu_op::reduce_min_unsigned;
  return static_cast<T>(warp_word(op, mask, extend(value)));
}
template <unsigned N, class T>
T warp_reduce_max(std::uint32_t mask, T value) {
  constexpr cpu_op op = std::is_signed_v<T> ? cpu_op::reduce_max_signed : cpu_op::reduce_max_unsigned;
  return static_cast<T>(warp_word(op, mask, extend(value)));
}

inline std::uint64_t* block_slots() {
  static constexpr char key = 0;
  return static_cast<std::uint64_t*>(cpu_shared(&key, 32 * sizeof(std::uint64_t), alignof(std::uint64_t)));
}

inline void block_sync() { cpu_block(cpu_op::sync, 0, 0, nullptr, nullptr); }
inline std::uint64_t block_word(cpu_op op, std::uint64_t value) {
  std::uint64_t result = 0;
  cpu_block(op, 1, 0, &value, &result);
  return result;
}
inline bool block_any(bool predicate) { return block_word(cpu_op::any, predicate) != 0; }
inline bool block_all(bool predicate) { return block_word(cpu_op::all, predicate) != 0; }
inline unsigned block_count(bool predicate) { return static_cast<unsigned>(block_word(cpu_op::reduce_add, predicate)); }
template <class T>
void block_broadcast(T* value, unsigned src_rank) {
  cpu_words<T> in, out;
  std::memcpy(in.word, value, sizeof(T));
  cpu_block(cpu_op::broadcast, in.count, src_rank, in.word, out.word);
  std::memcpy(static_cast<void*>(value), out.word, sizeof(T));
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
