// SPDX-License-Identifier: Apache-2.0
// How much longer the original design takes than this library for the same collage on a cold cache, and which step gains what.
#include <cstdio>

#include "research/papers/bench.hpp"

namespace gpufs::papers {

report original_slowdown(const inputs& in) {
  struct step {
    const char* what;
    design cache;
    host_side host;
    store_kind store;
    calls by;
  };
  const step steps[] = {
      {"the original", design::original, host_side::original, store_kind::posix, calls::blocks},
      {"a hash table in place of the radix tree", design::hash_and_free_list, host_side::original, store_kind::posix,
       calls::blocks},
      {"clock rings in place of the free list", design::own, host_side::original, store_kind::posix, calls::blocks},
      {"many request rings, host threads and batches", design::own, host_side::own, store_kind::posix, calls::blocks},
      {"calls by warps", design::own, host_side::own, store_kind::posix, calls::warps},
      {"pull in place of staging: this library", design::own, host_side::own, store_kind::automatic, calls::warps},
  };
  report r;
  r.name = "original_slowdown";
  const image& picture = *in.images.back();
  r.title = "The original design by this library: the collage of " + picture.size() + ", cold cache of " +
            std::to_string(in.cache_nbytes >> 20) + " MiB";
  r.columns = {"step", "kernel_ms", "low_ms", "high_ms", "original_by_this", "faults", "hits", "gb_per_second"};
  median_of original{{0.0}}, own{{0.0}};
  for (const step& s : steps) {
    run_options options{.cache = s.cache, .by = s.by, .host = s.host};
    options.mount.cache_nbytes = in.cache_nbytes;
    options.mount.store = s.store;
    const runs got = repeat(in, picture, options, in.repeats);
    if (r.rows.empty()) original = got.kernel_seconds;
    own = got.kernel_seconds;
    const auto& c = *got.last.found.counters;
    r.rows.push_back({s.what, own.median * 1e3, own.low * 1e3, own.high * 1e3, original.median / own.median, c.faults, c.hits,
                      static_cast<double>(c.bytes_filled) / own.median / 1e9});
    r.verified = r.verified && got.verified;
  }
  r.paper_columns = {"what", "value"};
  r.paper = {{"gain of the new cache, mean over the images, calls by blocks", 2.0}, {"with calls by warps, too", 5.6}};
  r.notes = {"Each step keeps those before it. Time in the matching kernel; mounting and opening are not in it.",
             "The library's LSH tables, too, are read through the page cache."};
  r.bound = ">= 5.6";
  r.figure = original.median / own.median;
  char text[96];
  std::snprintf(text, sizeof text, "%.1f ms against %.1f ms", original.median * 1e3, own.median * 1e3);
  r.measured = text;
  r.ceiling = "none: a ratio of two runs";
  std::snprintf(text, sizeof text, "%.3g to %.3g", original.low / own.high, original.high / own.low);
  r.spread = text;
  return r;
}

}  // namespace gpufs::papers
