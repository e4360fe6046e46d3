// SPDX-License-Identifier: Apache-2.0
// The file of an index: a header, a table of lists, the lists' centroids, then the lists. docs/design/vectors.md, "The file", is
// the specification.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/simt/config.hpp"

namespace gpufs::apps::vectors {

inline constexpr char magic[8] = {'G', 'P', 'U', 'F', 'S', 'V', 'E', 'C'};
inline constexpr std::uint32_t format_version = 1;
inline constexpr std::uint64_t section_alignment = 4096;
inline constexpr std::uint32_t most_dim = 1 << 16, most_lists = 1 << 24;
inline constexpr std::uint32_t no_id = ~0u;  // of a vector that is not there
inline constexpr std::uint64_t most_vectors = no_id;

struct header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t dim;
  std::uint64_t nvectors;
  std::uint32_t nlists;
  std::uint32_t front_crc32;  // of the table of lists and the centroids
  std::uint64_t file_nbytes;
  char made_by[64];  // text that ends with a zero
  std::uint8_t reserved[4092 - 104];
  std::uint32_t crc32;  // of the 4092 bytes before it
};
static_assert(sizeof(header) == section_alignment && offsetof(header, dim) == 12 && offsetof(header, nvectors) == 16 &&
              offsetof(header, nlists) == 24 && offsetof(header, file_nbytes) == 32 && offsetof(header, made_by) == 40 &&
              offsetof(header, crc32) == 4092);

struct list_entry {
  std::uint32_t nvectors;
  std::uint32_t crc32;  // of the list's groups
};
static_assert(sizeof(list_entry) == 8 && std::is_trivially_copyable_v<header>);

// Vectors lie in groups of 32: element 0 of all, element 1 of all, ..., and their ids. So a warp reads rows of 128 bytes, which no
// page's border cuts. In the last group of a list the rest has the id no_id, and zeros.
inline constexpr std::uint32_t group_vectors = 32, row_nbytes = group_vectors * 4;

inline namespace GPUFS_MACHINE {
GPUFS_HOST_DEVICE constexpr std::uint64_t rows_a_group(std::uint32_t dim) { return std::uint64_t{dim} + 1; }
GPUFS_HOST_DEVICE constexpr std::uint64_t group_nbytes(std::uint32_t dim) { return rows_a_group(dim) * row_nbytes; }

// What is found of a vector: it is ordered first by its distance (of 0 or more, so its bits are in its order), then by its id.
GPUFS_HOST_DEVICE std::uint32_t bits_of(float distance) {
  std::uint32_t bits;
  std::memcpy(&bits, &distance, sizeof bits);
  return bits;
}
GPUFS_HOST_DEVICE std::uint64_t key_of(float distance, std::uint32_t id) { return std::uint64_t{bits_of(distance)} << 32 | id; }
GPUFS_HOST_DEVICE std::uint32_t distance_bits(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }
GPUFS_HOST_DEVICE std::uint32_t id_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }
}  // namespace GPUFS_MACHINE
inline constexpr std::uint64_t no_key = ~std::uint64_t{0};

constexpr std::uint64_t groups_of(std::uint64_t nvectors) { return (nvectors + group_vectors - 1) / group_vectors; }
constexpr std::uint64_t align_up(std::uint64_t n) { return (n + section_alignment - 1) / section_alignment * section_alignment; }

// Where the groups of a list, or of centroids, lie.
struct place {
  std::uint64_t begin;  // in bytes
  std::uint32_t ngroups;
};

}  // namespace gpufs::apps::vectors
