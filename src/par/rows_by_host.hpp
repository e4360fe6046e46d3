// SPDX-License-Identifier: Apache-2.0
// The kernel in which host threads gather rows. In a source of its own: it calls little out of line, and ptxas would give it the
// functions of all others of the same source.
#pragma once
#include "row_part.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The rows that gather_rows has left for host threads. `from` is open.
struct rows_by_host {
  row_part_of_batch part;
  file from;
  std::byte* to;
  rows_for_host left;
};
static_assert(sizeof(rows_by_host) == sizeof(row_part_of_batch) + 80 && sizeof(file) == 16);  // without a gap

#if GPUFS_ON_CUDA
void start_rows_by_host(const rows_by_host& rows, simt::platform& device, CUstream_st* on);
#else
void start_rows_by_host(const rows_by_host& rows, simt::platform& device, const simt::stream& on);
#endif
void load_rows_by_host();

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
