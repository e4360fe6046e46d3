// SPDX-License-Identifier: Apache-2.0
// The lines of files that have a string. Host code.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "apps/words/finder.hpp"

namespace gpufs::apps::words {

struct found_line {
  std::uint64_t number;  // from 1 on
  std::string text;      // without its end
};
struct file_lines {
  std::uint32_t file;
  int error = 0;           // an errno, and no lines; ESTALE: it was changed since it was searched
  bool is_binary = false;  // it has a NUL: that it matches is all that is said
  std::vector<found_line> lines;
};

// The lines of the files that have the string, in order, some files at a time.
class line_reader {
 public:
  // All stay while it lives. in_order: where find_... has found the string.
  line_reader(const file_tree& tree, const found& in_order, const wanted_string& text, unsigned nthreads);
  // Of the next files; nothing after the last ones.
  std::vector<file_lines> next();

 private:
  file_lines read(std::size_t first, std::size_t end) const;  // segments of one file

  const file_tree& tree_;
  const found& found_;
  const wanted_string& text_;
  unsigned nthreads_;
  std::size_t at_ = 0;  // in segments
};

}  // namespace gpufs::apps::words
