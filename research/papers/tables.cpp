// SPDX-License-Identifier: Apache-2.0
// Tables 1 to 3 of SYSTOR'16: where the time of a collage goes on the original page cache, on the new page table with the old
// allocator, and on both new ones.
#include "research/papers/bench.hpp"

namespace gpufs::papers {
namespace {

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Of the callers' time without filling pages and waiting for those who do.
std::uint64_t without_transfers(const baselines::time_shard& t) {
  const std::uint64_t transfers = t.fill_ns + t.wait_ns;
  return t.total_ns > transfers ? t.total_ns - transfers : 0;
}

const char* const share_note =
    "share: sum over all callers (blocks) of the time in the part, by the sum of the time that they ran; ms: share x the kernel's "
    "time. The policies with clocks were run.";
const char* const size_note = "The photographs of 1024x768 and 4096x3072 are the next larger ones of the papers, scaled down.";
const char* const tables_note = "The library's LSH tables, too, are read through the page cache; the paper had them in memory.";
const char* const no_transfers_note =
    "The paper replaced transfers with empty stubs, so its collages were of garbage; here the GPU pulls, and the time of filling "
    "pages and of waiting for them is left out of both parts of the share.";

}  // namespace

report table_1(const inputs& in) {
  report r;
  r.name = "table_1";
  r.title = "Table 1: time in the radix-tree page cache, and waiting for its lock (the original design, calls by blocks)";
  r.columns = {"image",     "access_ms",         "access_share",    "lock_ms",       "lock_share",
               "kernel_ms", "pull_access_share", "pull_lock_share", "pull_kernel_ms"};
  for (const auto& picture : in.images) {
    run_options options{.cache = design::original, .by = calls::blocks, .host = host_side::original, .timed = true};
    options.mount.cache_nbytes = in.cache_nbytes;
    const runs got = repeat(in, *picture, options, in.repeats);
    options.host = host_side::own;
    const runs pulled = repeat(in, *picture, options, in.repeats);
    const auto& t = got.last.times;
    const auto& p = pulled.last.times;
    const double ms = got.kernel_seconds.median * 1e3;
    const double access = share(t.access_ns, t.total_ns), lock = share(t.lock_ns, t.total_ns);
    r.rows.push_back({picture->size(), access * ms, access, lock * ms, lock, ms, share(p.access_ns, without_transfers(p)),
                      share(p.lock_ns, without_transfers(p)), pulled.kernel_seconds.median * 1e3});
    r.verified = r.verified && got.verified && pulled.verified;
  }
  r.paper_columns = {"image", "access_ms", "access_share", "lock_ms", "lock_share"};
  r.paper = {{"512x384", 291.0, 0.96, 286.0, 0.95},
             {"1024x768", 665.0, 0.96, 654.0, 0.95},
             {"2048x1536", 3011.0, 0.96, 2950.0, 0.94},
             {"4096x3072", 3827.0, 0.91, 3718.0, 0.89}};
  r.notes = {share_note, size_note, tables_note, "Access is without filling pages and without waiting for another block's fill.",
             "pull_: the same cache where no host thread limits it, and shares without the time of filling, as in tables 2 and 3."};
  return r;
}

report table_2(const inputs& in) {
  report r;
  r.name = "table_2";
  r.title = "Table 2: time in the page cache with the hash table, and in the old allocator (calls by blocks, without transfers)";
  r.columns = {"image", "access_ms", "access_share", "allocation_ms", "allocation_share", "kernel_ms"};
  for (const auto& picture : in.images) {
    run_options options{.cache = design::hash_and_free_list, .by = calls::blocks, .timed = true};
    options.mount.cache_nbytes = in.cache_nbytes;
    const runs got = repeat(in, *picture, options, in.repeats);
    const auto& t = got.last.times;
    const double ms = got.kernel_seconds.median * 1e3;
    const double in_whole = share(without_transfers(t), t.total_ns) * ms;
    const double access = share(t.access_ns, without_transfers(t)), allocation = share(t.allocate_ns, without_transfers(t));
    r.rows.push_back({picture->size(), access * in_whole, access, allocation * in_whole, allocation, ms});
    r.verified = r.verified && got.verified;
  }
  r.paper_columns = {"image", "access_ms", "access_share", "allocation_ms", "allocation_share"};
  r.paper = {{"512x384", 48.0, 0.84, 43.0, 0.76},
             {"1024x768", 124.0, 0.81, 114.0, 0.74},
             {"2048x1536", 696.0, 0.88, 615.0, 0.78},
             {"4096x3072", 777.0, 0.58, 616.0, 0.46}};
  r.notes = {share_note, no_transfers_note, size_note, tables_note};
  return r;
}

report table_3(const inputs& in) {
  report r;
  r.name = "table_3";
  r.title = "Table 3: time in the page cache with hash table and ring allocator (calls by blocks, without transfers)";
  r.columns = {"image", "access_ms", "access_share", "own_access_ms", "own_access_share", "kernel_ms", "own_kernel_ms"};
  for (const auto& picture : in.images) {
    run_options options{.cache = design::hash_and_rings, .by = calls::blocks, .timed = true, .ahead = 0};
    options.mount.cache_nbytes = in.cache_nbytes;
    options.mount.internals.nrings = 1;
    const runs theirs = repeat(in, *picture, options, in.repeats);
    options.cache = design::own;
    options.mount.internals.nrings = 0;
    const runs ours = repeat(in, *picture, options, in.repeats);
    const auto in_whole = [](const runs& got) {
      const auto& t = got.last.times;
      return share(without_transfers(t), t.total_ns) * got.kernel_seconds.median * 1e3;
    };
    const auto access = [](const runs& got) { return share(got.last.times.access_ns, without_transfers(got.last.times)); };
    r.rows.push_back({picture->size(), access(theirs) * in_whole(theirs), access(theirs), access(ours) * in_whole(ours),
                      access(ours), theirs.kernel_seconds.median * 1e3, ours.kernel_seconds.median * 1e3});
    r.verified = r.verified && theirs.verified && ours.verified;
  }
  r.paper_columns = {"image", "access_ms", "access_share"};
  r.paper = {{"512x384", 3.0, 0.21}, {"1024x768", 8.0, 0.15}, {"2048x1536", 89.0, 0.37}, {"4096x3072", 161.0, 0.19}};
  r.notes = {share_note, no_transfers_note, size_note, tables_note,
             "One ring, eviction under its lock, as before section 4.4; own: this library's hash table and clock rings."};
  return r;
}

}  // namespace gpufs::papers
