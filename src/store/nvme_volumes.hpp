// SPDX-License-Identifier: Apache-2.0
// Stripes and mirrors that are made of an nvme_store's other files.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "gpufs/store/nvme_volume.hpp"
#include "nvme_bytes.hpp"

namespace gpufs::store {

class nvme_volumes {
 public:
  // The volume, of parts in the order that it names them. Throws std::invalid_argument, with the remedy in what(), where they do
  // not fit it, each other, or what volumes before it have.
  std::shared_ptr<nvme_bytes> make(const nvme_volume& as, const std::vector<std::shared_ptr<nvme_bytes>>& parts,
                                   simt::device_memory& memory);
  // The mirror of which a file that is no volume has bytes of a copy, which would not be equal any more once it is written; or "".
  std::string mirror_with(const nvme_bytes& file) const;

 private:
  struct taken {
    std::shared_ptr<nvme_column> column;
    std::string by;
    bool is_mirror;
  };
  const taken* who_has(const nvme_part& part) const;
  void check_parts(const nvme_volume& as, const std::vector<std::shared_ptr<nvme_bytes>>& parts);

  std::vector<taken> taken_;
};

}  // namespace gpufs::store
