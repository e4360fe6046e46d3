// SPDX-License-Identifier: Apache-2.0
// Figures 3 and 9 of SYSTOR'16, and Figure 9 of ActivePointers (ISCA'16): the collage's time for each block of the image, by images
// of increasing sizes and by implementation.
#include "research/papers/bench.hpp"

namespace gpufs::papers {

report figure_9(const inputs& in) {
  struct implementation {
    const char* column;
    design cache;
    host_side host;
    calls by;
  };
  const implementation implementations[] = {{"original_us", design::original, host_side::original, calls::blocks},
                                            {"own_by_blocks_us", design::own, host_side::own, calls::blocks},
                                            {"own_us", design::own, host_side::own, calls::warps},
                                            {"pointers_us", design::own, host_side::own, calls::pointers}};
  report r;
  r.name = "figure_9";
  r.title = "Figures 3 and 9: time for each block of the image, by implementation";
  r.columns = {"image", "blocks", "cpu_us", "both_us"};
  for (const implementation& one : implementations) r.columns.emplace_back(one.column);
  r.columns.insert(r.columns.end(), {"original_by_own", "cpu_by_own", "both_by_own", "pointers_by_own"});
  for (const auto& picture : in.images) {
    const double nblocks = picture->photo().nblocks();
    const auto& expected = picture->expected(in.lib);
    const auto without_gpufs = [&](apps::collage::matcher& matcher) {  // us a block
      std::vector<double> us;
      for (int i = 0; i <= in.repeats; ++i) {  // the first warms up
        const apps::collage::match_result found = matcher.find(picture->photo(), {});
        for (std::size_t b = 0; b < expected.size(); ++b) {
          r.verified = r.verified && found.matches[b].id == expected[b].id && found.matches[b].distance == expected[b].distance;
        }
        if (i > 0) us.push_back(found.seconds / nblocks * 1e6);
      }
      return median_of(us).median;
    };
    std::vector<double> us{without_gpufs(*apps::collage::matcher_cpu(in.lib, {})), without_gpufs(*matcher_by_both(in.lib))};
    for (const implementation& one : implementations) {
      run_options options{.cache = one.cache, .by = one.by, .host = one.host};
      options.mount.cache_nbytes = in.cache_nbytes;
      // Of the original, which takes seconds, one run after one that warms up.
      const runs got = repeat(in, *picture, options, one.cache == design::original ? 1 : in.repeats);
      r.verified = r.verified && got.verified;
      us.push_back(got.kernel_seconds.median / nblocks * 1e6);
    }
    row made{picture->size(), std::uint64_t{picture->photo().nblocks()}};
    made.insert(made.end(), us.begin(), us.end());
    const double own = us[4];
    for (const double other : {us[2], us[0], us[1], us[5]}) made.emplace_back(other / own);
    r.rows.push_back(std::move(made));
  }
  r.paper_columns = {"what", "value"};
  r.paper = {{"original by new, calls by blocks, mean", 2.0}, {"original by new, calls by warps, mean", 5.6},
             {"12 cores with AVX by new, mean", 1.5},         {"12 cores with AVX by new, the largest image", 2.5},
             {"GPU without GPUfs by new, mean", 2.5},         {"GPU without GPUfs by new, at most", 3.0},
             {"ISCA'16: 12 cores by GPUfs, mean", 1.6},       {"ISCA'16: GPU without GPUfs by GPUfs, mean", 2.6},
             {"ISCA'16: pointers by GPUfs, at most", 1.01}};
  r.notes = {
      "cpu: one thread a core, SIMD; both: without gpufs, a kernel makes the keys, threads make shortlists and read images into "
      "pinned memory, which is there before, and a kernel compares. Their times are of the whole match.",
      "Of the others the kernel's time, on a cold cache; mounting and opening are not in it.",
      "The photographs of 1024x768 and 4096x3072 are the next larger ones of the papers, scaled down."};
  return r;
}

}  // namespace gpufs::papers
