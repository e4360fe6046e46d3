// SPDX-License-Identifier: Apache-2.0
// Labelling by kernels, for the machine that the including source is compiled for: regions by their boundaries
// (par::label_regions), then a scan over their first pixels, which numbers them.
#pragma once
#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "apps/label/labeler.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/par/label.hpp"
#include "gpufs/par/scan.hpp"

namespace gpufs::apps::label {
inline namespace GPUFS_MACHINE {

struct label_result {
  int error;  // 0 or a negative errno
  std::uint32_t nregions;
};

struct label_kernel {
  const std::uint32_t* pixels;
  std::uint64_t height, width;
  par::touching how;
  bool has_background;
  std::uint32_t background;
  std::uint32_t *firsts, *numbers;  // of each pixel its region's first one; of each first one its number
  par::scan_space space;            // for either call
  label_result* result;

  GPUFS_DEVICE bool is_background(std::uint64_t i) const { return has_background && pixels[i] == background; }

  GPUFS_DEVICE void operator()() const {
    const simt::grid grid = simt::this_grid();
    const std::uint64_t n = height * width;
    const par::list_result labelled = par::label_regions(grid, pixels, height, width, how, firsts, space);
    if (labelled.error != 0) return tell(grid, {labelled.error, 0});
    for (std::uint64_t i = grid.rank(); i < n; i += grid.size()) numbers[i] = firsts[i] == i && !is_background(i);
    grid.sync();
    const auto numbered = par::inclusive_scan(grid, numbers, numbers, n, par::plus<std::uint32_t>{}, space);
    if (numbered.error != 0) return tell(grid, {numbered.error, 0});
    for (std::uint64_t i = grid.rank(); i < n; i += grid.size()) firsts[i] = is_background(i) ? 0 : numbers[firsts[i]];
    tell(grid, {0, numbered.all});
  }
  GPUFS_DEVICE void tell(simt::grid grid, const label_result& got) const {
    if (grid.leader()) *result = got;
  }
};

class device_labeler final : public labeler {
 public:
  explicit device_labeler(const label_options& options)
      : labeler(options.npixels),
        how_(options.corners ? par::touching::corners : par::touching::sides),
        device_(simt::device(options.device)),
        most_blocks_(most_blocks_on(device_)),
        space_nbytes_(space_nbytes_for(options.npixels)),
        pixels_(options.npixels, device_),
        firsts_(options.npixels, device_),
        numbers_(options.npixels, device_),
        space_(space_nbytes_, device_),
        result_(1, device_) {}

 private:
  static constexpr unsigned nthreads = GPUFS_ON_CUDA ? 256 : 64, least_blocks = 2;

  static unsigned most_blocks_on(simt::platform& device) {
    const simt::on_device here(device);
    return simt::max_cooperative_grid<nthreads, least_blocks>({.grid = 1, .block = nthreads}, label_kernel{});
  }
  unsigned nblocks_for(std::uint64_t n) const {
    const auto wanted = static_cast<unsigned>(std::min<std::uint64_t>(n / nthreads + 1, GPUFS_ON_CUDA ? 1u << 16 : 4));
    return std::clamp(wanted, 1u, most_blocks_);
  }
  // Enough for fewer pixels, too, as either is more for more pixels and more blocks.
  std::uint64_t space_nbytes_for(std::uint64_t n) const {
    const unsigned nblocks = nblocks_for(n);
    return std::max(par::scan_space::nbytes_to_label(n, nblocks), par::scan_space::nbytes_for<std::uint32_t>(n, nblocks, nthreads));
  }

  std::uint64_t label_some(const image_view& image, std::optional<std::uint32_t> background, std::int32_t* labels) override {
    const std::uint64_t n = image.height * image.width;
    const simt::on_device here(device_);
    pixels_.write(std::span(image.pixels, n));
    simt::launch_config config{.grid = nblocks_for(n), .block = nthreads};
    config.schedule.timeout_ns = 0;  // it waits for nobody else
    config.cooperative = true;
    simt::launch<nthreads, least_blocks>(config, label_kernel{pixels_.get(),
                                                              image.height,
                                                              image.width,
                                                              how_,
                                                              background.has_value(),
                                                              background.value_or(0),
                                                              firsts_.get(),
                                                              numbers_.get(),
                                                              {space_.get(), space_nbytes_},
                                                              result_.get()});
    const label_result got = result_.read_one();
    if (got.error != 0) throw error(std::string("the image cannot be labelled: ") + std::strerror(-got.error), -got.error);
    device_.copy_from_device(labels, firsts_.get(), n * sizeof *labels);
    return got.nregions;
  }

  const par::touching how_;
  simt::platform& device_;
  const unsigned most_blocks_;
  const std::uint64_t space_nbytes_;
  const simt::device_array<std::uint32_t> pixels_, firsts_, numbers_;
  const simt::device_array<std::byte> space_;
  const simt::device_array<label_result> result_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::label
