// SPDX-License-Identifier: Apache-2.0
// Finding the most similar library image for every block of a photograph: three engines that agree to the bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/collage/library.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/simt/schedule.hpp"

namespace gpufs::apps::collage {

// A photograph of whole blocks: RGB, 8 bits a channel, rows of nblocks_x * 32 pixels without gaps.
struct photo {
  const std::uint8_t* pixels;
  std::uint32_t nblocks_x;
  std::uint32_t nblocks_y;

  std::uint32_t nblocks() const { return nblocks_x * nblocks_y; }
  std::size_t row_nbytes() const { return std::size_t{nblocks_x} * tile_side * 3; }
  // The first pixel of block number `block`; blocks are numbered row by row.
  const std::uint8_t* block(std::uint32_t block) const {
    return pixels + block / nblocks_x * tile_side * row_nbytes() + std::size_t{block % nblocks_x} * tile_side * 3;
  }
};

// What was found for one block. Kernels write these.
struct match {
  std::uint32_t id;          // of the nearest image of the shortlist; among equals the lowest
  std::uint32_t distance;    // squared Euclidean, of the 768 counts
  std::uint32_t nbuckets;    // images in the shortlist that came from the block's own buckets
  std::uint32_t nshortlist;  // images compared
};
static_assert(sizeof(match) == 16);

struct engine_options {
  unsigned nthreads = 0;            // cpu, simt: OS threads; 0: one a core
  progress_function progress = {};  // in blocks; may throw to stop the work
  // simt and gpu only:
  std::uint64_t cache_nbytes = 0;  // 0: the mount's default
  std::uint32_t page_nbytes = 4096;
  store_kind store = store_kind::automatic;
  unsigned block_threads = 256;
  unsigned grid = 0;                    // thread blocks; 0: one a photo block, at most 4096 (gpu) or 64 (simt)
  std::uint32_t blocks_per_launch = 0;  // photo blocks; 0: all in one launch
  // simt only:
  simt::cpu_schedule schedule = {};  // its nthreads is taken from above
};

struct match_result {
  std::vector<match> matches;              // by block
  double seconds = 0;                      // without opening the library
  double kernel_seconds = 0;               // simt and gpu: of these, in the matching kernels
  std::string machine;                     // what ran it
  std::string source;                      // how the library's bytes came, as the mount says
  std::optional<mount_counters> counters;  // of this photograph
};

// By threads and SIMD over the mapped file. Throws library_error (the file is damaged, cannot be read, ...) or gpufs::error, and
// what `progress` throws.
match_result match_cpu(const library& lib, const photo& picture, const engine_options& options);

// An engine that is set up for one photograph after the other: what the first has brought into a page cache is there for the next.
// One thread uses it at a time, and the library outlives it.
class matcher {
 public:
  virtual ~matcher() = default;
  // Throws as match_cpu does; the next photograph may be tried all the same.
  virtual match_result find(const photo& picture, const progress_function& progress) = 0;
};

std::unique_ptr<matcher> matcher_cpu(const library& lib, const engine_options& options);
std::unique_ptr<matcher> matcher_simt(const library& lib, const engine_options& options);
std::unique_ptr<matcher> matcher_cuda(const library& lib, const engine_options& options);  // in gpufs_collage_cuda

// The truly nearest image of each of the blocks asked for: reads the whole library once. nbuckets is 0.
std::vector<match> match_exhaustive(const library& lib, const photo& picture, const std::vector<std::uint32_t>& blocks,
                                    unsigned nthreads, const progress_function& progress = {});

// What went wrong in a block, as engines note it; the lowest such word of a run is reported.
enum class step : std::uint32_t { opening, projections, reference, directory, entries, histogram, closing };
constexpr std::uint64_t fault_word(std::uint32_t block, step at, std::int32_t error) {
  return std::uint64_t{block} << 32 | static_cast<std::uint32_t>(at) << 16 | static_cast<std::uint32_t>(-error);
}
inline constexpr std::uint64_t no_fault = ~std::uint64_t{0};
inline constexpr std::int32_t damaged = -74;  // EBADMSG: bytes that no library holds

[[noreturn]] void throw_fault(const library& lib, const photo& picture, std::uint64_t fault);

}  // namespace gpufs::apps::collage
