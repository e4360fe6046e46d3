// SPDX-License-Identifier: Apache-2.0
#include "apps/query/engine_device.hpp"

namespace gpufs::apps::query {

std::unique_ptr<engine> make_engine_simt(const query& of, const engine_options& options) { return make_engine(of, options); }

}  // namespace gpufs::apps::query
