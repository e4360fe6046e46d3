// SPDX-License-Identifier: Apache-2.0
// Which part of a list is compared with which queries. Host code, and what kernels share with it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "apps/vectors/format.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::vectors {

// A query that looks into a list. What it finds in piece i of the list goes to slot + i.
struct probe {
  std::uint32_t query, slot;
};
// A piece of a list, and queries: probes first_probe to first_probe + nprobes.
struct unit {
  std::uint64_t begin;  // of the first group, in bytes
  std::uint32_t ngroups;
  std::uint32_t first_probe, nprobes;
  std::uint32_t piece;
};
static_assert(sizeof(probe) == 8 && sizeof(unit) == 24);

struct plan {
  std::vector<unit> units;           // in the order of their lists; those of a piece side by side
  std::vector<probe> probes;         // by list, then by query
  std::vector<std::uint32_t> slots;  // query q has slots[q] to slots[q + 1]
};

struct plan_limits {
  std::uint64_t group_nbytes;
  std::uint32_t tile;          // queries a unit, at most
  std::uint32_t least_groups;  // of a piece
  std::uint64_t units_wanted;  // so many, where lists are long enough; fewer for a single query that would have too many slots
  std::uint64_t most_slots;    // else the plan is empty
};

// nprobe lists of each query, or, where `chosen` is empty, all lists of each of nqueries.
plan make_plan(std::span<const place> lists, std::span<const std::uint32_t> chosen, std::uint32_t nprobe, std::uint32_t nqueries,
               const plan_limits& limits);

// Of a plan for a single query that is empty.
gpufs::error too_many_results();

}  // namespace gpufs::apps::vectors
