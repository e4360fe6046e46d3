// SPDX-License-Identifier: Apache-2.0
#include "papers/engines.hpp"

#include <sstream>
#include <stdexcept>

#include "apps/collage/match_device.hpp"
#include "baselines/block_match_kernel.hpp"
#include "baselines/original_mount.hpp"

namespace gpufs::papers {
namespace {

using namespace baselines;
using apps::collage::library;
using apps::collage::match_kernel;
using apps::collage::photo;
using apps::collage::section;
using apps::collage::section_kind;

constexpr auto as_it_is = [](const auto& kernel) { return kernel; };
constexpr auto with_blocks = []<class Mount>(const match_kernel<Mount>& kernel) { return block_match_kernel<Mount>{kernel}; };

// How a kernel with these calls is made, and which group makes them.
template <calls By>
constexpr auto made = with_blocks;
template <>
constexpr auto made<calls::warps> = as_it_is;
template <calls By>
struct caller {
  using type = simt::block;
};
template <>
struct caller<calls::warps> {
  using type = simt::warp;
};

mount_options mount_of(const run_options& options) {
  return options.host == host_side::original ? original_host_side(options.mount) : options.mount;
}

template <class Fs, class Wrap>
apps::collage::match_result match(const Fs& fs, const library& lib, const photo& picture, const run_options& options, Wrap wrap) {
  fs.prepare(apps::collage::library_place(lib.path()).name);
  apps::collage::engine_options how;
  how.page_nbytes = options.mount.page_nbytes;
  return apps::collage::match_on_mount(fs, lib, picture, how, simt::this_platform().is_cuda() ? 4096 : 64, wrap);
}

template <class Fs, calls By>
run_result run(const library& lib, const photo& picture, const run_options& options) {
  const std::string folder = apps::collage::library_place(lib.path()).folder;
  if constexpr (std::is_same_v<Fs, mount>) {
    const Fs fs(folder, mount_of(options));
    return {match(fs, lib, picture, options, made<By>), {}};
  } else {
    const section& histograms = lib.find(section_kind::histograms);
    const std::uint64_t page = options.mount.page_nbytes;
    Fs fs(folder, mount_of(options),
          {.ahead = options.ahead,
           .counted_first = histograms.offset / page,
           .counted_end = (histograms.offset + histograms.nbytes + page - 1) / page});
    if (!options.timed) return {match(fs, lib, picture, options, made<By>), {}};
    const original_layout* all = fs.storage().device();
    const auto timing = [all](const auto& kernel) {
      using made_kernel = decltype(made<By>(kernel));
      return timed_kernel<made_kernel, typename caller<By>::type>{made<By>(kernel), all};
    };
    auto found = match(fs, lib, picture, options, timing);
    return {std::move(found), fs.storage().times()};
  }
}

template <calls By>
run_result run_timed(const library& lib, const photo& picture, const run_options& options) {
  switch (options.cache) {
    case design::own:
      return run<original_mount<timed_own_cache>, By>(lib, picture, options);
    case design::original:
      return run<original_mount<timed_original_cache>, By>(lib, picture, options);
    case design::hash_and_free_list:
      return run<original_mount<timed_hash_and_free_list>, By>(lib, picture, options);
    case design::hash_and_rings:
      return run<original_mount<timed_hash_and_rings>, By>(lib, picture, options);
  }
  throw std::invalid_argument("no such design");
}

}  // namespace

run_result run_collage(const library& lib, const photo& picture, const run_options& options) {
  const bool warps = options.by == calls::warps;
  if (options.timed) {
    return warps ? run_timed<calls::warps>(lib, picture, options) : run_timed<calls::blocks>(lib, picture, options);
  }
  switch (options.cache) {
    case design::own:
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
