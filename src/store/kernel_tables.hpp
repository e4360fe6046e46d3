// SPDX-License-Identifier: Apache-2.0
// Layouts of files for kernels, in pinned memory. An open comes while kernels run, and CUDA may give such memory only when these
// have ended (docs/design/nvme.md, "Tables in pinned memory"): it is taken before, by who answers no kernel.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "../nvme/dma_region.hpp"
#include "gpufs/nvme/detail/file_layout.hpp"

namespace gpufs::store {

// Of files that never change, by a number of each. Any host thread.
class kernel_tables {
 public:
  // most_nbytes: of pinned memory, of which the first part is taken here. Throws std::system_error if there can be no thread.
  kernel_tables(simt::platform& machine, std::uint64_t most_nbytes);
  // Waits for running kernels.
  ~kernel_tables();

  // The layout of the file that has these extents of `base`. It stays after the file was closed, for the next open, until give_up.
  // Null where there is no room, or none yet. Waits for no kernel.
  std::shared_ptr<const nvme::file_layout> make(std::uint64_t number, const nvme::file_layout& base,
                                                const std::vector<nvme::file_extent>& extents);
  // Whether there was no room that give_up may make.
  bool lacks_room() const;
  // Forgets what nobody has, and frees chunks that are empty by then: waits for running kernels.
  void give_up();

 private:
  struct chunk {
    chunk(simt::platform& machine, std::size_t nbytes) : memory(machine, nbytes) {}
    std::size_t left() const { return memory.nbytes() - used; }
    nvme::pinned_memory memory;
    std::size_t used = 0;
  };
  // All with the mutex held.
  std::shared_ptr<chunk> room_for(std::size_t nbytes);
  bool is_mostly_used() const;
  void take(std::unique_lock<std::mutex>* held, std::uint64_t nbytes);  // which lets go of it meanwhile
  void run();

  simt::platform& machine_;
  const std::uint64_t most_nbytes_;
  mutable std::mutex mutex_;  // all below
  std::condition_variable wake_;
  std::vector<std::shared_ptr<chunk>> chunks_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const nvme::file_layout>> made_;
  std::uint64_t nbytes_ = 0;  // of all chunks, and of those that are being taken or freed
  std::uint64_t wanted_ = 0;  // of the next chunk, at least; 0: none is wanted
  bool lacks_room_ = false;
  bool ends_ = false;
  std::thread taker_;
};

}  // namespace gpufs::store
