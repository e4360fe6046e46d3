// SPDX-License-Identifier: Apache-2.0
// Writes a collage library. Host code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/collage/format.hpp"
#include "apps/collage/library.hpp"

namespace gpufs::apps::collage {

inline constexpr std::uint64_t default_seed = 0x6770756673;  // of the projections
inline constexpr std::uint32_t default_shortlist_goal = 32;
inline constexpr std::uint32_t wanted_mean_shortlist = 48;  // what K is chosen for

struct builder_options {
  bool packed = false;  // histograms 3072 bytes apart instead of 4096
  bool tiles = false;   // only noted in the header
  std::uint64_t seed = default_seed;
  std::uint32_t shortlist_goal = default_shortlist_goal;
  std::uint32_t key_nbits = 0;  // 0: chosen by measuring
  unsigned nthreads = 0;        // 0: one a core
};

// Thumbnails come in index order; each is kept when no equal one came before. Memory in use grows by some 50 bytes an image
// and by the sources' names; histograms are never all in memory. Throws gpufs::error. The bytes of the library depend on what was
// added and on the options only, never on nthreads.
class library_builder {
 public:
  library_builder(const std::string& path, const builder_options& options);
  ~library_builder();  // not finished: nothing stays
  library_builder(const library_builder&) = delete;
  library_builder& operator=(const library_builder&) = delete;

  // A picture file, named before its thumbnails are added; its number, for image_origin::source.
  std::uint32_t add_source(std::string_view name);
  // n thumbnails of tile_nbytes bytes, and where each comes from. Returns how many were new. replace(i) is called, from this
  // thread and in the thumbnails' order, when thumbnail i equals one before it: it puts another one and its origin into place i
  // and returns true, or returns false to leave the image out. It may throw; the builder is of no use then.
  std::size_t add(const std::uint8_t* thumbnails, const image_origin* origins, std::size_t n,
                  const std::function<bool(std::size_t i)>& replace = {});
  std::uint32_t nimages() const;
  // Writes everything else and puts the library in place. `progress` may throw; then nothing stays.
  header finish(const progress_function& progress = {});

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// For every K of [first_nbits, last_nbits]: how many images of other sources the buckets of a sample of the library's own
// images hold together, duplicates counted once; in thousandths, mean over the sample. (Tiles of one photograph resemble each
// other more than a new photograph resembles any of them.) With one source, all images but the sampled one itself count.
// keys: [table][image], of at least last_nbits bits; origins: by image.
std::vector<std::uint32_t> measure_shortlists(const std::uint32_t* keys, const std::vector<image_origin>& origins,
                                              std::uint32_t first_nbits, std::uint32_t last_nbits, unsigned nthreads);

}  // namespace gpufs::apps::collage
