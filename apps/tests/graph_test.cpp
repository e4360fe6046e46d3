// SPDX-License-Identifier: Apache-2.0
// The algorithms on graphs of all shapes, by host threads and by kernels over a cache of few pages, against serial ones; and graphs
// that are damaged.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "apps/graph/engine.hpp"
#include "apps/graph/verify.hpp"
#include "gpufs/simt/config.hpp"
#include "graph_fixture.hpp"
#include "simt/harness.hpp"

namespace gpufs::apps::graph {
namespace {

const auto nobody = [](std::uint64_t, std::uint64_t) {};

std::unique_ptr<engine> make(bool by_kernels, const graph_file& graph) {
  const engine_options options{.nthreads = 2, .cache_nbytes = 24 << 10, .page_nbytes = 1024};
  if (!by_kernels) return make_engine_cpu(graph, options);
#if GPUFS_ON_CUDA
  return make_engine_cuda(graph, options);
#else
  return make_engine_simt(graph, options);
#endif
}

// All algorithms by both engines: right, and the same.
void check(const std::string& path, vertex source) {
  const graph_file graph(path);
  const pagerank_options how{.tolerance = 1e-6, .most_rounds = 100};
  const auto cpu = make(false, graph), kernels = make(true, graph);
  if (graph.nvertices() != 0) {
    const bfs_result by_threads = cpu->bfs(source, nobody), by_kernels = kernels->bfs(source, nobody);
    EXPECT_EQ(wrong_in_bfs(graph, source, by_threads.depths), "");
    EXPECT_EQ(by_threads.depths, by_kernels.depths);
    EXPECT_EQ(by_threads.nreached, by_kernels.nreached);
    if (graph.has_weights()) {
      for (const std::uint64_t delta : {std::uint64_t{1}, std::uint64_t{8}, std::uint64_t{1} << 40}) {
        const paths_result paths = cpu->shortest_paths(source, delta, nobody),
                           others = kernels->shortest_paths(source, delta, nobody);
        EXPECT_EQ(wrong_in_paths(graph, source, paths.lengths), "");
        EXPECT_EQ(paths.lengths, others.lengths) << delta;
      }
    }
  }
  const components_result by_threads = cpu->components(nobody), by_kernels = kernels->components(nobody);
  EXPECT_EQ(wrong_in_components(graph, by_threads.components), "");
  EXPECT_EQ(by_threads.components, by_kernels.components);
  EXPECT_EQ(by_threads.ncomponents, by_kernels.ncomponents);
  const pagerank_result ranks = cpu->pagerank(how, nobody), others = kernels->pagerank(how, nobody);
  EXPECT_EQ(wrong_in_pagerank(graph, how, ranks.scores), "");
  EXPECT_EQ(ranks.scores, others.scores);
  EXPECT_EQ(ranks.nrounds, others.nrounds);
}

struct shape {
  const char* name;
  std::uint64_t nvertices;
  test::edges edges;
};
std::vector<shape> shapes() {
  std::vector<shape> all{
      {"no vertex", 0, {}},
      {"no edge", 70, {}},
      {"an edge to itself", 1, {{0, 0, 3}}},
      {"two vertices, an edge twice", 2, {{0, 1, 5}, {0, 1, 2}}},
      {"a star", 1000, test::star_of(1000)},
      {"a path", 200, test::path_of(200)},
      {"two parts and isolated vertices", 300, test::drawn(100, 300, 5)},
      {"few edges", 500, test::drawn(500, 400, 6)},
      {"many edges", 400, test::drawn(400, 8000, 7)},
  };
  for (const weighted_edge& e : test::drawn(90, 250, 8)) all[6].edges.push_back({e.from + 150, e.to + 150, e.of});
  return all;
}

TEST(graphs, of_all_shapes_have_the_results_of_serial_algorithms) {
  const test::folder folder;
  for (const shape& one : shapes()) {
    for (const bool directed : {false, true}) {
      const bool wide = directed == (one.nvertices % 3 == 0);
      SCOPED_TRACE(testing::Message() << one.name << (directed ? ", directed" : "") << (wide ? ", wide" : ""));
      test::write_lists(folder.file("graph"), one.nvertices, one.edges, directed, wide, true);
      check(folder.file("graph"), one.nvertices > 3 ? 3 : 0);
    }
  }
}

TEST(graphs, that_are_long_have_as_many_rounds) {
  const test::folder folder;
  const std::uint64_t n = 500 * simt::test::effort;
  test::write_lists(folder.file("graph"), n, test::path_of(n), false, false, false);
  const graph_file graph(folder.file("graph"));
  const bfs_result found = make(false, graph)->bfs(0, nobody);
  EXPECT_EQ(wrong_in_bfs(graph, 0, found.depths), "");
  EXPECT_EQ(found.nrounds, n);
  EXPECT_EQ(found.nreached, n);
  const vertex far = GPUFS_ON_CUDA ? 0 : n / 8;  // fibers take a millisecond a round
  test::write_lists(folder.file("shorter"), n - far * 7, test::path_of(n - far * 7), false, false, false);
  const graph_file shorter(folder.file("shorter"));
  EXPECT_EQ(wrong_in_bfs(shorter, 0, make(true, shorter)->bfs(0, nobody).depths), "");
}

TEST(graphs, larger_than_the_cache_are_read_as_far_as_they_must) {
  const test::folder folder;
  test::edges edges = test::drawn(20'000, 300'000, 9);
  edges.push_back({20'000, 20'001, 1});
  test::write_lists(folder.file("graph"), 20'002, edges, false, false, false);
  const graph_file graph(folder.file("graph"));
  const auto kernels = make(true, graph);
  const bfs_result few = kernels->bfs(20'000, nobody), most = kernels->bfs(1, nobody);
  EXPECT_EQ(few.nreached, 2u);
  EXPECT_LE(few.bytes_read, 2u * 1024);
  EXPECT_EQ(wrong_in_bfs(graph, 1, most.depths), "");
  EXPECT_GT(most.bytes_read, graph.nedges());  // a quarter of its bytes: more than the cache has
  const pagerank_options how{.most_rounds = 2};
  const pagerank_result ranks = kernels->pagerank(how, nobody);
  EXPECT_EQ(ranks.scores, make(false, graph)->pagerank(how, nobody).scores);
  EXPECT_GT(ranks.bytes_read, graph.nedges() * 4);
}

// A file with one byte changed or cut off, and what both engines say of a search in it.
class damaged : public ::testing::Test {
 protected:
  void SetUp() override { test::write_lists(path(), 1000, test::drawn(1000, 5000, 10), false, false, true); }
  std::string path() const { return folder_.file("graph"); }
  void put(std::uint64_t at, std::uint32_t value) const {
    std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void expect(const std::string& words) const {
    for (const bool by_kernels : {false, true}) {
      const std::string told = test::said([&] {
        const graph_file graph(path());
        make(by_kernels, graph)->pagerank({}, nobody);
      });
      EXPECT_TRUE(told.starts_with(path() + ": ") && told.find(words) != std::string::npos)
          << told << ", by kernels: " << by_kernels;
    }
  }

  test::folder folder_;
};

TEST_F(damaged, header_is_no_header) {
  put(16, 999);
  expect("the header is damaged");
  put(0, 0);
  expect("is no graph; `gpufs graph synth`");
}
TEST_F(damaged, file_was_cut) {
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  expect("it was cut; copy or make it again");
  std::filesystem::resize_file(path(), 100);
  expect("is no graph: it is too short");
  std::filesystem::remove(path());
  expect("No such file or directory");
}
TEST_F(damaged, offsets_do_not_ascend) {
  put(sizeof(header) + 8 * 500, 0xffffff);
  expect("do not ascend");
}
TEST_F(damaged, list_leads_out_of_the_graph) {
  const graph_file graph(path());
  put(graph.targets_at(direction::out) + 4 * 4321, 1000);
  expect("a list has a vertex that is not there (the graph has 1000)");
}
TEST_F(damaged, file_is_cut_while_it_is_read) {
  for (const bool by_kernels : {false, true}) {
    SetUp();
    const graph_file graph(path());
    const auto engine = make(by_kernels, graph);
    std::filesystem::resize_file(path(), 16384);
    EXPECT_NE(test::said([&] { engine->components(nobody); }).find("was truncated, replaced or written"), std::string::npos)
        << by_kernels;
  }
}

TEST(results, that_are_wrong_are_found) {
  const test::folder folder;
  test::write_lists(folder.file("graph"), 4, {{0, 1, 2}, {1, 2, 2}}, false, false, true);
  const graph_file graph(folder.file("graph"));
  EXPECT_EQ(wrong_in_bfs(graph, 0, std::vector<std::uint32_t>{0, 1, 2, not_reached}), "");
  EXPECT_EQ(wrong_in_bfs(graph, 0, std::vector<std::uint32_t>{0, 1, 3, not_reached}),
            "vertex 2 is at depth 3, and should be at depth 2");
  EXPECT_EQ(wrong_in_bfs(graph, 0, std::vector<std::uint32_t>{0, 1, 2, 3}), "vertex 3 is at depth 3, and should be not reached");
  EXPECT_EQ(wrong_in_components(graph, std::vector<vertex>{0, 0, 0, 3}), "");
  EXPECT_EQ(wrong_in_components(graph, std::vector<vertex>{0, 0, 2, 3}),
            "vertex 2 is in component 2, and should be in component 0");
  EXPECT_EQ(wrong_in_components(graph, std::vector<vertex>{0, 0, 0, 0}),
            "vertex 3 is in component 0, and should be in component 3");
  EXPECT_EQ(wrong_in_paths(graph, 2, std::vector<std::uint64_t>{4, 2, 0, no_path}), "");
  EXPECT_EQ(wrong_in_paths(graph, 2, std::vector<std::uint64_t>{5, 2, 0, no_path}),
            "vertex 0 is at length 5, and should be at length 4");
  EXPECT_NE(wrong_in_pagerank(graph, {}, std::vector<float>{.25f, .25f, .25f, .25f}), "");
}

}  // namespace
}  // namespace gpufs::apps::graph
