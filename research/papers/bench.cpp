// SPDX-License-Identifier: Apache-2.0
#include "research/papers/bench.hpp"

#include <cstdio>
#include <fstream>

namespace gpufs::papers {

image::image(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string magic;
  std::uint32_t width = 0, height = 0, most = 0;
  in >> magic >> width >> height >> most;
  in.get();
  if (!in || magic != "P6" || most != 255) throw error(path + " is not a binary PPM file of 8 bits a channel");
  photo_ = {nullptr, width / apps::collage::tile_side, height / apps::collage::tile_side};
  if (photo_.nblocks() == 0) throw error(path + " has no whole block of 32 x 32 pixels");
  pixels_.resize(photo_.row_nbytes() * photo_.nblocks_y * apps::collage::tile_side);
  std::vector<char> line(std::size_t{width} * 3);
  for (std::size_t y = 0; y < std::size_t{photo_.nblocks_y} * apps::collage::tile_side; ++y) {
    if (!in.read(line.data(), static_cast<std::streamsize>(line.size()))) throw error(path + " ends early");
    std::copy_n(line.begin(), photo_.row_nbytes(), reinterpret_cast<char*>(pixels_.data()) + y * photo_.row_nbytes());
  }
  photo_.pixels = pixels_.data();
}

std::string image::size() const {
  return std::to_string(photo_.nblocks_x * apps::collage::tile_side) + "x" +
         std::to_string(photo_.nblocks_y * apps::collage::tile_side);
}

const std::vector<apps::collage::match>& image::expected(const apps::collage::library& lib) const {
  if (!expected_) expected_ = match_cpu(lib, photo_, {}).matches;
  return *expected_;
}

runs repeat(const inputs& in, const image& picture, const run_options& options, int repeats) {
  const auto& expected = picture.expected(in.lib);
  runs result;
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    result.last = run_collage(in.lib, picture.photo(), options);
    const auto& found = result.last.found;
    for (std::size_t b = 0; b < expected.size(); ++b) {
      result.verified =
          result.verified && found.matches[b].id == expected[b].id && found.matches[b].distance == expected[b].distance;
    }
    const auto& counters = found.counters;
    result.verified =
        result.verified && counters && counters->errors == 0 && counters->fault_errors == 0 && counters->pinned_frames == 0;
    if (i > 0 || repeats == 0) seconds.push_back(found.kernel_seconds);
    std::fprintf(stderr, "  %s: %.2f ms in the kernel, %llu faults, %llu evictions, %s\n", picture.size().c_str(),
                 found.kernel_seconds * 1e3, static_cast<unsigned long long>(counters->faults),
                 static_cast<unsigned long long>(counters->evictions), found.source.c_str());
  }
  result.kernel_seconds = median_of(seconds);
  return result;
}

}  // namespace gpufs::papers
