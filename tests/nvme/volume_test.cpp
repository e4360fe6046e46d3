// SPDX-License-Identifier: Apache-2.0
// Files that are made of parts of namespaces: where their bytes lie.
#include <gtest/gtest.h>

#include <vector>

#include "gpufs/nvme/detail/file_layout.hpp"

namespace gpufs::test {
namespace {

// Each byte of a file lies at a place of its own, where a list of all units says; and runs end with units, or what is asked for.
TEST(nvme_shapes, give_units_to_columns_in_turn) {
  for (const std::uint32_t ncolumns : {1u, 2u, 3u, 5u}) {
    for (const std::uint32_t ncopies : {1u, 2u, 3u}) {
      const nvme::file_shape shape{4, ncolumns, ncopies, 0};
      std::vector<std::uint64_t> rows(ncolumns);
      for (std::uint64_t unit = 0, column = 0; unit < 60; ++unit, column = (column + 1) % ncolumns) {
        const std::uint64_t row = rows[column]++;
        for (std::uint64_t within = 0; within < 16; ++within) {
          for (const std::uint64_t wanted : {1u, 7u, 100u}) {
            const nvme::file_run run = shape.locate(unit * 16 + within, wanted);
            ASSERT_EQ(run.column, column) << unit;
            ASSERT_EQ(run.first_copy, row % ncopies) << unit;
            ASSERT_EQ(run.offset, row * 16 + within);
            ASSERT_EQ(run.nbytes, std::min(wanted, 16 - within));
          }
        }
      }
    }
  }
}

TEST(nvme_shapes, of_one_column_are_in_one_piece) {
  const nvme::file_shape shape{nvme::no_unit_shift, 1, 1, 0};
  const std::uint64_t at = (std::uint64_t{7} << 40) + 5;
  const nvme::file_run run = shape.locate(at, 1 << 30);
  EXPECT_EQ(run.column, 0u);
  EXPECT_EQ(run.first_copy, 0u);
  EXPECT_EQ(run.offset, at);
  EXPECT_EQ(run.nbytes, 1u << 30);
}

}  // namespace
}  // namespace gpufs::test
