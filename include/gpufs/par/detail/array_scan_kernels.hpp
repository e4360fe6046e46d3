// SPDX-License-Identifier: Apache-2.0
// What an array_scan launches: a scan, or a reduction, that goes on from the one before.
#pragma once
#include <cstdint>

#include "gpufs/par/scan.hpp"
#include "gpufs/simt/simt.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Of all calls so far. The first error stays.
template <class T>
struct array_scan_state {
  T all;
  std::int32_t error;
};

// Of a scan that other elements, combined, stand before.
template <scan_operator Op>
struct result_behind {
  using T = typename Op::value;
  const Op& op;
  const T& before;
  bool exclusive;
  template <bool>
  GPUFS_DEVICE T result(const T& item, const T& below) const {
    return op(before, exclusive ? below : op(below, item));
  }
};

template <scan_operator Op, scan_order Order>
struct array_scan_kernels {
  using T = typename Op::value;
  using state = array_scan_state<T>;

  // The grid's leader tells; all have read the state before a barrier of the call that gave `got`, or that call is an error.
  GPUFS_DEVICE static void tell(simt::grid grid, bool is_first, const T& before, const scan_result<T>& got, const Op& op,
                                state* to) {
    if (!grid.leader()) return;
    if (is_first) to->error = 0;
    if (to->error == 0) to->error = got.error;
    if (got.error == 0) to->all = op(before, got.all);
  }

  struct scan {
    const T* in;
    T* out;
    std::uint64_t n;
    Op op;
    bool exclusive, is_first;
    state* so_far;
    scan_space space;

    GPUFS_DEVICE void operator()() const {
      const simt::grid grid = simt::this_grid();
      const T before = is_first ? op.identity() : so_far->all;
      const array_items<const T, memory::global> from{in};
      using put = put_in_memory<true, T, memory::global, result_behind<Op>>;
      const auto got = scan_by_grid(grid, "par::array_scan(in, out, n, space, nbytes)", in, out, from, n, op, space, Order,
                                    put{{op, before, exclusive}, {out}});
      tell(grid, is_first, before, got, op, so_far);
    }
  };

  struct reduction {
    const T* in;
    std::uint64_t n;
    Op op;
    bool is_first;
    state* so_far;
    scan_space space;

    GPUFS_DEVICE void operator()() const {
      const simt::grid grid = simt::this_grid();
      const T before = is_first ? op.identity() : so_far->all;
      tell(grid, is_first, before, reduce(grid, in, n, op, space), op, so_far);
    }
  };
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
