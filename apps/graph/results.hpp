// SPDX-License-Identifier: Apache-2.0
// What algorithms find, whatever engine runs them. Host code, and what kernels share with it.
#pragma once
#include <cstdint>
#include <vector>

#include "apps/graph/format.hpp"
#include "gpufs/simt/config.hpp"

namespace gpufs::apps::graph {

inline constexpr std::uint32_t not_reached = ~0u;            // as a number of edges
inline constexpr std::uint64_t no_path = ~std::uint64_t{0};  // as a length

// What each algorithm tells of its run.
struct run_facts {
  std::uint64_t nrounds = 0;
  double seconds = 0;            // without opening the graph
  std::uint64_t bytes_read = 0;  // that gpufs brought in; 0 by host threads
};

struct bfs_result : run_facts {
  std::vector<std::uint32_t> depths{};  // edges from the source; not_reached
  std::uint64_t nreached = 0;
};
struct components_result : run_facts {
  std::vector<vertex> components{};  // of each vertex the least vertex of its component
  std::uint64_t ncomponents = 0, largest = 0;
};
struct pagerank_options {
  double damping = 0.85, tolerance = 1e-4;  // of the sum of all changes in a round
  unsigned most_rounds = 20;
};
struct pagerank_result : run_facts {
  std::vector<float> scores{};
  double change = 0;  // in the last round
};
struct paths_result : run_facts {
  std::vector<std::uint64_t> lengths{};  // from the source; no_path
  std::uint64_t nreached = 0;
};

inline namespace GPUFS_MACHINE {

// Scores are whole numbers of 2^-62: their sums do not depend on an order, so all engines find the same bits. What a vertex gives
// each neighbour is a float of that unit, which the neighbour takes as a whole number again.
inline constexpr std::uint64_t score_one = std::uint64_t{1} << 62;

struct score_rules {
  std::uint64_t base;     // (1 - damping) / nvertices
  std::uint64_t damping;  // of 2^62

  GPUFS_HOST_DEVICE static score_rules of(double damping, std::uint64_t nvertices) {
    const auto d = static_cast<std::uint64_t>(damping * static_cast<double>(score_one));
    return {(score_one - d) / (nvertices == 0 ? 1 : nvertices), d};
  }
  GPUFS_HOST_DEVICE std::uint64_t score_of(std::uint64_t sum) const {
    __extension__ using wide = unsigned __int128;
    return base + static_cast<std::uint64_t>(static_cast<wide>(sum) * damping >> 62);
  }
  GPUFS_HOST_DEVICE static float share_of(std::uint64_t score, std::uint64_t nneighbours) {
    return nneighbours == 0 ? 0.f : static_cast<float>(score / nneighbours);
  }
  GPUFS_HOST_DEVICE static std::uint64_t taken(float share) { return static_cast<std::uint64_t>(static_cast<std::int64_t>(share)); }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
