// SPDX-License-Identifier: Apache-2.0
// How long shortlists get with keys of K bits.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "apps/collage/builder.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::collage {
namespace {

constexpr std::uint32_t sample_size = 256;

struct candidate {
  std::uint32_t id;
  std::uint32_t common_nbits;  // low bits that are equal, at most last_nbits
};

// Candidates of one table for every query, in index order: of each number of common bits the first bucket_limit, so that the
// first bucket_limit of every bucket are among them.
void collect(const std::uint32_t* keys, std::uint32_t nimages, const std::vector<std::uint32_t>& queries, std::uint32_t first_nbits,
             std::uint32_t last_nbits, std::vector<std::vector<candidate>>& out) {
  const std::uint32_t mask = (std::uint32_t{1} << first_nbits) - 1;
  std::vector<std::uint16_t> next(queries.size());  // chains of queries with equal low bits; queries.size() ends one
  std::vector<std::uint16_t> heads(std::size_t{mask} + 1, static_cast<std::uint16_t>(queries.size()));
  for (std::size_t q = queries.size(); q-- > 0;) {
    auto& head = heads[keys[queries[q]] & mask];
    next[q] = head;
    head = static_cast<std::uint16_t>(q);
  }
  const std::uint32_t nlevels = last_nbits - first_nbits + 1;
  std::vector<std::uint8_t> found(queries.size() * nlevels);
  for (std::uint32_t id = 0; id < nimages; ++id) {
    for (std::uint32_t q = heads[keys[id] & mask]; q < queries.size(); q = next[q]) {
      const auto common = static_cast<std::uint32_t>(std::countr_zero(keys[id] ^ keys[queries[q]]));
      const std::uint32_t capped = std::min(common, last_nbits);
      std::uint8_t& n = found[q * nlevels + capped - first_nbits];
      if (n == bucket_limit) continue;
      ++n;
      out[q].push_back({id, capped});
    }
  }
}

}  // namespace

std::vector<std::uint32_t> measure_shortlists(const std::uint32_t* keys, const std::vector<image_origin>& origins,
                                              std::uint32_t first_nbits, std::uint32_t last_nbits, unsigned nthreads) {
  const auto nimages = static_cast<std::uint32_t>(origins.size());
  const bool one_source = std::all_of(origins.begin(), origins.end(), [&](const auto& o) { return o.source == origins[0].source; });
  const std::uint32_t nqueries = std::min(nimages, sample_size);
  std::vector<std::uint32_t> queries(nqueries);
  for (std::uint32_t q = 0; q < nqueries; ++q) queries[q] = static_cast<std::uint32_t>(std::uint64_t{q} * nimages / nqueries);

  std::vector<std::vector<std::vector<candidate>>> candidates(ntables, std::vector<std::vector<candidate>>(nqueries));
  parallel_for(nthreads, ntables,
               [&](std::size_t t) { collect(keys + t * nimages, nimages, queries, first_nbits, last_nbits, candidates[t]); });

  const std::uint32_t nlevels = last_nbits - first_nbits + 1;
  std::vector<std::uint32_t> lengths(std::size_t{nqueries} * nlevels);
  parallel_for(nthreads, lengths.size(), [&](std::size_t i) {
    const std::uint32_t q = static_cast<std::uint32_t>(i / nlevels);
    const std::uint32_t nbits = first_nbits + static_cast<std::uint32_t>(i % nlevels);
    std::vector<std::uint32_t> ids;
    for (const auto& of_table : candidates) {
      std::uint32_t in_bucket = 0;
      for (const candidate& c : of_table[q]) {
        if (c.common_nbits < nbits) continue;
        if (in_bucket++ == bucket_limit) break;
        const bool counts = one_source ? c.id != queries[q] : origins[c.id].source != origins[queries[q]].source;
        if (counts) ids.push_back(c.id);
      }
    }
    std::sort(ids.begin(), ids.end());
    const auto distinct = static_cast<std::uint32_t>(std::unique(ids.begin(), ids.end()) - ids.begin());
    lengths[i] = std::min(distinct, shortlist_limit);
  });

  std::vector<std::uint32_t> means(nlevels);
  for (std::uint32_t level = 0; level < nlevels; ++level) {
    std::uint64_t sum = 0;
    for (std::uint32_t q = 0; q < nqueries; ++q) sum += lengths[std::size_t{q} * nlevels + level];
    means[level] = static_cast<std::uint32_t>(sum * 1000 / nqueries);
  }
  return means;
}

}  // namespace gpufs::apps::collage
