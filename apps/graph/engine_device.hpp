// SPDX-License-Identifier: Apache-2.0
// The algorithms by kernels over gpufs, for the machine that the including source is compiled for.
#pragma once
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>

#include "apps/graph/bfs.hpp"
#include "apps/graph/components.hpp"
#include "apps/graph/engine.hpp"
#include "apps/graph/pagerank.hpp"
#include "apps/graph/shortest_paths.hpp"

namespace gpufs::apps::graph {
inline namespace GPUFS_MACHINE {

class device_engine final : public engine {
 public:
  device_engine(const graph_file& graph, const engine_options& options)
      : file_(graph),
        path_(std::filesystem::canonical(graph.path())),  // a mount follows no link out of its root
        fs_(path_.parent_path().string(), mount_options_of(options)),
        device_(fs_.device()),
        opened_(opened()),
        lists_(graph.read_offsets(direction::out),
               graph.is_directed() ? graph.read_offsets(direction::in) : std::vector<std::uint64_t>{}, device_,
               fs_.options().cache_nbytes / fs_.options().page_nbytes / 4) {}

  bfs_result bfs(vertex source, const progress_function& progress) override {
    bfs_result result;
    work(result, [&](auto& edges) {
      bfs_on_device all(lists_, edges, device_);
      result.nrounds = all.run(source, progress);
      result.depths = all.depths().read();
    });
    count_reached(result);
    return result;
  }
  components_result components(const progress_function& progress) override {
    components_result result;
    work(result, [&](auto& edges) {
      components_on_device all(lists_, edges, device_);
      result.nrounds = all.run(progress);
      result.components = all.components().read();
    });
    count_components(result);
    return result;
  }
  pagerank_result pagerank(const pagerank_options& how, const progress_function& progress) override {
    pagerank_result result;
    work(result, [&](auto& edges) {
      pagerank_on_device all(lists_, edges, device_);
      result.nrounds = all.run(how, progress);
      result.scores = all.scores().read();
      result.change = all.change();
    });
    return result;
  }
  paths_result shortest_paths(vertex source, std::uint64_t delta, const progress_function& progress) override {
    paths_result result;
    work(result, [&](auto& edges) {
      paths_on_device all(lists_, edges, device_);
      result.nrounds = all.run(source, delta, progress);
      result.lengths = all.lengths().read();
    });
    count_reached(result);
    return result;
  }

 private:
  static mount_options mount_options_of(const engine_options& options) {
    mount_options all;
    all.device = options.device;
    all.cache_nbytes = options.cache_nbytes;
    all.page_nbytes = options.page_nbytes;
    return all;
  }
  host_file opened() const {
    try {
      return {fs_, path_.filename().string()};
    } catch (const std::system_error& error) {
      file_.fail(error.code().message(), error.code().value());
    }
  }
  template <class Work>
  void work(run_facts& facts, const Work& run) {
    const simt::on_device here(device_);
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t before = fs_.counters().bytes_filled;
    try {
      edges_in_file edges(file_, fs_, opened_, lists_);
      run(edges);
    } catch (const read_failure& failure) {
      if (failure.error == -EDOM) file_.fail_target();
      if (failure.error == -ESTALE || failure.error == -ENXIO) file_.fail_changed();
      if (failure.error == -ENOMEM) file_.fail("no page of the cache was free for long: allow more by --cache-size", ENOMEM);
      file_.fail(std::string("cannot be read: ") + std::strerror(-failure.error), -failure.error);
    }
    facts.bytes_read = fs_.counters().bytes_filled - before;
    facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const graph_file& file_;
  std::filesystem::path path_;
  mount fs_;
  simt::platform& device_;
  host_file opened_;
  device_graph lists_;
};

inline std::unique_ptr<engine> make_engine(const graph_file& graph, const engine_options& options) {
  return std::make_unique<device_engine>(graph, options);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::apps::graph
