// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <string>

#include "gpufs/simt/launch.hpp"
#include "sort_rows.hpp"

namespace gpufs::par {
namespace {

// space == nullptr: only says how much is needed.
void sort(const row_order& rows, void* space, std::size_t& space_nbytes, CUstream_st* on) {
  const int first = static_cast<int>(rows.first_bit), end = static_cast<int>(rows.end_bit);
  const cudaError_t error =
      rows.places == nullptr
          ? cub::DeviceRadixSort::SortKeys(space, space_nbytes, rows.words, rows.sorted_words, rows.n, first, end, on)
          : cub::DeviceRadixSort::SortPairs(space, space_nbytes, rows.words, rows.sorted_words, rows.places, rows.sorted_places,
                                            rows.n, first, end, on);
  if (error != cudaSuccess) throw simt::launch_error(std::string("sorting a batch of rows: ") + cudaGetErrorString(error));
}

std::size_t sort_space_nbytes(std::uint32_t most) {
  // With places, and without. (Their addresses do not matter where nothing is sorted.)
  constexpr std::uint32_t place = 0;
  std::size_t pairs_nbytes = 0, words_nbytes = 0;
  sort({nullptr, &place, nullptr, nullptr, most, 0, 64}, nullptr, pairs_nbytes, nullptr);
  sort({nullptr, nullptr, nullptr, nullptr, most, 0, 64}, nullptr, words_nbytes, nullptr);
  return std::max(pairs_nbytes, words_nbytes);
}

void sort_rows(const row_order& rows, void* space, std::size_t space_nbytes, CUstream_st* on) {
  sort(rows, space, space_nbytes, on);
}

}  // namespace
}  // namespace gpufs::par

#include "row_batch.hpp"
