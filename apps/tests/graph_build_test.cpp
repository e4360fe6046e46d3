// SPDX-License-Identifier: Apache-2.0
// Graphs that are made: of generators by all engines, of text, and of arrays; in one piece, and in memory for a few lists at a
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "apps/graph/text_edges.hpp"
#include "graph_fixture.hpp"

namespace gpufs::apps::graph {
namespace {

const auto nobody = [](std::uint64_t, std::uint64_t) {};
const auto no_stage = [](const char*, std::uint64_t, std::uint64_t) {};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What a graph's lists must be: of each pair the least weight.
std::map<std::pair<vertex, vertex>, weight> pairs_of(const edge_source& edges, bool both) {
  std::map<std::pair<vertex, vertex>, weight> all;
  std::vector<weighted_edge> some;
  for (std::uint64_t part = 0; part < edges.nparts(); ++part) edges.read_part(part, some);
  const auto add = [&](vertex from, vertex to, weight of) {
    if (from == to) return;
    const auto [at, is_new] = all.try_emplace({from, to}, of);
    at->second = std::min(at->second, of);
  };
  for (const weighted_edge& e : some) {
    add(e.from, e.to, e.of);
    if (both) add(e.to, e.from, e.of);
  }
  return all;
}
std::map<std::pair<vertex, vertex>, weight> pairs_in(const graph_file& graph, direction of) {
  std::map<std::pair<vertex, vertex>, weight> all;
  const std::vector<std::uint64_t> offsets = graph.read_offsets(of);
  const std::byte* const targets = graph.map() + graph.targets_at(of);
  for (vertex v = 0; v < graph.nvertices(); ++v) {
    std::uint64_t last = 0;
    for (std::uint64_t e = offsets[v]; e < offsets[v + 1]; ++e) {
      const std::uint64_t to = graph.head().target_nbytes == 8 ? reinterpret_cast<const std::uint64_t*>(targets)[e]
                                                               : reinterpret_cast<const std::uint32_t*>(targets)[e];
      EXPECT_TRUE(e == offsets[v] || to > last) << "a list does not ascend";
      last = to;
      const bool has_weight = graph.has_weights() && of == direction::out;
      all[{v, static_cast<vertex>(to)}] = has_weight ? reinterpret_cast<const weight*>(graph.map() + graph.weights_at())[e] : 0;
    }
  }
  return all;
}

class made_graphs : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "graph") const { return folder_.file(name); }
  std::string text(const std::string& content) const {
    std::ofstream(path("text"), std::ios::binary) << content;
    return path("text");
  }
  // Of a text; what is said where it fails.
  std::string said_of(const std::string& content, bool weights = true) const {
    const std::string told = test::said([&] { open_text_edges(text(content), weights, 2, nobody); });
    return told.starts_with(path("text")) ? told.substr(path("text").size()) : told;
  }

  test::folder folder_;
};

TEST_F(made_graphs, of_a_generator_have_its_edges_and_are_equal_by_all_engines) {
  for (const synth_kind kind : {synth_kind::kron, synth_kind::urand}) {
    for (const bool weights : {false, true}) {
      const synth_options of{kind, 9, 77};
      const std::uint64_t n = 16 << of.scale;
      const auto edges = make_synthetic_edges(of, n, weights);
      build_options options{.wide_targets = weights, .weights = weights, .nthreads = 2};
      const auto by_threads = make_list_builder_cpu(*edges, 2), by_kernels = make_list_builder_simt(of, n, 0);
      const build_report whole = build_graph(path("whole"), 512, *by_threads, options, no_stage);
      options.memory_nbytes = 20 << 10;
      const build_report ranges = build_graph(path("ranges"), 512, *by_threads, options, no_stage);
      options.memory_nbytes = 40 << 10;
      build_graph(path("kernels"), 512, *by_kernels, options, no_stage);
      EXPECT_EQ(bytes_of(path("whole")), bytes_of(path("ranges")));
      EXPECT_EQ(bytes_of(path("whole")), bytes_of(path("kernels")));
      EXPECT_EQ(whole.nranges, 1u);
      EXPECT_GT(ranges.nranges, 2u);
      const graph_file graph(path("whole"));
      EXPECT_EQ(graph.nedges() + whole.ndropped, whole.nedges + whole.ndropped);
      EXPECT_EQ(pairs_in(graph, direction::out), pairs_of(*edges, true));
    }
  }
}

TEST_F(made_graphs, of_generators_have_their_distributions) {
  const auto largest_share = [&](synth_kind kind) {
    const auto edges = make_synthetic_edges({kind, 12, 1}, 16 << 12, true);
    std::vector<std::uint64_t> counts(1 << 12);
    std::set<weight> weights;
    std::vector<weighted_edge> all;
    for (std::uint64_t part = 0; part < edges->nparts(); ++part) edges->read_part(part, all);
    for (const weighted_edge& e : all) {
      ++counts[e.from];
      weights.insert(e.of);
    }
    EXPECT_EQ(weights.size(), 255u);
    EXPECT_TRUE(*weights.begin() == 1 && *weights.rbegin() == 255);
    return static_cast<double>(*std::max_element(counts.begin(), counts.end())) / 16;
  };
  EXPECT_GT(largest_share(synth_kind::kron), 20);  // times the mean
  EXPECT_LT(largest_share(synth_kind::urand), 3);
}

TEST_F(made_graphs, of_text_have_the_lines_edges) {
  std::string lines = "# a comment\n\n0 5 7\n5\t0\t3\r\n2,2,1\n4 1 0\n% another\n1 4 9\n3 2 4";
  const text_graph some = open_text_edges(text(lines), true, 2, nobody);
  EXPECT_EQ(some.edges->nvertices(), 6u);
  EXPECT_TRUE(some.edges->has_weights() && !some.is_symmetric);
  const auto lists = make_list_builder_cpu(*some.edges, 2);
  for (const bool directed : {false, true}) {
    build_graph(path(), 6, *lists, {.directed = directed, .weights = true}, no_stage);
    const graph_file graph(path());
    EXPECT_EQ(pairs_in(graph, direction::out), pairs_of(*some.edges, !directed));
    auto flipped = pairs_in(graph, direction::in);
    EXPECT_EQ(flipped.size(), graph.nedges());
    if (directed) {
      EXPECT_TRUE(flipped.contains({2, 3}) && flipped.contains({5, 0}) && !flipped.contains({3, 2}));
    }
  }
  const text_graph none = open_text_edges(text(lines), false, 2, nobody);
  EXPECT_FALSE(none.edges->has_weights());
  EXPECT_EQ(open_text_edges(text(""), true, 2, nobody).edges->nvertices(), 0u);
}

TEST_F(made_graphs, of_long_text_have_all_lines_once) {
  for (const std::size_t width : {std::size_t{0}, std::size_t{15}}) {  // of the latter one begins where each part does
    std::string lines;
    for (unsigned i = 0; lines.size() < 3 << 20; ++i) {
      std::string line = std::to_string(i) + " " + std::to_string(i * 7u % 100'003);
      line.resize(std::max(width, line.size()), ' ');
      lines += line + "\n";
    }
    const auto edges = open_text_edges(text(lines), true, 2, nobody).edges;
    EXPECT_GT(edges->nparts(), 2u);
    std::vector<weighted_edge> all;
    for (std::uint64_t part = 0; part < edges->nparts(); ++part) edges->read_part(part, all);
    ASSERT_EQ(all.size(), std::count(lines.begin(), lines.end(), '\n'));
    for (unsigned i = 0; i < all.size(); ++i) ASSERT_TRUE(all[i].from == i && all[i].to == i * 7u % 100'003);
  }
}

TEST_F(made_graphs, of_text_that_changes_between_passes_are_none) {
  const std::string name = text("0 1 5\n1 2 6\n");
  const auto edges = open_text_edges(name, true, 1, nobody).edges;
  std::vector<weighted_edge> all;
  edges->read_part(0, all);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));            // as long as a file system may take for one time
  std::fstream(name, std::ios::in | std::ios::out) << "0 2 5\n1 0 6\n";  // as many edges from each vertex
  EXPECT_NE(test::said([&] { edges->read_part(0, all); }).find("was changed while it was read: try again"), std::string::npos);
}

TEST_F(made_graphs, of_a_matrix_have_its_entries) {
  const text_graph some = open_text_edges(
      text("%%MatrixMarket matrix coordinate real symmetric\n% about\n4 4 3\n2 1 3.0\n4 2 1e2\n3 3 5\n"), true, 2, nobody);
  EXPECT_TRUE(some.is_symmetric);
  EXPECT_EQ(some.edges->nvertices(), 4u);
  const std::map<std::pair<vertex, vertex>, weight> wanted{{{0, 1}, 3}, {{1, 0}, 3}, {{1, 3}, 100}, {{3, 1}, 100}};
  EXPECT_EQ(pairs_of(*some.edges, true), wanted);
}

TEST_F(made_graphs, of_text_that_is_none_are_refused_with_the_line) {
  const std::string matrix = "%%MatrixMarket matrix coordinate ";
  EXPECT_EQ(said_of("0 1\n1 x\n"), ":2: this is no line of the form 'FROM TO' with whole numbers, as the first one is");
  EXPECT_EQ(said_of("0 1 4\n\n1 2\n"), ":3: this is no line of the form 'FROM TO WEIGHT' with whole numbers, as the first one is");
  EXPECT_EQ(said_of("0 1 4\n1 2 -3\n"), ":2: weight -3 is negative, and shortest paths are sought by weights of 0 and more");
  EXPECT_EQ(said_of("0 1 4\n1 2 -3\n", false), "nothing");
  EXPECT_NE(said_of("0 1 0.5\n").find(":1: weight '0.5' is no whole number: multiply"), std::string::npos);
  EXPECT_NE(said_of("0 4294967294\n").find("vertex 4294967294 is too large"), std::string::npos);
  EXPECT_NE(said_of("0 1 9999999999\n").find("weight 9999999999 is too large"), std::string::npos);
  EXPECT_NE(said_of(std::string(9000, '1') + "\n").find("no line of the form"), std::string::npos);
  EXPECT_NE(said_of("0 1\n" + std::string(2 << 20, '2')).find("this line is longer than 4096 bytes: is it text?"),
            std::string::npos);
  EXPECT_NE(said_of(matrix + "complex general\n1 1 1\n1 1 1\n").find("is a matrix 'coordinate complex general'; there are"),
            std::string::npos);
  EXPECT_NE(said_of(matrix + "pattern general\n2 3 1\n1 1\n").find("a graph's matrix is square"), std::string::npos);
  EXPECT_NE(said_of(matrix + "pattern general\n2 2 1\n0 1\n").find(":3: rows and columns of a matrix begin with 1"),
            std::string::npos);
  EXPECT_NE(said_of(matrix + "pattern general\n2 2 1\n3 1\n").find(":3: a row or column is beyond the matrix's 2"),
            std::string::npos);
  EXPECT_NE(said_of(matrix + "pattern general\n2 2 2\n1 1\n").find("has 1 entries, and says that there are 2: it was cut"),
            std::string::npos);
  EXPECT_NE(said_of(matrix + "pattern general\n").find("has no line with its numbers"), std::string::npos);
  EXPECT_NE(test::said([&] { open_text_edges(path("none"), true, 1, nobody); }).find("No such file"), std::string::npos);
  EXPECT_NE(test::said([&] { open_text_edges(folder_.file(""), true, 1, nobody); }).find("Is a directory"), std::string::npos);
}

TEST_F(made_graphs, of_arrays_have_their_rows) {
  const std::vector<std::int64_t> indptr{0, 2, 2, 3}, indices{2, 1, 0}, weights{4, 5, 6};
  const auto edges = make_csr_edges(indptr, indices, weights, "m");
  const std::map<std::pair<vertex, vertex>, weight> wanted{{{0, 2}, 4}, {{0, 1}, 5}, {{2, 0}, 6}};
  EXPECT_EQ(pairs_of(*edges, false), wanted);
  const auto said_of_arrays = [](std::vector<std::int64_t> p, std::vector<std::int64_t> i, std::vector<std::int64_t> w) {
    return test::said([&] { make_csr_edges(p, i, w, "m"); });
  };
  EXPECT_NE(said_of_arrays({0, 2, 1}, {0}, {}).find("m: 'indptr' does not ascend"), std::string::npos);
  EXPECT_NE(said_of_arrays({0, 1}, {1}, {}).find("m: index 0 is 1, and the matrix has 1 rows"), std::string::npos);
  EXPECT_NE(said_of_arrays({0, 1}, {-1}, {}).find("index 0 is -1"), std::string::npos);
  EXPECT_NE(said_of_arrays({0, 1}, {0}, {-2}).find("weight 0 is negative (-2)"), std::string::npos);
}

// Python is called only by the thread that it called.
TEST_F(made_graphs, tell_the_calling_thread_how_far_they_are) {
  std::string lines;
  while (lines.size() < 12 << 20) lines += "1 2\n";  // parts enough for all threads
  std::uint64_t nparts = 0, ncompleted = 0;
  const auto told = [&, caller = std::this_thread::get_id()](std::uint64_t done, std::uint64_t total) {
    if (std::this_thread::get_id() != caller) throw error("another thread tells");
    nparts = std::max(nparts, total);
    ncompleted += done == total;
  };
  const auto edges = open_text_edges(text(lines), true, 4, told).edges;
  EXPECT_TRUE(nparts == edges->nparts() && ncompleted > 0);
  nparts = ncompleted = 0;
  const auto lists = make_list_builder_cpu(*edges, 4);
  build_graph(path(), edges->nvertices(), *lists, {.nthreads = 4},
              [&](const char*, std::uint64_t done, std::uint64_t total) { told(done, total); });
  EXPECT_TRUE(nparts == edges->nparts() && ncompleted >= 2) << ncompleted;  // counted, and put into lists
}

TEST_F(made_graphs, that_fail_leave_nothing) {
  const auto edges = make_synthetic_edges({synth_kind::urand, 6, 1}, 1000, false);
  const auto lists = make_list_builder_cpu(*edges, 2);
  EXPECT_NE(test::said([&] { build_graph(path(), 64, *lists, {.memory_nbytes = 16}, no_stage); }).find("allow more by --memory"),
            std::string::npos);
  const auto stop = [](const char* stage, std::uint64_t, std::uint64_t) {
    if (std::string(stage) == "writing to the disk") throw error("stopped");
  };
  EXPECT_EQ(test::said([&] { build_graph(path(), 64, *lists, {}, stop); }), "stopped");
  EXPECT_EQ(test::said([&] { build_graph(path("no/where"), 64, *lists, {}, no_stage); }).substr(0, path("no/where").size()),
            path("no/where"));
  EXPECT_TRUE(folder_.names().empty());
}

// An input that is another one each time that it is read.
TEST_F(made_graphs, of_edges_that_change_meanwhile_are_refused) {
  class growing final : public edge_source {
   public:
    std::uint64_t nvertices() const override { return 10; }
    bool has_weights() const override { return false; }
    std::uint64_t nparts() const override { return 1; }
    void read_part(std::uint64_t, std::vector<weighted_edge>& to) const override {
      for (unsigned i = 0; i < n; ++i) to.push_back({i % 9, i % 9 + 1, 0});
      n = n * 2 % 37;
    }
    mutable unsigned n = 20;
  };
  for (const unsigned begin : {20u, 30u}) {  // more, and fewer
    growing edges;
    edges.n = begin;
    const auto lists = make_list_builder_cpu(edges, 1);
    EXPECT_EQ(test::said([&] { build_graph(path(), 10, *lists, {}, no_stage); }),
              "the input was changed while it was read: try again");
  }
  EXPECT_TRUE(folder_.names().empty());
}

}  // namespace
}  // namespace gpufs::apps::graph
