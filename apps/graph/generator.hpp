// SPDX-License-Identifier: Apache-2.0
// The edges of synthetic graphs, as the GAP benchmark draws them (Beamer, Asanovic and Patterson, "The GAP benchmark suite",
// arXiv:1508.03619, section 4): edge i depends on the seed and i alone, so any number of threads of any engine draws the same ones.
#pragma once
#include <cstdint>

#include "apps/drawn_word.hpp"
#include "apps/graph/format.hpp"
#include "gpufs/simt/config.hpp"

namespace gpufs::apps::graph {

// Kronecker graphs as Graph500 has them, whose numbers of neighbours follow a power law; and uniformly random ones.
enum class synth_kind : std::uint32_t { kron, urand };

struct synth_options {
  synth_kind kind;
  unsigned scale;  // 2^scale vertices, up to 2^31
  std::uint64_t seed;
};

inline namespace GPUFS_MACHINE {

struct edge {
  vertex from, to;
};

struct generator : synth_options {
  // Vertices may be equal, and edges may come again.
  GPUFS_HOST_DEVICE edge operator()(std::uint64_t i) const {
    return kind == synth_kind::kron ? drawn_by_quarters(i) : drawn_evenly(i);
  }
  // Of the edge between two vertices, 1 to 255, however it was drawn.
  GPUFS_HOST_DEVICE weight weight_of(vertex a, vertex b) const {
    const std::uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return static_cast<weight>((drawn_word(seed ^ 0x77, high << 32 | low) >> 32) * 255 >> 32) + 1;
  }

 private:
  GPUFS_HOST_DEVICE edge drawn_evenly(std::uint64_t i) const {
    const std::uint64_t word = drawn_word(seed, i);
    return {static_cast<vertex>(word >> 32 & mask()), static_cast<vertex>(word & mask())};
  }
  // A quarter of the matrix for each bit of the vertices' numbers: A = 0.57, B = C = 0.19. Then the numbers are mixed, so that they
  // say nothing of how many neighbours a vertex has.
  GPUFS_HOST_DEVICE edge drawn_by_quarters(std::uint64_t i) const {
    vertex from = 0, to = 0;
    std::uint64_t bits = 0;
    for (unsigned level = 0; level < scale; ++level) {
      if (level % 4 == 0) bits = drawn_word(seed, i << 3 | level / 4);
      const auto any = static_cast<std::uint32_t>(bits >> level % 4 * 16) & 0xffff;
      constexpr std::uint32_t a = 37356, b = a + 12452, c = b + 12452;  // of 65,536
      from = from << 1 | (any >= b ? 1 : 0);
      to = to << 1 | ((any >= a && any < b) || any >= c ? 1 : 0);
    }
    return {mixed(from), mixed(to)};
  }
  // One to one: each step can be undone.
  GPUFS_HOST_DEVICE vertex mixed(vertex v) const {
    for (std::uint32_t round = 0; round < 3; ++round) {
      v = (v * (0x9e3779b1u + round * 0x3504f332u) + static_cast<vertex>(seed >> round * 8)) & mask();  // odd factors
      v ^= v >> (scale + 1) / 2;
    }
    return v;
  }
  GPUFS_HOST_DEVICE std::uint32_t mask() const { return static_cast<std::uint32_t>((std::uint64_t{1} << scale) - 1); }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
