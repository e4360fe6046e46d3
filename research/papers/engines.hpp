// SPDX-License-Identifier: Apache-2.0
// One collage on one page cache: what the papers' tables and figures are made of. Host code; the machine is chosen by linking.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "apps/collage/match.hpp"
#include "research/baselines/layout.hpp"

namespace gpufs::papers {

enum class design { own, original, hash_and_free_list, hash_and_rings };
enum class calls { warps, blocks, pointers };
enum class host_side { own, original };

struct run_options {
  design cache = design::own;
  calls by = calls::warps;
  host_side host = host_side::own;
  bool timed = false;        // fills in run_result::times; costs some speed
  bool warm = false;         // the cache holds what the same collage has read before; counters are of both
  std::uint32_t ahead = 32;  // design::hash_and_rings: eviction begins when so few pages of a ring are free
  mount_options mount = {};
};

struct run_result {
  apps::collage::match_result found;  // found.kernel_seconds: what is compared
  baselines::time_shard times;        // the counted pages are those of the library's histograms
};

// A mount of its own, so that its cache is cold; files that are pulled are registered before the clock starts. Throws what
// match_cuda throws, and std::invalid_argument for combinations that no table needs.
run_result run_collage(const apps::collage::library& lib, const apps::collage::photo& picture, const run_options& options);

// The collage without gpufs, by the CPU and the device. Its memory is kept from one photograph to the next.
// find() throws library_error, and std::bad_alloc or what the platform throws where the images of all shortlists do not fit.
std::unique_ptr<apps::collage::matcher> matcher_by_both(const apps::collage::library& lib);

struct machine_facts {
  std::string machine;  // "NVIDIA H200", or the CPU machine
  std::string driver;
};
machine_facts this_machine();

}  // namespace gpufs::papers
