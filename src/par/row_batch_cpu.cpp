// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "gpufs/simt/stream.hpp"
#include "sort_rows.hpp"

namespace gpufs::par {
namespace {

std::size_t sort_space_nbytes(std::uint32_t) { return 0; }

void sort_rows(const row_order& rows, void*, std::size_t, const simt::stream& on) {
  on.get().enqueue([rows] {
    std::vector<std::uint32_t> order(rows.n);
    for (std::uint32_t i = 0; i < rows.n; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return rows.words[a] >> rows.first_bit < rows.words[b] >> rows.first_bit;
    });
    for (std::uint32_t i = 0; i < rows.n; ++i) {
      rows.sorted_words[i] = rows.words[order[i]];
      if (rows.places != nullptr) rows.sorted_places[i] = rows.places[order[i]];
    }
  });
}

}  // namespace
}  // namespace gpufs::par

#include "row_batch.hpp"
