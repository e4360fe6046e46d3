// SPDX-License-Identifier: Apache-2.0
// A collage library's file: header, section table, constants. docs/reference/collage-library-format.md is the specification.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpufs::apps::collage {

inline constexpr std::uint32_t tile_side = 32;                            // pixels
inline constexpr std::uint32_t tile_npixels = tile_side * tile_side;      // 1024
inline constexpr std::uint32_t tile_nbytes = tile_npixels * 3;            // RGB, 8 bits a channel
inline constexpr std::uint32_t nbins = 3 * 256;                           // of a histogram: R, G, B
inline constexpr std::uint32_t histogram_nbytes = nbins * sizeof(float);  // 3072
inline constexpr std::uint32_t nfolded = 3 * 64;                          // bins that the keys are made of
inline constexpr std::uint32_t ntables = 32;
inline constexpr std::uint32_t max_key_nbits = 32;                           // columns of a projection
inline constexpr std::uint32_t projection_nbytes = nfolded * max_key_nbits;  // int8, one table: [bin][bit]
inline constexpr std::uint32_t bucket_limit = 32;
inline constexpr std::uint32_t shortlist_limit = 256;
inline constexpr std::uint32_t stride_sample = 64;  // images of the last resort
inline constexpr std::uint32_t section_alignment = 4096;
inline constexpr std::uint32_t max_nimages = 1u << 31;
inline constexpr std::uint32_t hash_multiplier = 0x9E3779B1u;  // odd, so key -> hashed key is one to one
// Two histograms have 1024 counts a channel, so their squared distance is at most 2 * 1024^2 a channel. It is below 2^24: float
// sums of it are exact in any order.
inline constexpr std::uint32_t max_distance = 3 * 2 * tile_npixels * tile_npixels;

enum class section_kind : std::uint32_t {
  thumbnails = 1,   // nimages x [32][32][3] uint8
  histograms = 2,   // nimages x [768] float32, histogram_stride apart
  projections = 3,  // [32 tables][192 bins][32 bits] int8
  reference = 4,    // [192] int32: the library's mean folded histogram
  table = 5,        // index 0 .. 31: directory, padding to 4 KiB, entries
  origins = 6,      // nimages x image_origin
  sources = 7,      // [nsources + 1] u64 offsets into the text that follows them
};
inline constexpr std::uint32_t section_count = 6 + ntables;

struct section {
  section_kind kind;
  std::uint32_t index;
  std::uint64_t offset;  // bytes from the start of the file, a multiple of 4096
  std::uint64_t nbytes;
  std::uint32_t crc32;  // of its nbytes bytes, zlib's polynomial
  std::uint32_t reserved;
};
static_assert(sizeof(section) == 32 && offsetof(section, offset) == 8 && offsetof(section, crc32) == 24);

inline constexpr char magic[8] = {'G', 'P', 'U', 'F', 'S', 'C', 'O', 'L'};
inline constexpr std::uint32_t format_version = 1;
inline constexpr std::uint32_t flag_tiles = 1;  // photographs were cut into tiles

struct header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t nsections;
  std::uint64_t file_nbytes;
  std::uint32_t nimages;
  std::uint32_t nsources;
  std::uint64_t seed;              // of the projections
  std::uint32_t histogram_stride;  // bytes: 4096, or 3072 (packed)
  std::uint32_t key_nbits;         // K, 4 .. 30
  std::uint32_t cell_nbits;        // D: a table's directory has 2^D + 1 words
  std::uint32_t ntables;
  std::uint32_t bucket_limit;
  std::uint32_t shortlist_limit;
  std::uint32_t shortlist_goal;  // shorter lists are extended by neighbouring buckets, 1 .. 256
  std::uint32_t mean_shortlist;  // thousandths, as measured when K was chosen
  std::uint32_t flags;
  std::uint8_t reserved1[52];
  section sections[section_count];
  std::uint8_t reserved2[4092 - 128 - sizeof(section) * section_count];
  std::uint32_t crc32;  // of the 4092 bytes before it
};
static_assert(sizeof(header) == section_alignment && offsetof(header, seed) == 32 && offsetof(header, flags) == 72 &&
              offsetof(header, sections) == 128 && offsetof(header, crc32) == 4092);
static_assert(std::is_trivially_copyable_v<header>);

// Which square of which source image a thumbnail shows, in pixels of the image as its EXIF orientation turns it.
struct image_origin {
  std::uint32_t source;
  std::uint32_t x;
  std::uint32_t y;
  std::uint32_t side;
};
static_assert(sizeof(image_origin) == 16);

// One image in one bucket. Entries are sorted by (hashed_key, id).
struct table_entry {
  std::uint32_t hashed_key;
  std::uint32_t id;
};
static_assert(sizeof(table_entry) == 8);

constexpr std::uint64_t align_up(std::uint64_t n, std::uint64_t alignment) { return (n + alignment - 1) / alignment * alignment; }

// Bytes of a table's directory with its padding: where its entries begin.
constexpr std::uint64_t directory_nbytes(std::uint32_t cell_nbits) {
  return align_up(((std::uint64_t{1} << cell_nbits) + 1) * sizeof(std::uint32_t), section_alignment);
}

// D: 2^D is at most an eighth of the images.
constexpr std::uint32_t choose_cell_nbits(std::uint32_t nimages) {
  std::uint32_t bits = 0;
  while (bits < 28 && (std::uint64_t{16} << bits) <= nimages) ++bits;
  return bits;
}

}  // namespace gpufs::apps::collage
