// SPDX-License-Identifier: Apache-2.0
// The regions of images, numbered: the inside of `gpufs label` and gpufs.par.label() in Python. Each engine finds the same ones.
#pragma once
#include <cstdint>
#include <optional>

namespace gpufs::apps::label {

// height * width pixels, row by row, fewer than most_pixels; equal ones are of one kind.
struct image_view {
  const std::uint32_t* pixels;
  std::uint64_t height, width;
  std::uint64_t n() const { return height * width; }
};
inline constexpr std::uint64_t most_pixels = std::uint64_t{1} << 30;

struct label_options {
  bool corners = false;                       // pixels that meet at a corner touch, too
  std::optional<std::uint32_t> background{};  // pixels of this kind are of no region: 0
  int device = 0;
};

// labels[i] becomes the number of i's region, from 1 on in the order of their first pixels. Returns how many there are. Throws
// gpufs::error (too many pixels; kernels), and std::bad_alloc. By host code; by kernels on the CPU machine, and on a GPU.
std::uint64_t label_cpu(const image_view& image, const label_options& options, std::int32_t* labels);
std::uint64_t label_simt(const image_view& image, const label_options& options, std::int32_t* labels);
std::uint64_t label_cuda(const image_view& image, const label_options& options, std::int32_t* labels);

// Throws gpufs::error.
void check_size(const image_view& image);

}  // namespace gpufs::apps::label
