// SPDX-License-Identifier: Apache-2.0
#include "apps/graph/engine_device.hpp"
#include "apps/graph/synth_device.hpp"

namespace gpufs::apps::graph {

std::unique_ptr<engine> make_engine_cuda(const graph_file& graph, const engine_options& options) {
  return make_engine(graph, options);
}
std::unique_ptr<list_builder> make_list_builder_cuda(const synth_options& of, std::uint64_t n, int device) {
  return make_device_list_builder(of, n, device);
}

}  // namespace gpufs::apps::graph
