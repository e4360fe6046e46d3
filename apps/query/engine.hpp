// SPDX-License-Identifier: Apache-2.0
// Queries of columns in files: the inside of `gpufs query`. One column is scanned; of the others only what belongs to rows that
// pass is read. All engines find the same, to the bit.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/arrays/rows.hpp"
#include "apps/progress.hpp"
#include "apps/query/values.hpp"
#include "gpufs/store/store.hpp"

namespace gpufs::apps::query {

inline constexpr std::size_t most_columns = 12;  // that are summed at once

// Rows of one value each, little endian.
struct column {
  std::string path;
  value_type type;
  arrays::row_place place;
};

struct query {
  column where;
  condition wanted;
  std::vector<column> sums;  // of as many rows as `where`, most_columns at most; `where` may be among them, and is then read once
};

struct query_result {
  std::uint64_t nrows = 0, npassed = 0;
  std::vector<column_sums> sums{};  // in the query's order, carried
  double seconds = 0;
  std::uint64_t bytes_read = 0;    // values that were looked at; cpu: what was read for them
  std::uint64_t bytes_filled = 0;  // gpu, simt: in pages that were brought into the cache
};

struct engine_options {
  unsigned nthreads = 0;           // cpu; 0: one for each core
  std::uint64_t cache_nbytes = 0;  // gpu, simt: of the page cache; 0: the mount's default
  std::uint32_t page_nbytes = 4096;
  int device = 0;
  std::shared_ptr<store::store>
      store{};  // gpu, simt: of the folder of the columns' files, if not the mount's default (for benches)
};

// Has the columns' files open. One thread calls. Throws gpufs::error, whose text has the path: a file was cut or cannot be read;
// progress (rows) may throw.
class engine {
 public:
  virtual ~engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  virtual query_result run(const progress_function& progress) = 0;

 protected:
  engine() = default;
};

// Throw gpufs::error, and std::invalid_argument for columns that do not belong together.
std::unique_ptr<engine> make_engine_cpu(const query& of, const engine_options& options);
std::unique_ptr<engine> make_engine_simt(const query& of, const engine_options& options);
std::unique_ptr<engine> make_engine_cuda(const query& of, const engine_options& options);

// What engines begin with: throws std::invalid_argument where the columns do not belong together.
void check_columns(const query& of);
bool is_same(const column& a, const column& b);

}  // namespace gpufs::apps::query
