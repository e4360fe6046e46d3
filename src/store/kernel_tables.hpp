// SPDX-License-Identifier: Apache-2.0
// Layouts of files for kernels, in pinned memory: an open comes while kernels run, and pinned memory is what can be had then.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../nvme/dma_region.hpp"
#include "gpufs/nvme/detail/file_layout.hpp"

namespace gpufs::store {

// Of files that never change, by a number of each. Any host thread.
class kernel_tables {
 public:
  // most_nbytes: of pinned memory.
  kernel_tables(simt::platform& machine, std::uint64_t most_nbytes);

  // The layout of the file that has these extents of `base`. It stays after the file was closed, for the next open, until give_up.
  // Null where there is no room.
  std::shared_ptr<const nvme::file_layout> make(std::uint64_t number, const nvme::file_layout& base,
                                                const std::vector<nvme::file_extent>& extents);
  bool lacks_room() const;
  // Forgets what nobody has, and frees what is empty by then: waits for running kernels.
  void give_up();

 private:
  struct chunk {
    chunk(simt::platform& machine, std::size_t nbytes) : memory(machine, nbytes) {}
    nvme::pinned_memory memory;
    std::size_t used = 0;
  };
  std::shared_ptr<chunk> room_for(std::size_t nbytes);

  simt::platform& machine_;
  const std::uint64_t most_nbytes_;
  mutable std::mutex mutex_;  // all below
  std::vector<std::shared_ptr<chunk>> chunks_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const nvme::file_layout>> made_;
  std::uint64_t nbytes_ = 0;  // of all chunks
  bool lacks_room_ = false;
};

}  // namespace gpufs::store
