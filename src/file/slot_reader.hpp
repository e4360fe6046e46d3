// SPDX-License-Identifier: Apache-2.0
// What host code reads of a mount's open files in device memory, while kernels may run.
#pragma once
#include <cstdint>
#include <vector>

#include "gpufs/file/layout.hpp"
#include "gpufs/simt/device_memory.hpp"

namespace gpufs {

class slot_reader {
 public:
  // Both must outlive it.
  slot_reader(const simt::device_memory& memory, const file_mount& mount) : memory_(memory), mount_(mount) {}

  static bool is_open(const file_slot& slot) { return slot_state{slot.word & 7u} == slot_state::open; }

  mount_words words() const { return memory_.read_one(mount_.words); }
  // Copies of those that were ever used. A slot's fields are read after its state, which comes first in it.
  std::vector<file_slot> used() const { return memory_.read(mount_.files.slots, nused()); }
  // By slot, for the same.
  std::vector<file_counters> counts() const;

  // The file has changed underneath: the next page that a kernel wants to pull from it gives -ESTALE. The slot number came
  // from the device, so it is only a hint; the word says which handle is meant.
  void mark_stale(std::uint32_t slot, std::uint32_t handle) const {
    if (slot < mount_.files.nslots) memory_.write_one(&mount_.files.slots[slot].stale, handle);
  }

 private:
  std::uint64_t nused() const;

  const simt::device_memory& memory_;
  const file_mount& mount_;
};

}  // namespace gpufs
