// SPDX-License-Identifier: Apache-2.0
// A graph's file, open: its header, checked, and its sections. Host code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/graph/format.hpp"
#include "apps/input_file.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::graph {

// Which lists: where vertices lead, or who leads to them. The same of a graph that is not directed.
enum class direction { out, in };

class graph_file {
 public:
  // Checks the header, and the file's size. Throws gpufs::error, whose text has the path and what helps.
  explicit graph_file(std::string path);

  const std::string& path() const { return file_.path(); }
  const header& head() const { return head_; }
  std::uint64_t nvertices() const { return head_.nvertices; }
  std::uint64_t nedges() const { return head_.nedges; }
  bool is_directed() const { return (head_.flags & flag_directed) != 0; }
  bool has_weights() const { return head_.weight_nbytes != 0; }

  // Where the lists of this direction begin, in bytes; of none other are there weights than of direction::out.
  std::uint64_t offsets_at(direction of) const { return is_directed() && of == direction::in ? at_.in_offsets : at_.offsets; }
  std::uint64_t targets_at(direction of) const { return is_directed() && of == direction::in ? at_.in_targets : at_.targets; }
  std::uint64_t weights_at() const { return at_.weights; }

  // nvertices + 1 numbers, which ascend from 0 to nedges. Throws gpufs::error: they do not, or the file is shorter now.
  std::vector<std::uint64_t> read_offsets(direction of) const;
  // The whole file, mapped read-only until this ends. Reads beyond the end of a file that was cut meanwhile raise SIGBUS.
  const std::byte* map() const { return file_.map(); }

  // Throws gpufs::error: "PATH: what".
  [[noreturn]] void fail(const std::string& what, int error = 0) const;
  [[noreturn]] void fail_changed() const;  // it was cut, or replaced
  [[noreturn]] void fail_target() const;   // a list has a vertex that is not there

 private:
  void check_header();

  input_file file_;
  header head_{};
  layout at_{};
};

}  // namespace gpufs::apps::graph
