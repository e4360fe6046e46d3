// SPDX-License-Identifier: Apache-2.0
// The search for the nearest vectors: the inside of `gpufs vectors`. All engines find the same, to the bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apps/progress.hpp"
#include "apps/vectors/index_file.hpp"

namespace gpufs::apps::vectors {

struct engine_options {
  unsigned nthreads = 0;           // cpu; 0: one for each core
  std::uint64_t cache_nbytes = 0;  // gpu, simt: of the page cache; 0: the mount's default
  std::uint32_t page_nbytes = 0;   // gpu, simt; 0: by the size of lists
  int device = 0;
};

// A row of `dim` elements for each query, none of them NaN or infinite.
struct query_rows {
  const float* elements;
  std::uint64_t n;
};

inline constexpr std::uint32_t most_k = 4096;

struct search_options {
  std::uint32_t k = 10;          // 1 to most_k
  std::uint32_t nprobe = 32;     // lists of each query, 1 at least; as many as there are, or more: all
  std::uint32_t batch = 10'000;  // queries that are searched together; fewer, where their results take much memory
};

struct search_facts {
  double seconds = 0;            // without opening the index
  std::uint64_t bytes_read = 0;  // that gpufs brought in; 0 by host threads
  std::uint64_t ncompared = 0;   // pairs of a query and a vector
};

// Opens the index once. One thread calls. Throws gpufs::error: the file, which the text names, was cut, written or replaced, or
// cannot be read; or a single query's results take too much memory. What progress, called with queries, throws ends the search.
class engine {
 public:
  virtual ~engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  // Of each query the k nearest vectors of the nprobe lists whose centroids are nearest: their keys (format.hpp) in ascending
  // order, then no_key. `nearest` has room for k keys a query.
  virtual search_facts search(const query_rows& queries, const search_options& how, std::uint64_t* nearest,
                              const progress_function& progress) = 0;

 protected:
  engine() = default;
};

// The index must stay.
std::unique_ptr<engine> make_engine_cpu(const index_file& index, const engine_options& options);
std::unique_ptr<engine> make_engine_simt(const index_file& index, const engine_options& options);
std::unique_ptr<engine> make_engine_cuda(const index_file& index, const engine_options& options);

// Finds the nearest centroid of vectors, for who makes an index. One thread calls; throws as the platform does.
class quantizer {
 public:
  virtual ~quantizer() = default;
  quantizer(const quantizer&) = delete;
  quantizer& operator=(const quantizer&) = delete;

  // The numbers of the centroids go to `lists`; of equally near ones the least. look: called now and then; what it throws ends the
  // work.
  virtual void nearest(const query_rows& vectors, std::uint32_t* lists, const progress_function& look) = 0;

 protected:
  quantizer() = default;
};

// centroids: nlists of them, in groups.
std::unique_ptr<quantizer> make_quantizer_cpu(std::span<const std::byte> centroids, std::uint32_t nlists, std::uint32_t dim,
                                              const engine_options& options);
std::unique_ptr<quantizer> make_quantizer_simt(std::span<const std::byte> centroids, std::uint32_t nlists, std::uint32_t dim,
                                               const engine_options& options);
std::unique_ptr<quantizer> make_quantizer_cuda(std::span<const std::byte> centroids, std::uint32_t nlists, std::uint32_t dim,
                                               const engine_options& options);

// Rows of dim elements as groups, with ids from 0 on.
std::vector<std::byte> to_groups(const float* rows, std::uint32_t n, std::uint32_t dim);

}  // namespace gpufs::apps::vectors
