// SPDX-License-Identifier: Apache-2.0
// The regions of images, numbered: the inside of `gpufs label` and gpufs.par.label() in Python. Each engine finds the same ones.
// Large images go by strips, which strip_regions.hpp joins.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

namespace gpufs::apps::label {

// height * width pixels, row by row; equal ones are of one kind.
struct image_view {
  const std::uint32_t* pixels;
  std::uint64_t height, width;
};
inline constexpr std::uint64_t most_pixels = (std::uint64_t{1} << 30) - 1;  // of a labeler
inline constexpr std::uint64_t nbytes_a_pixel = 48;  // of its engine's memory, some: pixels, labels, numbers, and what labels them

struct label_options {
  std::uint64_t npixels = 0;  // of an image, at most
  bool corners = false;       // pixels that meet at a corner touch, too
  int device = 0;
};

// Labels one image after another, in memory that it takes once. One call at a time.
class labeler {
 public:
  virtual ~labeler() = default;
  // labels[i] becomes the number of i's region, from 1 on in the order of their first pixels; 0: it is of the background's kind.
  // Returns how many there are. Throws gpufs::error (too many pixels; kernels).
  std::uint64_t label(const image_view& image, std::optional<std::uint32_t> background, std::int32_t* labels);

 protected:
  explicit labeler(std::uint64_t npixels);

 private:
  virtual std::uint64_t label_some(const image_view& image, std::optional<std::uint32_t> background, std::int32_t* labels) = 0;
  const std::uint64_t npixels_;
};

// By host code; by kernels on the CPU machine, and on a GPU. Throw gpufs::error (more than most_pixels; there is no such device),
// and std::bad_alloc or what the platform throws where memory is short.
std::unique_ptr<labeler> make_labeler_cpu(const label_options& options);
std::unique_ptr<labeler> make_labeler_simt(const label_options& options);
std::unique_ptr<labeler> make_labeler_cuda(const label_options& options);

// What a labeler takes of memory if nobody says: of the host a quarter of what is free, or of its control group's limit if that is
// less, but 8 GiB at most; as much of a GPU, where that is not more than three quarters of what is free there.
std::uint64_t usual_memory_of_host();
std::uint64_t usual_memory_of_gpu(int device);

}  // namespace gpufs::apps::label
