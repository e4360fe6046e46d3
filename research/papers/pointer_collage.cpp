// SPDX-License-Identifier: Apache-2.0
// The end of section VI of ActivePointers (ISCA'16): what the collage pays for reading its library through pointers.
#include <cstdio>

#include "research/papers/bench.hpp"

namespace gpufs::papers {

report pointer_collage(const inputs& in) {
  struct state {
    const char* what;
    bool warm;
    std::uint64_t cache_nbytes;
  };
  const state states[] = {{"cold", false, in.cache_nbytes}, {"warm, all pages in it", true, in.big_cache_nbytes}};
  report r;
  r.name = "pointer_collage";
  const image& picture = *in.images.back();
  r.title = "The collage through pointers by the one through map_page and pread: " + picture.size() + ", a cold cache of " +
            std::to_string(in.cache_nbytes >> 20) + " MiB, and a warm one";
  r.columns = {"cache", "reads_through", "kernel_ms", "low_ms", "high_ms", "by_pages", "faults", "hits"};
  std::vector<median_of> by_pages;  // by state
  for (const state& s : states) {
    std::vector<double> seconds[2], ratios;
    mount_counters counters[2];
    for (int i = 0; i <= in.repeats; ++i) {  // the first pair warms up
      double now[2];
      for (const int through : {0, 1}) {
        run_options options{.by = through == 0 ? calls::warps : calls::pointers, .warm = s.warm};
        options.mount.cache_nbytes = s.cache_nbytes;
        const runs got = repeat(in, picture, options, 0);
        now[through] = got.kernel_seconds.median;
        counters[through] = *got.last.found.counters;
        r.verified = r.verified && got.verified;
      }
      if (i == 0) continue;
      for (const int through : {0, 1}) seconds[through].push_back(now[through]);
      ratios.push_back(now[1] / now[0]);
    }
    by_pages.emplace_back(ratios);
    for (const int through : {0, 1}) {
      const median_of time(seconds[through]);
      r.rows.push_back({s.what, through == 0 ? "map_page and pread" : "pointers", time.median * 1e3, time.low * 1e3,
                        time.high * 1e3, through == 0 ? 1.0 : by_pages.back().median, counters[through].faults,
                        counters[through].hits});
    }
  }
  r.paper_columns = {"what", "value"};
  r.paper = {{"the collage through pointers by the fastest without", "at most 1.01"}};
  r.notes = {"Runs by turns; by_pages: median of the ratios of neighbouring runs, which is what is bounded, with a cold cache.",
             "One kernel, which knows nothing of pages, for libraries with a histogram in each 4 KiB page and for packed ones.",
             "A hit of a pointer is a look-up that several lanes share; accesses to a page that it is linked to are not counted.",
             "warm: the second run on one mount; faults and hits are those of both."};
  r.bound = "<= 0.01";
  r.figure = by_pages[0].median - 1;
  char text[96];
  std::snprintf(text, sizeof text, "%.2f ms against %.2f ms", std::get<double>(r.rows[1][2]), std::get<double>(r.rows[0][2]));
  r.measured = text;
  r.ceiling = "none: a ratio of two runs";
  std::snprintf(text, sizeof text, "%.3g to %.3g", by_pages[0].low - 1, by_pages[0].high - 1);
  r.spread = text;
  return r;
}

}  // namespace gpufs::papers
