// SPDX-License-Identifier: Apache-2.0
// Edges in text: lists of them, and Matrix Market's files; and edges of arrays in memory. Host code.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "apps/graph/builder.hpp"

namespace gpufs::apps::graph {

struct text_graph {
  std::unique_ptr<edge_source> edges;
  bool is_symmetric;  // each edge leads both ways, and is there once
};

// A file of lines "FROM TO" or "FROM TO WEIGHT", numbers from 0 on, between blanks, tabs or commas; lines that begin with # or %
// are comments. A file that begins with %%MatrixMarket is a coordinate matrix, square, of whole numbers or a pattern, whose numbers
// begin with 1. with_weights: those that are there are taken. Goes through the file once: the vertices are those up to the highest
// number. Throws gpufs::error, whose text has the path and the line.
text_graph open_text_edges(const std::string& path, bool with_weights, unsigned nthreads, const progress_function& progress);

// CSR arrays, which must stay: the lists of indptr.size() - 1 vertices. weights: as many as indices, or none. Throws gpufs::error:
// they are no CSR matrix; name: what errors call them.
std::unique_ptr<edge_source> make_csr_edges(std::span<const std::int64_t> indptr, std::span<const std::int64_t> indices,
                                            std::span<const std::int64_t> weights, const std::string& name);

}  // namespace gpufs::apps::graph
