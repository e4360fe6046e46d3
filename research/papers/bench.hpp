// SPDX-License-Identifier: Apache-2.0
// What the tables and figures share: their inputs, and runs that are checked.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "research/papers/engines.hpp"
#include "research/papers/report.hpp"

namespace gpufs::papers {

// A photograph from a PPM file (P6), cut to whole blocks. Throws gpufs::error.
class image {
 public:
  explicit image(const std::string& path);
  const apps::collage::photo& photo() const { return photo_; }
  std::string size() const;  // "2048x1536"
  // What the plain CPU engine finds; computed once.
  const std::vector<apps::collage::match>& expected(const apps::collage::library& lib) const;

 private:
  std::vector<std::uint8_t> pixels_;
  apps::collage::photo photo_{};
  mutable std::optional<std::vector<apps::collage::match>> expected_;
};

struct inputs {
  const apps::collage::library& lib;
  std::vector<std::unique_ptr<image>> images;
  std::uint64_t cache_nbytes = std::uint64_t{2} << 30;       // the papers'
  std::uint64_t big_cache_nbytes = std::uint64_t{16} << 30;  // holds every page that a photograph needs
  int repeats = 5;                                           // after one that warms up
};

// Several runs of the same, each on a cold cache.
struct runs {
  median_of kernel_seconds{{0.0}};
  run_result last;
  bool verified = true;
};
runs repeat(const inputs& in, const image& picture, const run_options& options, int repeats);

// One report for each table or figure.
report table_1(const inputs& in);
report table_2(const inputs& in);
report table_3(const inputs& in);
report figure_4(const inputs& in);
report figure_5(const inputs& in);
report figure_9(const inputs& in);
report figure_6(const inputs& in);  // of the last image, as the next two
report figure_7(const inputs& in);
report figure_8(const inputs& in);
report original_slowdown(const inputs& in);  // of the last image, as the next one
report pointer_collage(const inputs& in);

}  // namespace gpufs::papers
