// SPDX-License-Identifier: Apache-2.0
// gpufs._graph: what `gpufs graph` runs. The interpreter's lock is not held while work is done. Memory is named by its address, and
// Python keeps it alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/graph/engine.hpp"
#include "apps/graph/text_edges.hpp"
#include "apps/graph/verify.hpp"
#include "apps/python_support.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::graph;

namespace {

std::unique_ptr<engine> make_engine(const std::string& name, const graph_file& of, const engine_options& options) {
  check_engine(name);
  if (name == "cpu") return make_engine_cpu(of, options);
#if GPUFS_WITH_CUDA
  if (name == "gpu") return make_engine_cuda(of, options);
#endif
  return make_engine_simt(of, options);
}

nb::dict to_dict(const build_report& report) {
  nb::dict d;
  d["nvertices"] = report.nvertices;
  d["nedges"] = report.nedges;
  d["ndropped"] = report.ndropped;
  d["nranges"] = report.nranges;
  d["file_nbytes"] = report.file_nbytes;
  return d;
}
nb::dict to_dict(const run_facts& facts) {
  nb::dict d;
  d["rounds"] = facts.nrounds;
  d["seconds"] = facts.seconds;
  d["bytes_read"] = facts.bytes_read;
  return d;
}

template <class T>
nb::ndarray<nb::numpy, T, nb::shape<-1>> to_numpy(std::vector<T>&& values) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::shape<-1>>(kept->data(), {kept->size()}, owner);
}
// Of memory that Python keeps.
template <class T>
std::span<const T> values_at(std::uintptr_t address, std::size_t n) {
  return {reinterpret_cast<const T*>(address), n};
}

nb::dict info_of(const graph_file& graph) {
  const header& h = graph.head();
  nb::dict d;
  d["nvertices"] = h.nvertices;
  d["nedges"] = h.nedges;
  d["directed"] = graph.is_directed();
  d["weights"] = graph.has_weights();
  d["target_nbytes"] = h.target_nbytes;
  d["file_nbytes"] = h.file_nbytes;
  d["made_by"] =
      nb::steal(PyUnicode_DecodeFSDefaultAndSize(h.made_by, static_cast<Py_ssize_t>(strnlen(h.made_by, sizeof h.made_by))));
  return d;
}
// The first vertex that leads anywhere, or the first one.
std::uint64_t first_source(const graph_file& graph) {
  const unlocked others;
  const std::vector<std::uint64_t> offsets = graph.read_offsets(direction::out);
  const auto at = std::upper_bound(offsets.begin(), offsets.end(), std::uint64_t{0});
  return at == offsets.end() ? 0 : static_cast<std::uint64_t>(at - offsets.begin() - 1);
}

// Its algorithms; the graph is kept.
class engine_of_graph {
 public:
  engine_of_graph(const graph_file& graph, const std::string& name, const engine_options& options) {
    const unlocked others;
    engine_ = make_engine(name, graph, options);
  }
  ~engine_of_graph() {
    const unlocked others;
    engine_.reset();
  }
  engine_of_graph(const engine_of_graph&) = delete;
  engine_of_graph& operator=(const engine_of_graph&) = delete;

  // work(engine) gives a result.
  template <class Work>
  auto run(const Work& work) const {
    const unlocked others;
    return work(*engine_);
  }

 private:
  std::unique_ptr<engine> engine_;
};

nb::dict synthesize(const nb::object& path, const std::string& kind, unsigned scale, std::uint64_t nedges, std::uint64_t seed,
                    bool weights, bool wide, const std::string& engine, unsigned threads, std::uint64_t memory_nbytes, int device,
                    const std::string& made_by, const nb::object& progress) {
  check_engine(engine);
  const synth_options of{kind == "kron" ? synth_kind::kron : synth_kind::urand, scale, seed};
  const std::string name = to_path(path);
  const auto told = to_progress<const char*>(progress);
  const build_report report = [&] {
    const unlocked others;
    const auto edges = make_synthetic_edges(of, nedges, weights);
    std::unique_ptr<list_builder> lists;
    if (engine == "cpu") lists = make_list_builder_cpu(*edges, threads);
    if (engine == "simt") lists = make_list_builder_simt(of, nedges, device);
#if GPUFS_WITH_CUDA
    if (engine == "gpu") lists = make_list_builder_cuda(of, nedges, device);
#endif
    return build_graph(name, edges->nvertices(), *lists, {false, wide, weights, memory_nbytes, threads, made_by}, told);
  }();
  return to_dict(report);
}

// Where the edges are to come from is `open`'s answer: a text_graph.
template <class Open>
nb::dict import(const nb::object& path, bool undirected, bool wide, unsigned threads, std::uint64_t memory_nbytes,
                const std::string& made_by, const nb::object& progress, const Open& open) {
  const std::string name = to_path(path);
  const auto told = to_progress<const char*>(progress);
  const build_report report = [&] {
    const unlocked others;
    const text_graph from = open(told);
    const auto lists = make_list_builder_cpu(*from.edges, threads);
    const bool directed = !undirected && !from.is_symmetric;
    return build_graph(name, from.edges->nvertices(), *lists,
                       {directed, wide, from.edges->has_weights(), memory_nbytes, threads, made_by}, told);
  }();
  return to_dict(report);
}

}  // namespace

NB_MODULE(_graph, m) {
  m.doc() = "Graphs in files, for `gpufs graph`.";
  translate_errors();
  m.attr("MAGIC") = nb::bytes(magic, sizeof magic);
  m.def("synthesize", &synthesize, "path"_a, "kind"_a, nb::kw_only(), "scale"_a, "nedges"_a, "seed"_a, "weights"_a, "wide"_a,
        "engine"_a, "threads"_a, "memory_nbytes"_a, "device"_a, "made_by"_a, "progress"_a,
        "Writes a graph of a generator (kron, urand): what it has. progress(stage, done, total).");
  m.def(
      "import_text",
      [](const nb::object& path, const nb::object& from, bool weights, bool undirected, bool wide, unsigned threads,
         std::uint64_t memory_nbytes, const std::string& made_by, const nb::object& progress) {
        const std::string text = to_path(from);
        return import(path, undirected, wide, threads, memory_nbytes, made_by, progress, [&](const auto& told) {
          return open_text_edges(text, weights, threads,
                                 [&](std::uint64_t done, std::uint64_t total) { told("reading text", done, total); });
        });
      },
      "path"_a, "text"_a, nb::kw_only(), "weights"_a, "undirected"_a, "wide"_a, "threads"_a, "memory_nbytes"_a, "made_by"_a,
      "progress"_a, "Writes a graph of a list of edges, or of a Matrix Market file.");
  m.def(
      "import_csr",
      [](const nb::object& path, std::uintptr_t indptr, std::size_t noffsets, std::uintptr_t indices, std::size_t nindices,
         std::uintptr_t weights, const std::string& name, bool undirected, bool wide, unsigned threads, std::uint64_t memory_nbytes,
         const std::string& made_by, const nb::object& progress) {
        return import(path, undirected, wide, threads, memory_nbytes, made_by, progress, [&](const auto&) {
          return text_graph{make_csr_edges(values_at<std::int64_t>(indptr, noffsets), values_at<std::int64_t>(indices, nindices),
                                           values_at<std::int64_t>(weights, weights == 0 ? 0 : nindices), name),
                            false};
        });
      },
      "path"_a, "indptr"_a, "noffsets"_a, "indices"_a, "nindices"_a, "weights"_a, "name"_a, nb::kw_only(), "undirected"_a, "wide"_a,
      "threads"_a, "memory_nbytes"_a, "made_by"_a, "progress"_a,
      "Writes a graph of CSR arrays of int64 in memory; weights: 0, or the address of as many as indices.");

  nb::class_<graph_file>(m, "Graph", "A graph's file, open.")
      .def(
          "__init__", [](graph_file* self, const nb::object& path) { new (self) graph_file(to_path(path)); }, "path"_a)
      .def("info", &info_of, "What its header says.")
      .def("first_source", &first_source, "The first vertex that leads anywhere, or 0.")
      .def(
          "wrong_in_bfs",
          [](const graph_file& graph, vertex source, std::uintptr_t depths) {
            const unlocked others;
            return wrong_in_bfs(graph, source, values_at<std::uint32_t>(depths, graph.nvertices()));
          },
          "source"_a, "depths"_a, "What is wrong in them, or ''.")
      .def(
          "wrong_in_components",
          [](const graph_file& graph, std::uintptr_t components) {
            const unlocked others;
            return wrong_in_components(graph, values_at<vertex>(components, graph.nvertices()));
          },
          "components"_a)
      .def(
          "wrong_in_pagerank",
          [](const graph_file& graph, double damping, double tolerance, std::uintptr_t scores) {
            const unlocked others;
            return wrong_in_pagerank(graph, {damping, tolerance, 0}, values_at<float>(scores, graph.nvertices()));
          },
          "damping"_a, "tolerance"_a, "scores"_a)
      .def(
          "wrong_in_paths",
          [](const graph_file& graph, vertex source, std::uintptr_t lengths) {
            const unlocked others;
            return wrong_in_paths(graph, source, values_at<std::uint64_t>(lengths, graph.nvertices()));
          },
          "source"_a, "lengths"_a);

  nb::class_<engine_of_graph>(m, "Engine", "What runs algorithms on a graph.")
      .def(
          "__init__",
          [](engine_of_graph* self, const graph_file& graph, const std::string& name, unsigned threads, std::uint64_t cache_nbytes,
             std::uint32_t page_nbytes, int device) {
            new (self) engine_of_graph(graph, name, {threads, cache_nbytes, page_nbytes, device});
          },
          nb::keep_alive<1, 2>(), "graph"_a, "name"_a, nb::kw_only(), "threads"_a, "cache_nbytes"_a, "page_nbytes"_a, "device"_a)
      .def(
          "bfs",
          [](const engine_of_graph& of, vertex source, const nb::object& progress) {
            const auto told = to_progress(progress);
            bfs_result result = of.run([&](engine& by) { return by.bfs(source, told); });
            nb::dict facts = to_dict(result);
            facts["reached"] = result.nreached;
            return nb::make_tuple(to_numpy(std::move(result.depths)), facts);
          },
          "source"_a, "progress"_a, "Each vertex's number of edges from the source (uint32; 2^32 - 1: not reached), and facts.")
      .def(
          "components",
          [](const engine_of_graph& of, const nb::object& progress) {
            const auto told = to_progress(progress);
            components_result result = of.run([&](engine& by) { return by.components(told); });
            nb::dict facts = to_dict(result);
            facts["components"] = result.ncomponents;
            facts["largest"] = result.largest;
            return nb::make_tuple(to_numpy(std::move(result.components)), facts);
          },
          "progress"_a, "The least vertex of each vertex's component (uint32), and facts.")
      .def(
          "pagerank",
          [](const engine_of_graph& of, double damping, double tolerance, unsigned most_rounds, const nb::object& progress) {
            const auto told = to_progress(progress);
            pagerank_result result = of.run([&](engine& by) { return by.pagerank({damping, tolerance, most_rounds}, told); });
            nb::dict facts = to_dict(result);
            facts["change"] = result.change;
            return nb::make_tuple(to_numpy(std::move(result.scores)), facts);
          },
          "damping"_a, "tolerance"_a, "most_rounds"_a, "progress"_a, "Each vertex's score (float32), and facts.")
      .def(
          "shortest_paths",
          [](const engine_of_graph& of, vertex source, std::uint64_t delta, const nb::object& progress) {
            const auto told = to_progress(progress);
            paths_result result = of.run([&](engine& by) { return by.shortest_paths(source, delta, told); });
            nb::dict facts = to_dict(result);
            facts["reached"] = result.nreached;
            return nb::make_tuple(to_numpy(std::move(result.lengths)), facts);
          },
          "source"_a, "delta"_a, "progress"_a,
          "Of each vertex how long the shortest path from the source is (uint64; 2^64 - 1: there is none), and facts.");
}
