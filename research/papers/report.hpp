// SPDX-License-Identifier: Apache-2.0
// A table of results as JSON, and medians with their spread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace gpufs::papers {

using cell = std::variant<std::string, double, std::uint64_t>;
using row = std::vector<cell>;

struct report {
  std::string name;  // the file is name.json
  std::string title;
  std::vector<std::string> columns;
  std::vector<row> rows;
  std::vector<std::string> paper_columns;  // the paper's values, where its text gives them
  std::vector<row> paper;
  std::vector<std::string> notes;
  // What results/headline.json takes over, when `bound` is not empty.
  std::string bound;
  double figure = 0;
  std::string measured, ceiling, spread;
  bool verified = true;  // every run chose the tiles that the plain CPU engine chooses
};

struct median_of {
  explicit median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    median = values[values.size() / 2];
    low = values.front();
    high = values.back();
  }
  double median, low, high;
};

// Where the numbers come from; `command` has no paths, only the last components of its arguments.
struct provenance {
  std::string machine, driver, commit, command;
};

std::string to_json(const report& r, const provenance& from);
std::string to_text(const report& r);

}  // namespace gpufs::papers
