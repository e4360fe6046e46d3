// SPDX-License-Identifier: Apache-2.0
// Figures 6 and 7 of SYSTOR'16: effective bandwidth and pages a transfer, by the number of host threads, with calls by blocks and
// by warps.
#include <thread>

#include "research/papers/bench.hpp"

namespace gpufs::papers {
namespace {

row measure(const inputs& in, const image& picture, run_options options, report& r) {
  const runs got = repeat(in, picture, options, in.repeats);
  r.verified = r.verified && got.verified;
  const auto& c = *got.last.found.counters;
  const double pages = c.host_batches == 0 ? 0 : static_cast<double>(c.host_reads) / static_cast<double>(c.host_batches);
  const auto bytes = static_cast<double>(c.bytes_filled);
  return {std::uint64_t{options.mount.nworkers},    std::uint64_t{options.mount.internals.request_batch},
          bytes / got.kernel_seconds.median / 1e9,  bytes / got.kernel_seconds.high / 1e9,
          bytes / got.kernel_seconds.low / 1e9,     pages,
          pages * options.mount.page_nbytes / 1024, got.kernel_seconds.median * 1e3};
}

report by_workers(const inputs& in, calls by) {
  report r;
  r.columns = {"workers",       "largest_batch", "gb_per_second", "gb_per_second_low", "gb_per_second_high",
               "pages_a_batch", "kib_a_batch",   "kernel_ms"};
  const image& picture = *in.images.back();
  run_options options{.by = by};
  options.mount.cache_nbytes = in.big_cache_nbytes;
  options.mount.store = store_kind::posix;
  options.mount.nworkers = 1;
  options.mount.internals.request_batch = 1;
  r.rows.push_back(measure(in, picture, options, r));
  options.mount.internals.request_batch = 64;
  const unsigned most = std::max(2u, std::thread::hardware_concurrency());
  for (const std::uint32_t workers : {1u, 2u, 4u, 8u, 16u}) {
    if (workers > most) break;
    options.mount.nworkers = workers;
    r.rows.push_back(measure(in, picture, options, r));
  }
  r.paper_columns = {"workers", "what", "gb_per_second"};
  r.notes = {
      "Image: " + picture.size() + "; the library's own cache, staged (host threads read into pinned memory).",
      "Bandwidth: bytes of pages filled by the kernel's time. A batch is what a host thread took at once; the GPU's groups copy "
      "their pages themselves, there is no transfer of a whole batch.",
      "The cache holds every page, so that eviction plays no part."};
  return r;
}

}  // namespace

report figure_6(const inputs& in) {
  report r = by_workers(in, calls::blocks);
  r.name = "figure_6";
  r.title = "Figure 6: bandwidth and batch by host threads, calls by blocks";
  r.paper.push_back({std::uint64_t{1}, "without batching", 0.31});
  r.paper.push_back({std::uint64_t{1}, "the best: more workers are slower", 0.81});
  return r;
}

report figure_7(const inputs& in) {
  report r = by_workers(in, calls::warps);
  r.name = "figure_7";
  r.title = "Figure 7: bandwidth and batch by host threads, calls by warps";
  r.paper.push_back({std::uint64_t{4}, "the best", 1.9});
  return r;
}

}  // namespace gpufs::papers
