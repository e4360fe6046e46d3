// SPDX-License-Identifier: Apache-2.0
// Makes the file of an index. Host code.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "apps/atomic_file.hpp"
#include "apps/vectors/engine.hpp"

namespace gpufs::apps::vectors {

// The number of the first row with an element that is NaN or infinite; n: there is none. By up to nthreads threads.
std::uint64_t first_bad_row(const query_rows& rows, std::uint32_t dim, unsigned nthreads);

struct build_options {
  unsigned nthreads = 0;  // 0: a processor each
  std::string made_by{};
  std::string base{};  // whose vectors they are, for what is said of them
};

struct build_report {
  std::uint64_t nvectors = 0;
  std::uint64_t nempty = 0;                 // lists
  std::uint64_t shortest = 0, longest = 0;  // lists, in vectors
  std::uint64_t file_nbytes = 0;
};

// All vectors come twice, in the same order and in pieces of any size: first to be counted, then to be put into their lists. So no
// more of them are in memory than a piece, 32 for each list, and 4 bytes for each. One thread calls. Throws gpufs::error. Without
// finish() there is no file.
class index_builder {
 public:
  // centroids: nlists rows. The quantizer has the same, and must stay.
  index_builder(const std::string& path, const float* centroids, std::uint32_t nlists, std::uint32_t dim, quantizer& by,
                const build_options& options);

  // look: called now and then; what it throws ends the work.
  void count(const query_rows& vectors, const progress_function& look);
  void begin_lists();  // all were counted
  void add(const query_rows& vectors);
  build_report finish();

 private:
  void check(const query_rows& vectors, std::uint64_t first) const;
  void append(std::uint32_t list, std::uint32_t id, const float* vector);
  void write_group(std::uint32_t list);

  build_options options_;
  std::uint32_t dim_;
  quantizer& by_;
  atomic_file file_;
  std::vector<std::byte> centroids_;    // in groups
  std::vector<std::uint32_t> list_of_;  // of each vector
  std::vector<list_entry> entries_;
  std::vector<place> lists_;
  std::uint64_t end_ = 0;              // of the file
  std::vector<std::uint32_t> nadded_;  // of each list
  std::vector<std::byte> groups_;      // of each list the one that is being filled
  std::uint64_t nvectors_ = 0;         // that were added
};

}  // namespace gpufs::apps::vectors
