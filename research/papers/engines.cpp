// SPDX-License-Identifier: Apache-2.0
#include "research/papers/engines.hpp"

#include <sstream>
#include <stdexcept>

#include "research/papers/engine_runs.hpp"

namespace gpufs::papers {

run_result run_collage(const library& lib, const photo& picture, const run_options& options) {
  const bool warps = options.by == calls::warps;
  if (options.by == calls::pointers && (options.timed || options.cache != design::own)) {
    throw std::invalid_argument("pointers are this library's own");
  }
  if (options.timed) return run_timed(lib, picture, options);
  switch (options.cache) {
    case design::own:
      if (options.by == calls::pointers) return run<mount, calls::pointers>(lib, picture, options);
      return warps ? run<mount, calls::warps>(lib, picture, options) : run<mount, calls::blocks>(lib, picture, options);
    case design::original:
      if (!warps) return run<original_mount<original_cache>, calls::blocks>(lib, picture, options);
      break;
    case design::hash_and_free_list:
      if (!warps) return run<original_mount<hash_and_free_list>, calls::blocks>(lib, picture, options);
      break;
    case design::hash_and_rings:
      if (warps) return run<original_mount<hash_and_rings>, calls::warps>(lib, picture, options);
      break;
  }
  throw std::invalid_argument("no table or figure needs this design with these calls");
}

machine_facts this_machine() {
  machine_facts facts{std::string(simt::this_platform().name()), "none"};
  std::istringstream lines(simt::this_platform().describe());
  for (std::string line; std::getline(lines, line);) {
    const auto value_of = [&line](const char* key) {
      const std::string start = std::string(key).append(": ");
      return line.rfind(start, 0) == 0 ? line.substr(start.size()) : std::string();
    };
    if (const std::string value = value_of("device"); !value.empty()) facts.machine = value;
    if (const std::string value = value_of("driver supports cuda"); !value.empty()) facts.driver = "CUDA " + value;
  }
  return facts;
}

}  // namespace gpufs::papers
