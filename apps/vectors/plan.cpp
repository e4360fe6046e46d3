// SPDX-License-Identifier: Apache-2.0
#include "apps/vectors/plan.hpp"

#include <algorithm>
#include <cerrno>

namespace gpufs::apps::vectors {
namespace {

constexpr std::uint64_t divided_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

}  // namespace

plan make_plan(std::span<const place> lists, std::span<const std::uint32_t> chosen, std::uint32_t nprobe, std::uint32_t nqueries,
               const plan_limits& limits) {
  const std::uint32_t nlists = static_cast<std::uint32_t>(lists.size());
  if (chosen.empty()) nprobe = nlists;
  const auto list_of = [&](std::uint64_t q, std::uint32_t i) { return chosen.empty() ? i : chosen[q * nprobe + i]; };

  std::vector<std::uint64_t> begins(nlists + 1);  // of each list's probes
  for (std::uint64_t q = 0; q < nqueries; ++q) {
    for (std::uint32_t i = 0; i < nprobe; ++i) ++begins[list_of(q, i) + 1];
  }
  std::uint64_t work = 0;
  for (std::uint32_t list = 0; list < nlists; ++list) work += lists[list].ngroups * divided_up(begins[list + 1], limits.tile);
  std::uint64_t piece_groups = std::max<std::uint64_t>(limits.least_groups, divided_up(work, limits.units_wanted));
  const auto pieces_of = [&](std::uint32_t list) { return divided_up(lists[list].ngroups, piece_groups); };

  const auto count_slots = [&] {
    std::uint64_t n = 0;
    for (std::uint32_t list = 0; list < nlists; ++list) n += begins[list + 1] * pieces_of(list);
    return n;
  };
  std::uint64_t nslots = count_slots();
  if (nqueries == 1) {  // more can be searched one after the other
    std::uint64_t longest = 0;
    for (const place& list : lists) longest = std::max<std::uint64_t>(longest, list.ngroups);
    for (; nslots > limits.most_slots && piece_groups < longest; nslots = count_slots()) piece_groups *= 2;
  }

  plan all;
  std::uint64_t nprobes = 0;
  for (std::uint32_t list = 0; list < nlists; ++list) {
    nprobes += begins[list + 1];
    begins[list + 1] += begins[list];
  }
  if (nslots > limits.most_slots || nprobes > UINT32_MAX) return all;

  all.probes.resize(nprobes);
  all.slots.reserve(nqueries + std::size_t{1});
  std::vector<std::uint64_t> next(begins.begin(), begins.end() - 1);
  std::uint32_t slot = 0;
  for (std::uint32_t q = 0; q < nqueries; ++q) {
    all.slots.push_back(slot);
    for (std::uint32_t i = 0; i < nprobe; ++i) {
      const std::uint32_t list = list_of(q, i);
      all.probes[next[list]++] = {q, slot};
      slot += static_cast<std::uint32_t>(pieces_of(list));
    }
  }
  all.slots.push_back(slot);

  for (std::uint32_t list = 0; list < nlists; ++list) {
    for (std::uint32_t piece = 0; piece < pieces_of(list); ++piece) {
      const std::uint64_t first = piece * piece_groups;
      const auto ngroups = static_cast<std::uint32_t>(std::min<std::uint64_t>(piece_groups, lists[list].ngroups - first));
      for (std::uint64_t p = begins[list]; p < begins[list + 1]; p += limits.tile) {
        all.units.push_back({lists[list].begin + first * limits.group_nbytes, ngroups, static_cast<std::uint32_t>(p),
                             static_cast<std::uint32_t>(std::min<std::uint64_t>(limits.tile, begins[list + 1] - p)), piece});
      }
    }
  }
  return all;
}

gpufs::error too_many_results() {
  return gpufs::error("a single query's results do not fit into memory: ask for fewer lists or neighbours", ENOMEM);
}

}  // namespace gpufs::apps::vectors
