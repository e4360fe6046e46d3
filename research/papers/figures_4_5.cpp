// SPDX-License-Identifier: Apache-2.0
// Figures 4 and 5 of SYSTOR'16: how the collage uses the page cache, whatever its design.
#include "research/papers/bench.hpp"

namespace gpufs::papers {
namespace {

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

run_options counting(std::uint64_t cache_nbytes, std::uint32_t page_nbytes) {
  run_options options{.timed = true};
  options.mount.cache_nbytes = cache_nbytes;
  options.mount.page_nbytes = page_nbytes;
  return options;
}

const char* const histograms_note =
    "Only pages of the library's histograms are counted, as the paper read only these through GPUfs.";

}  // namespace

report figure_4(const inputs& in) {
  report r;
  r.name = "figure_4";
  r.title = "Figure 4: misses by image, and unique pages";
  r.columns = {"image", "accesses", "misses", "miss_rate", "unique_pages", "miss_rate_if_all_fit", "evictions"};
  for (const auto& picture : in.images) {
    const runs got = repeat(in, *picture, counting(in.cache_nbytes, 4096), 0);
    const runs all = repeat(in, *picture, counting(in.big_cache_nbytes, 4096), 0);
    const auto& t = got.last.times;
    const auto& fit = all.last.times;
    r.rows.push_back({picture->size(), t.counted_accesses, t.counted_misses, ratio(t.counted_misses, t.counted_accesses),
                      fit.counted_misses, ratio(fit.counted_misses, fit.counted_accesses), got.last.found.counters->evictions});
    r.verified = r.verified && got.verified && all.verified && all.last.found.counters->evictions == 0;
  }
  r.paper_columns = {"what", "value"};
  r.paper = {{"highest miss rate of any image", 0.58},
             {"unique pages of 8192x6144", std::uint64_t{1'300'000}},
             {"miss rate of 8192x6144 if all fit", 0.11}};
  r.notes = {histograms_note, "A page that another group is bringing in just then counts as no miss.",
             "unique_pages: misses with a cache that holds all (verified: no evictions)."};
  return r;
}

report figure_5(const inputs& in) {
  report r;
  r.name = "figure_5";
  r.title = "Figure 5: bytes transferred by bytes needed, by page size";
  r.columns = {"image", "page_nbytes", "transferred_nbytes", "needed_nbytes", "redundancy", "relative_to_4k"};
  if (in.lib.head().histogram_stride != 4096) throw error("figure_5 wants a library with a histogram in each 4 KiB page");
  for (const auto& picture : in.images) {
    std::uint64_t needed = 0, at_4k = 0;
    for (std::uint32_t page = 4096; page <= 65536; page *= 2) {
      const runs got = repeat(in, *picture, counting(in.big_cache_nbytes, page), 0);
      const std::uint64_t misses = got.last.times.counted_misses;
      if (page == 4096) {
        needed = misses * apps::collage::histogram_nbytes;
        at_4k = misses * page;
      }
      r.rows.push_back(
          {picture->size(), std::uint64_t{page}, misses * page, needed, ratio(misses * page, needed), ratio(misses * page, at_4k)});
      r.verified = r.verified && got.verified && got.last.found.counters->evictions == 0;
    }
  }
  r.paper_columns = {"what", "value"};
  r.paper = {{"8 KiB relative to 4 KiB", "almost 2"}, {"larger pages", "more still"}};
  r.notes = {histograms_note, "needed: 3072 bytes for each histogram that is compared, once; a page of 4 KiB holds one.",
             "The cache holds every page (verified: no evictions)."};
  return r;
}

}  // namespace gpufs::papers
