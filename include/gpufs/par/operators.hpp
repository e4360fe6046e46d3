// SPDX-License-Identifier: Apache-2.0
// What scans and reductions combine values by: plus, times, minimum, ..., and those of one's own.
#pragma once
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/tile.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// The types of values: those that can be made of nothing, assigned and copied byte by byte, of up to 32 bytes.
template <class T>
concept scannable = std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T> && std::is_copy_assignable_v<T> &&
                        sizeof(T) <= 32 &&
                    alignof(T) <= 16;

// The types of keys that are sorted: integers but bool, float, double.
template <class K>
concept sort_key = simt::summable<K>;

// An operator that combines two neighbours, the left one first: associative, not necessarily commutative. It names the type of its
// values, and the value that changes none, on either side. Functions of kernels: GPUFS_DEVICE. (nvcc makes one operation of a
// product and a sum, unless it is told -fmad=false: then an operator that has both gives other bits than on the CPU machine.)
// It may also have bool forgets_left(x): true only of an x that op(a, x) is for every a, as where a segment begins; then a scan by
// a grid waits for less.
template <class Op>
concept scan_operator = std::is_trivially_copyable_v<Op> && scannable<typename Op::value> &&
    requires(const Op& op, const typename Op::value& a) {
  { op.identity() } -> std::same_as<typename Op::value>;
  { op(a, a) } -> std::same_as<typename Op::value>;
};

namespace detail {
template <scan_operator Op>
GPUFS_DEVICE bool forgets_left(const Op& op, const typename Op::value& x) {
  if constexpr (requires { op.forgets_left(x); }) {
    return op.forgets_left(x);
  } else {
    return false;
  }
}
}  // namespace detail

// Integers wrap around. Sums of real numbers depend on their brackets, which differ from place to place: of values that are not
// negative, a scan's results may fall by some roundings from one place to the next, and the last one may differ by some from the
// sum of all. Of -0 alone the sum is 0 or -0.
template <simt::summable T>
struct plus {
  using value = T;
  GPUFS_DEVICE T identity() const { return T{}; }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const { return simt::detail::sum_of(a, b); }
};

// The same of products.
template <simt::summable T>
struct times {
  using value = T;
  GPUFS_DEVICE T identity() const { return T{1}; }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const {
    if constexpr (std::is_integral_v<T>) {
      using wide = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
      return static_cast<T>(static_cast<wide>(a) * static_cast<wide>(b));
    } else {
      return a * b;
    }
  }
};

namespace detail {
// Variables, as kernels may not call numeric_limits' functions.
template <class T>
inline constexpr T no_least = std::is_floating_point_v<T> ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::max();
template <class T>
inline constexpr T no_most = std::is_floating_point_v<T> ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::lowest();
}  // namespace detail

// Of equal values (0 and -0) the left one. NaNs are left out: the result is one where all values are. Of no integers the largest.
template <simt::summable T>
struct minimum {
  using value = T;
  GPUFS_DEVICE T identity() const { return detail::no_least<T>; }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const { return b < a || a != a ? b : a; }
};

// The same the other way round. Of no integers the least.
template <simt::summable T>
struct maximum {
  using value = T;
  GPUFS_DEVICE T identity() const { return detail::no_most<T>; }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const { return a < b || a != a ? b : a; }
};

template <std::unsigned_integral T>
struct bit_and {
  using value = T;
  GPUFS_DEVICE T identity() const { return static_cast<T>(~T{}); }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const { return static_cast<T>(a & b); }
};

template <std::unsigned_integral T>
struct bit_or {
  using value = T;
  GPUFS_DEVICE T identity() const { return T{}; }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const { return static_cast<T>(a | b); }
};

template <std::unsigned_integral T>
struct bit_xor {
  using value = T;
  GPUFS_DEVICE T identity() const { return T{}; }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const { return static_cast<T>(a ^ b); }
};

// A value of a segmented scan: whether a segment begins with it, or with one that was combined into it.
template <scannable T>
struct with_head {
  T of;
  bool is_head;
};

// Makes of an operator one whose scans begin anew at each head: (fx, x) + (fy, y) = (fx | fy, fy ? y : x + y) (Sengupta, Harris,
// Garland, NVR-2008-003, section 2; Schwartz, Ultracomputers, 1980). Any scan takes it; segmented_scan calls are shorter.
template <class Op>
concept segmentable = scan_operator<Op> && scannable<with_head<typename Op::value>>;  // of values of up to 24 bytes
template <segmentable Op>
struct segmented {
  using value = with_head<typename Op::value>;
  Op op;

  GPUFS_DEVICE value identity() const { return {op.identity(), false}; }
  GPUFS_DEVICE bool forgets_left(const value& x) const { return x.is_head; }
  GPUFS_DEVICE value operator()(const value& a, const value& b) const {
    return {b.is_head ? b.of : op(a.of, b.of), a.is_head || b.is_head};
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
