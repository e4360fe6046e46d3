// SPDX-License-Identifier: Apache-2.0
// A graph's file: a header, then for each vertex where its list of neighbours begins, then the lists, one behind the other (CSR).
// docs/design/graph.md, "The file", is the specification.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpufs::apps::graph {

using vertex = std::uint32_t;
using weight = std::uint32_t;

inline constexpr char magic[8] = {'G', 'P', 'U', 'F', 'S', 'G', 'R', 'F'};
inline constexpr std::uint32_t format_version = 1;
inline constexpr std::uint64_t section_alignment = 4096;
inline constexpr std::uint64_t most_vertices = (std::uint64_t{1} << 32) - 2;  // the two numbers above them mean no vertex
inline constexpr std::uint64_t most_edges = std::uint64_t{1} << 44;
inline constexpr std::uint32_t flag_directed = 1;  // the lists of who leads to each vertex follow those of where it leads

struct header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t flags;
  std::uint64_t nvertices;
  std::uint64_t nedges;         // entries of all lists: of a graph that is not directed two for each edge
  std::uint32_t target_nbytes;  // 4 or 8
  std::uint32_t weight_nbytes;  // 0 (none) or 4
  std::uint64_t file_nbytes;
  char made_by[64];  // text that ends with a zero
  std::uint8_t reserved[4092 - 112];
  std::uint32_t crc32;  // of the 4092 bytes before it
};
static_assert(sizeof(header) == section_alignment && offsetof(header, nvertices) == 16 && offsetof(header, target_nbytes) == 32 &&
              offsetof(header, file_nbytes) == 40 && offsetof(header, made_by) == 48 && offsetof(header, crc32) == 4092);
static_assert(std::is_trivially_copyable_v<header>);

// Where the sections begin, in bytes from the file's beginning; the numbers of a header fix them. A section that is not there has
// no bytes.
struct layout {
  std::uint64_t offsets;     // u64[nvertices + 1]: the first edge of each vertex, and how many edges there are
  std::uint64_t targets;     // [nedges]
  std::uint64_t weights;     // u32[nedges]
  std::uint64_t in_offsets;  // of the inverse graph, as above
  std::uint64_t in_targets;  // without weights
  std::uint64_t end;         // of the file
};

constexpr std::uint64_t align_up(std::uint64_t n) { return (n + section_alignment - 1) / section_alignment * section_alignment; }

// The header's numbers are within their bounds.
constexpr layout layout_of(const header& h) {
  layout at{};
  const std::uint64_t offsets_nbytes = (h.nvertices + 1) * sizeof(std::uint64_t);
  const bool directed = (h.flags & flag_directed) != 0;
  at.offsets = sizeof(header);
  at.targets = align_up(at.offsets + offsets_nbytes);
  at.weights = align_up(at.targets + h.nedges * h.target_nbytes);
  at.in_offsets = align_up(at.weights + h.nedges * h.weight_nbytes);
  at.in_targets = align_up(at.in_offsets + (directed ? offsets_nbytes : 0));
  at.end = at.in_targets + (directed ? h.nedges * h.target_nbytes : 0);
  return at;
}

}  // namespace gpufs::apps::graph
