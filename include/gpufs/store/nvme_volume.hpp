// SPDX-License-Identifier: Apache-2.0
// A file of an nvme_store that is made of others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gpufs::store {

enum class nvme_volume_kind : std::uint32_t {
  stripe,  // units of the file go to the parts in turn; as long as the least part, in whole units, times their number
  mirror,  // each part has all bytes. Units are read from the parts in turn, and from another one where that fails
};

struct nvme_volume {
  std::string name;  // of the file, in the root
  nvme_volume_kind kind = nvme_volume_kind::stripe;
  // Names of the store's namespaces and partitions, as "n1p2" or "c1n1": 1 to 32 of a stripe, 2 to 32 of a mirror, which are
  // equally long. Of a stripe they may all be mirrors instead, of as many parts each, which come before it.
  std::vector<std::string> parts;
  std::uint32_t unit_nbytes = 64 << 10;  // a power of two, 4,096 and a block of each part at least
};

}  // namespace gpufs::store
