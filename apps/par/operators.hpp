// SPDX-License-Identifier: Apache-2.0
// The operators of scans of files, for the machine that the including source is compiled for.
#pragma once
#include <type_traits>

#include "apps/par/file_jobs.hpp"
#include "gpufs/par/operators.hpp"

namespace gpufs::apps::par {

// work(T{}) with the type's T.
template <class Work>
auto with_type(number_type type, const Work& work) {
  switch (type) {
    case number_type::u32:
      return work(std::uint32_t{});
    case number_type::i32:
      return work(std::int32_t{});
    case number_type::u64:
      return work(std::uint64_t{});
    case number_type::i64:
      return work(std::int64_t{});
    case number_type::f32:
      return work(float{});
    case number_type::f64:
      break;
  }
  return work(double{});
}

inline namespace GPUFS_MACHINE {

// work(operator) with the one that is meant.
template <class T, class Work>
GPUFS_DEVICE T with_operator(scan_op op, const Work& work) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    if (op == scan_op::bit_and) return static_cast<T>(work(gpufs::par::bit_and<bits>{}));
    if (op == scan_op::bit_or) return static_cast<T>(work(gpufs::par::bit_or<bits>{}));
    if (op == scan_op::bit_xor) return static_cast<T>(work(gpufs::par::bit_xor<bits>{}));
  }
  if (op == scan_op::mul) return work(gpufs::par::times<T>{});
  if (op == scan_op::max) return work(gpufs::par::maximum<T>{});
  if (op == scan_op::min) return work(gpufs::par::minimum<T>{});
  return work(gpufs::par::plus<T>{});
}

// An operator that is chosen when it runs: one kernel for all.
template <class T>
struct any_operator {
  using value = T;
  scan_op op;

  struct give_identity {
    template <class Op>
    GPUFS_DEVICE typename Op::value operator()(const Op& of) const {
      return of.identity();
    }
  };
  struct combine {
    const T &a, &b;
    template <class Op>
    GPUFS_DEVICE typename Op::value operator()(const Op& of) const {
      using as = typename Op::value;
      return of(static_cast<as>(a), static_cast<as>(b));
    }
  };
  GPUFS_DEVICE T identity() const { return with_operator<T>(op, give_identity{}); }
  GPUFS_DEVICE T operator()(const T& a, const T& b) const { return with_operator<T>(op, combine{a, b}); }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::par
