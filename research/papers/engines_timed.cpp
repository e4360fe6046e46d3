// SPDX-License-Identifier: Apache-2.0
// The designs with clocks.
#include <stdexcept>

#include "research/papers/engine_runs.hpp"

namespace gpufs::papers {

run_result run_timed(const library& lib, const photo& picture, const run_options& options) {
  const bool warps = options.by == calls::warps;
  switch (options.cache) {
    case design::own:
      return warps ? run<original_mount<timed_own_cache>, calls::warps>(lib, picture, options)
                   : run<original_mount<timed_own_cache>, calls::blocks>(lib, picture, options);
    case design::original:
      if (!warps) return run<original_mount<timed_original_cache>, calls::blocks>(lib, picture, options);
      break;
    case design::hash_and_free_list:
      if (!warps) return run<original_mount<timed_hash_and_free_list>, calls::blocks>(lib, picture, options);
      break;
    case design::hash_and_rings:
      return warps ? run<original_mount<timed_hash_and_rings>, calls::warps>(lib, picture, options)
                   : run<original_mount<timed_hash_and_rings>, calls::blocks>(lib, picture, options);
  }
  throw std::invalid_argument("no table or figure needs this design with these calls");
}

}  // namespace gpufs::papers
