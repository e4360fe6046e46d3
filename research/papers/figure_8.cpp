// SPDX-License-Identifier: Apache-2.0
// Figure 8 of SYSTOR'16: the largest image under steady eviction, by the number of allocation rings.
#include "research/papers/bench.hpp"

namespace gpufs::papers {

report figure_8(const inputs& in) {
  report r;
  r.name = "figure_8";
  r.title = "Figure 8: the collage under eviction by the number of rings, calls by warps";
  r.columns = {"rings",  "fifo_ms",    "fifo_low_ms", "fifo_high_ms", "fifo_allocation_share",
               "own_ms", "own_low_ms", "own_high_ms", "evictions"};
  const image& picture = *in.images.back();
  for (const std::uint32_t nrings : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
    if (nrings * 16 > in.cache_nbytes / 4096) break;
    run_options options{.cache = design::hash_and_rings, .ahead = nrings == 1 ? 0u : 32u};
    options.mount.cache_nbytes = in.cache_nbytes;
    options.mount.internals.nrings = nrings;
    options.mount.frame_timeout = std::chrono::seconds(20);  // thousands of warps queue for one ring's lock
    const runs theirs = repeat(in, picture, options, in.repeats);
    options.timed = true;
    const runs clocked = repeat(in, picture, options, 0);
    options.timed = false;
    options.cache = design::own;
    const runs ours = repeat(in, picture, options, in.repeats);
    const auto& t = clocked.last.times;
    r.rows.push_back({std::uint64_t{nrings}, theirs.kernel_seconds.median * 1e3, theirs.kernel_seconds.low * 1e3,
                      theirs.kernel_seconds.high * 1e3,
                      t.total_ns == 0 ? 0.0 : static_cast<double>(t.allocate_ns) / static_cast<double>(t.total_ns),
                      ours.kernel_seconds.median * 1e3, ours.kernel_seconds.low * 1e3, ours.kernel_seconds.high * 1e3,
                      theirs.last.found.counters->evictions});
    r.verified = r.verified && theirs.verified && clocked.verified && ours.verified;
  }
  r.paper_columns = {"what", "value"};
  r.paper = {{"one ring by the best number", 12.0}, {"share of eviction, one ring", 0.15}, {"share of eviction, 64 rings", 0.0006}};
  r.notes = {"Image: " + picture.size() +
                 ". fifo: the paper's rings, eviction at the tail under the ring's lock; with one ring only "
                 "when it is dry, with more of them ahead of need. own: this library's clock rings.",
             "The share is of the allocator as a whole, eviction included."};
  return r;
}

}  // namespace gpufs::papers
