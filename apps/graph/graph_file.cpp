// SPDX-License-Identifier: Apache-2.0
#include "apps/graph/graph_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "apps/crc32.hpp"

namespace gpufs::apps::graph {
namespace {

const char* const how_to_make = "`gpufs graph synth` and `gpufs graph import` make graphs";

}  // namespace

graph_file::graph_file(std::string path) : file_(std::move(path), "read") { check_header(); }

void graph_file::check_header() {
  header& head = head_;
  if (file_.nbytes() < sizeof(header)) fail(std::string("is no graph: it is too short; ") + how_to_make);
  file_.read(&head, sizeof head, 0);
  if (std::memcmp(head.magic, magic, sizeof magic) != 0) fail(std::string("is no graph; ") + how_to_make);
  if (head.version != format_version) {
    fail("is a graph of version " + std::to_string(head.version) + ", and this gpufs reads version " +
         std::to_string(format_version) + ": make it again");
  }
  if (head.crc32 != crc32(0, &head, offsetof(header, crc32))) {
    fail("the header is damaged (its checksum is another): make or copy the graph again");
  }
  const bool is_good = head.nvertices <= most_vertices && head.nedges <= most_edges && (head.flags & ~flag_directed) == 0 &&
                       (head.target_nbytes == 4 || head.target_nbytes == 8) &&
                       (head.weight_nbytes == 0 || head.weight_nbytes == 4) && (head.nvertices != 0 || head.nedges == 0);
  if (!is_good) fail("the header has numbers that no graph has: make the graph again");
  at_ = layout_of(head);
  if (head.file_nbytes != at_.end || file_.nbytes() != at_.end) {
    fail("has " + std::to_string(file_.nbytes()) + " bytes, and a graph of this header " + std::to_string(at_.end) +
         (file_.nbytes() < at_.end ? ": it was cut; copy or make it again" : ": copy or make it again"));
  }
}

std::vector<std::uint64_t> graph_file::read_offsets(direction of) const {
  std::vector<std::uint64_t> offsets(nvertices() + 1);
  file_.read(offsets.data(), offsets.size() * sizeof offsets[0], offsets_at(of));
  const bool is_good = offsets.front() == 0 && offsets.back() == nedges() && std::is_sorted(offsets.begin(), offsets.end());
  if (!is_good) fail("the offsets of its lists do not ascend from 0 to the number of edges: make the graph again");
  return offsets;
}

void graph_file::fail(const std::string& what, int error) const {
  throw gpufs::error(path() + ": " + what, error != 0 ? error : EINVAL);
}
void graph_file::fail_changed() const { file_.fail(ESTALE); }
void graph_file::fail_target() const {
  fail("a list has a vertex that is not there (the graph has " + std::to_string(nvertices()) + "): make the graph again");
}

}  // namespace gpufs::apps::graph
