// SPDX-License-Identifier: Apache-2.0
// Which windows of open files kernels may pull, as the host writes it into device memory while they run.
#pragma once
#include <cstdint>
#include <mutex>
#include <set>

#include "gpufs/file/layout.hpp"
#include "gpufs/simt/device_memory.hpp"

namespace gpufs {

class window_words {
 public:
  // Both must outlive it.
  window_words(const simt::device_memory& memory, const file_mount& mount) : memory_(memory), mount_(mount) {}

  // More of the file in this slot is registered; it is open. The slot number came from the device. False: not now,
  // while_none_is_told. Of windows that are smaller than a page it tells nothing: all of a page must be registered.
  bool tell(std::uint32_t slot, const file_windows& what) {
    if (slot >= mount_.files.nslots || what.shift < mount_.cache.frames.page_shift) return true;
    const std::unique_lock hold(lock_, std::try_to_lock);
    if (!hold) return false;
    file_windows* const to = mount_.files.windows + slot;
    put_base(slot, 0);  // see file_windows
    memory_.write_one(&to->registered, what.registered);
    memory_.write_one(&to->shift, what.shift);
    told_.insert(slot);
    put_base(slot, what.pull_base);
    return true;
  }

  // Before a mapping goes nobody may read it: another may come to lie where it was, of another file in the same slot, of which
  // other windows are registered. Who has a file open must be told again afterwards.
  template <class Trim>
  void while_none_is_told(Trim trim) {
    const std::scoped_lock hold(lock_);
    for (const std::uint32_t slot : told_) put_base(slot, 0);
    told_.clear();
    trim();
  }

 private:
  void put_base(std::uint32_t slot, std::uint64_t pull_base) const {
    memory_.write_one(&mount_.files.windows[slot].pull_base, pull_base);
  }

  const simt::device_memory& memory_;
  const file_mount& mount_;
  std::mutex lock_;
  std::set<std::uint32_t> told_;  // slots, under the lock
};

}  // namespace gpufs
