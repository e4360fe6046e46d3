// SPDX-License-Identifier: Apache-2.0
// The host's reads of a mount's open files in device memory, while kernels may run.
#pragma once
#include <cstdint>
#include <vector>

#include "file_memory.hpp"
#include "gpufs/file/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs {

class slot_reader {
 public:
  // The arguments must outlive it.
  slot_reader(const simt::device_memory& memory, const file_memory& files, const file_mount& mount)
      : memory_(memory), files_(files), mount_(mount) {}

  static bool is_open(const file_slot& slot) { return slot_state{slot.word & 7u} == slot_state::open; }

  mount_words words() const { return memory_.read_one(mount_.words); }
  // Copies of the slots that were ever used. A slot's fields are read after its state, which comes first in it.
  std::vector<file_slot> used() const;
  // The counters of these slots, by slot.
  std::vector<file_counters> counts() const;

  // Called when the file has changed: the next page that a kernel wants to pull from it gives -ESTALE. The slot number came from
  // the device, so it is only a hint; the written word says which handle is meant.
  void mark_stale(std::uint32_t slot, std::uint32_t handle) const {
    if (file_block* const block = files_.block_of(slot)) memory_.write_one(&block->slots[slot % block_slots].stale, handle);
  }

 private:
  // Calls each(block, first, n) for each block: its first n slots, which are the slots from `first` on, were ever used.
  template <class Each>
  void each_block(Each each) const;

  const simt::device_memory& memory_;
  const file_memory& files_;
  const file_mount& mount_;
};

}  // namespace gpufs
