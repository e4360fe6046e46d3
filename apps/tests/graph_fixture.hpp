// SPDX-License-Identifier: Apache-2.0
// Small graphs that the tests of graphs share.
#pragma once
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "apps/crc32.hpp"
#include "apps/graph/builder.hpp"
#include "apps/graph/graph_file.hpp"
#include "said.hpp"

namespace gpufs::apps::graph::test {

using apps::said;

class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs_graph_XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~folder() { std::filesystem::remove_all(path_); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) all.push_back(entry.path().filename().string());
    return all;
  }

 private:
  std::string path_;
};

using edges = std::vector<weighted_edge>;

// Writes lists as they are: with edges from a vertex to itself, and edges that come more than once, in any order.
inline void write_lists(const std::string& path, std::uint64_t n, const edges& all, bool directed, bool wide, bool weights) {
  header head{};
  std::memcpy(head.magic, magic, sizeof magic);
  head.version = format_version;
  head.flags = directed ? flag_directed : 0;
  head.nvertices = n;
  head.nedges = all.size() * (directed ? 1 : 2);
  head.target_nbytes = wide ? 8 : 4;
  head.weight_nbytes = weights ? 4 : 0;
  const layout at = layout_of(head);
  head.file_nbytes = at.end;
  head.crc32 = crc32(0, &head, offsetof(header, crc32));
  std::string bytes(at.end, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  const auto put = [&](std::uint64_t offsets_at, std::uint64_t targets_at, std::uint64_t weights_at, bool out, bool both) {
    std::vector<std::uint64_t> next(n + 1);
    for (const weighted_edge& e : all) {
      ++next[(out ? e.from : e.to) + 1];
      if (both) ++next[e.to + 1];
    }
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::memcpy(bytes.data() + offsets_at, next.data(), next.size() * 8);
    const auto add = [&](vertex from, std::uint64_t to, weight w) {
      const std::uint64_t place = next[from]++;
      std::memcpy(bytes.data() + targets_at + place * head.target_nbytes, &to, head.target_nbytes);
      if (weights_at != 0) std::memcpy(bytes.data() + weights_at + place * 4, &w, 4);
    };
    for (const weighted_edge& e : all) {
      out ? add(e.from, e.to, e.of) : add(e.to, e.from, e.of);
      if (both) add(e.to, e.from, e.of);
    }
  };
  put(at.offsets, at.targets, weights ? at.weights : 0, true, !directed);
  if (directed) put(at.in_offsets, at.in_targets, 0, false, false);
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

inline edges drawn(std::uint64_t n, std::size_t nedges, std::uint64_t seed, std::uint64_t most_weight = 20) {
  std::mt19937_64 draw(seed);
  edges all;
  for (std::size_t i = 0; i < nedges; ++i) {
    all.push_back({static_cast<vertex>(draw() % n), static_cast<vertex>(draw() % n), static_cast<weight>(draw() % most_weight)});
  }
  return all;
}
inline edges path_of(std::uint64_t n) {
  edges all;
  for (vertex v = 0; v + 1 < n; ++v) all.push_back({v, v + 1, 1 + v % 3});
  return all;
}
inline edges star_of(std::uint64_t n) {
  edges all;
  for (vertex v = 1; v < n; ++v) all.push_back({v, 0, v % 7});
  return all;
}

}  // namespace gpufs::apps::graph::test
