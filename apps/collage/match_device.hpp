// SPDX-License-Identifier: Apache-2.0
// The host side of the kernel, for the machine that the including source is compiled for.
#pragma once
#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "apps/collage/match_kernel.hpp"
#include "gpufs/simt/device_array.hpp"

namespace gpufs::apps::collage {
inline namespace GPUFS_MACHINE {

// The folder to mount for a library, and its name there.
struct library_place {
  explicit library_place(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    name = slash == std::string::npos ? path : path.substr(slash + 1);
  }
  std::string folder, name;
};

// Fs: gpufs::mount, or another owner of a mount of the library's folder. `wrap` makes what is launched of a match_kernel.
template <class Fs, class Wrap>
match_result match_on_mount(const Fs& fs, const library& lib, const photo& picture, const engine_options& options,
                            unsigned max_grid, Wrap wrap) {
  using mount_type = decltype(fs.ref());
  const auto begin = std::chrono::steady_clock::now();
  const std::string name = library_place(lib.path()).name;

  const std::uint32_t nblocks = picture.nblocks();
  const std::size_t pixels_nbytes = picture.row_nbytes() * tile_side * picture.nblocks_y;
  const simt::device_array<std::uint8_t> pixels(std::span(picture.pixels, pixels_nbytes));
  const simt::device_array<match> matches(nblocks);
  const simt::device_array<char> device_name = simt::device_string(name);
  const simt::device_array<std::uint64_t> fault(std::span(&no_fault, 1));

  const simt::device_array<file_status> answer(1);
  simt::launch({1, simt::warp_lanes, options.schedule}, open_kernel<mount_type>{fs.ref(), device_name.get(), answer.get()});
  const file_status opened = answer.read_one();
  if (opened.error != 0) throw_fault(lib, picture, fault_word(0, step::opening, opened.error));
  if (opened.inode != lib.inode()) lib.fail("was replaced by another file just now");

  const header& head = lib.head();
  match_kernel<mount_type> kernel{fs.ref(),
                                  device_name.get(),
                                  pixels.get(),
                                  matches.get(),
                                  fault.get(),
                                  picture.nblocks_x,
                                  0,
                                  0,
                                  head.nimages,
                                  head.histogram_stride,
                                  head.key_nbits,
                                  head.cell_nbits,
                                  head.shortlist_goal,
                                  lib.find(section_kind::histograms).offset,
                                  lib.find(section_kind::projections).offset,
                                  lib.find(section_kind::reference).offset,
                                  {},
                                  {}};
  for (std::uint32_t t = 0; t < ntables; ++t) {
    kernel.tables[t] = lib.find(section_kind::table, t).offset;
    kernel.table_nentries[t] = lib.table_nentries(t);
  }

  // A warp pins one page at a time: with no more warps than half the pages, none waits for a frame.
  const std::uint64_t npages = fs.options().cache_nbytes / fs.options().page_nbytes;
  const std::uint64_t enough = std::max<std::uint64_t>(1, npages / 2 / std::max(1u, options.block_threads / simt::warp_lanes));
  const auto most = options.grid != 0 ? options.grid : static_cast<unsigned>(std::min<std::uint64_t>(max_grid, enough));

  match_result result;
  const std::uint32_t step_nblocks = options.blocks_per_launch == 0 ? nblocks : std::min(nblocks, options.blocks_per_launch);
  for (std::uint32_t first = 0; first < nblocks; first += step_nblocks) {
    kernel.first_block = first;
    kernel.end_block = std::min(nblocks, first + step_nblocks);
    simt::launch_config config{std::min(kernel.end_block - first, most), options.block_threads, options.schedule};
    config.schedule.nthreads = options.nthreads;
    const auto launched = std::chrono::steady_clock::now();
    simt::launch(config, wrap(kernel));
    result.kernel_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - launched).count();
    const std::uint64_t seen = fault.read_one();
    if (seen != no_fault) throw_fault(lib, picture, seen);
    if (options.progress) options.progress(kernel.end_block, nblocks);
  }
  result.matches = matches.read();
  result.counters = fs.counters();
  result.machine = std::string(simt::this_platform().name());
  for (const file_report& report : fs.open_files()) {
    if (report.path == name) result.source = report.reason;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

// The kernel over a mount of its own, which is kept from one photograph to the next.
class device_matcher final : public matcher {
 public:
  device_matcher(const library& lib, engine_options options, unsigned max_grid)
      : lib_(lib), options_(std::move(options)), max_grid_(max_grid), fs_(library_place(lib.path()).folder, wanted(options_)) {}

  match_result find(const photo& picture, const progress_function& progress) override {
    options_.progress = progress;
    return match_on_mount(fs_, lib_, picture, options_, max_grid_, [](const auto& kernel) { return kernel; });
  }

 private:
  static mount_options wanted(const engine_options& options) {
    mount_options wanted;
    wanted.cache_nbytes = options.cache_nbytes;
    wanted.page_nbytes = options.page_nbytes;
    wanted.store = options.store;
    return wanted;
  }

  const library& lib_;
  engine_options options_;
  unsigned max_grid_;
  mount fs_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::collage
