// SPDX-License-Identifier: Apache-2.0
// Taxi trips, drawn: columns with the names, types and about the distributions of New York's yellow taxis (the TLC's trip records).
// A trip depends on the seed and its number alone. Host code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/progress.hpp"
#include "apps/query/values.hpp"

namespace gpufs::apps::query {

struct trip_column {
  const char* name;
  value_type type;
  const char* dtype;  // NumPy's
};
std::span<const trip_column> trip_columns();
// Its number; throws std::invalid_argument where there is none of this name.
unsigned trip_column_of(const std::string& name);

// Puts those columns (by number) of trips `first` to `first + n` into to[i], in up to nthreads threads (0: a processor each).
void fill_trips(std::span<const unsigned> columns, std::uint64_t seed, std::uint64_t first, std::uint64_t n,
                std::span<std::byte* const> to, unsigned nthreads);

// Where a column is written: to an open file, from `offset` on.
struct trip_output {
  unsigned column;
  int descriptor;
  std::uint64_t offset;
  std::string path;  // for what is said where it cannot be written
};
// Writes nrows trips. Throws gpufs::error, and what progress (rows) does.
void write_trips(const std::vector<trip_output>& to, std::uint64_t seed, std::uint64_t nrows, unsigned nthreads,
                 const progress_function& progress);

}  // namespace gpufs::apps::query
