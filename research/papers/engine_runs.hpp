// SPDX-License-Identifier: Apache-2.0
// What engines.cpp and engines_timed.cpp share. Two sources, because each design is a kernel that takes a while to compile.
#pragma once
#include "apps/collage/match_device.hpp"
#include "research/baselines/block_match_kernel.hpp"
#include "research/baselines/original_mount.hpp"
#include "research/baselines/pointer_match_kernel.hpp"
#include "research/papers/engines.hpp"

namespace gpufs::papers {

run_result run_timed(const apps::collage::library& lib, const apps::collage::photo& picture, const run_options& options);

inline namespace GPUFS_MACHINE {

using namespace baselines;
using apps::collage::library;
using apps::collage::match_kernel;
using apps::collage::photo;
using apps::collage::section;
using apps::collage::section_kind;

inline constexpr auto as_it_is = [](const auto& kernel) { return kernel; };
inline constexpr auto with_blocks = []<class Mount>(const match_kernel<Mount>& kernel) {
  return block_match_kernel<Mount>{kernel};
};
inline constexpr auto with_pointers = []<class Mount>(const match_kernel<Mount>& kernel) {
  return pointer_match_kernel<Mount>{kernel};
};

// How a kernel with these calls is made, and which group makes them.
template <calls By>
inline constexpr auto made = with_blocks;
template <>
inline constexpr auto made<calls::warps> = as_it_is;
template <>
inline constexpr auto made<calls::pointers> = with_pointers;
template <calls By>
struct caller {
  using type = simt::block;
};
template <>
struct caller<calls::warps> {
  using type = simt::warp;
};

inline mount_options mount_of(const run_options& options) {
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
    if (options.warm) match(fs, lib, picture, options, made<By>);
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

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::papers
