// SPDX-License-Identifier: Apache-2.0
#include "apps/vectors/engine_device.hpp"

namespace gpufs::apps::vectors {

std::unique_ptr<engine> make_engine_simt(const index_file& index, const engine_options& options) {
  return std::make_unique<device_engine>(index, options);
}
std::unique_ptr<quantizer> make_quantizer_simt(std::span<const std::byte> centroids, std::uint32_t nlists, std::uint32_t dim,
                                               const engine_options& options) {
  return std::make_unique<device_quantizer>(centroids, nlists, dim, options);
}

}  // namespace gpufs::apps::vectors
