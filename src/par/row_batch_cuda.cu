// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_radix_sort.cuh>
#include <string>

#include "gpufs/simt/launch.hpp"
#include "sort_rows.hpp"

namespace gpufs::par {
namespace {

// space == nullptr: only says how much is needed.
void sort(const row_order& rows, void* space, std::size_t& space_nbytes, CUstream_st* on) {
  const cudaError_t error =
      cub::DeviceRadixSort::SortPairs(space, space_nbytes, rows.numbers, rows.sorted_numbers, rows.places, rows.sorted_places,
                                      rows.n, static_cast<int>(rows.first_bit), static_cast<int>(rows.number_nbits), on);
  if (error != cudaSuccess) throw simt::launch_error(std::string("sorting a batch of rows: ") + cudaGetErrorString(error));
}

std::size_t sort_space_nbytes(std::uint32_t most) {
  std::size_t nbytes = 0;
  sort({nullptr, nullptr, nullptr, nullptr, most, 64}, nullptr, nbytes, nullptr);
  return nbytes;
}

void sort_rows(const row_order& rows, void* space, std::size_t space_nbytes, CUstream_st* on) {
  sort(rows, space, space_nbytes, on);
}

}  // namespace
}  // namespace gpufs::par

#include "row_batch.hpp"
