// SPDX-License-Identifier: Apache-2.0
// The windows of open files that kernels may pull. The host writes them into device memory while kernels run.
#pragma once
#include <cstdint>
#include <mutex>
#include <set>

#include "file_memory.hpp"
#include "gpufs/file/detail/layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"

namespace gpufs {

class window_words {
 public:
  // The arguments must outlive it.
  window_words(const simt::device_memory& memory, const file_memory& files, const file_mount& mount)
      : memory_(memory), files_(files), mount_(mount) {}

  // Tells the device that more of the open file in this slot is registered. The slot number came from the device. False: not now,
  // because while_none_is_told runs. Windows smaller than a page are not told: all of a page must be registered.
  bool tell(std::uint32_t slot, const file_windows& what) {
    file_windows* const to = words_of(slot);
    if (to == nullptr || what.shift < mount_.cache.frames.page_shift) return true;
    const std::unique_lock hold(lock_, std::try_to_lock);
    if (!hold) return false;
    put_base(to, 0);  // see file_windows
    memory_.write_one(&to->registered, what.registered);
    memory_.write_one(&to->shift, what.shift);
    memory_.write_one(&to->handle, what.handle);
    told_.insert(to);
    put_base(to, what.pull_base);
    return true;
  }

  // Calls `trim`, which unmaps files, while the device is told of no window. A mapping must have no reader when it goes, because
  // another mapping may take its place: that of another file in the same slot, with other windows registered. Afterwards the device
  // must be told again of the windows of all open files.
  template <class Trim>
  void while_none_is_told(Trim trim) {
    const std::scoped_lock hold(lock_);
    for (file_windows* const words : told_) put_base(words, 0);
    told_.clear();
    trim();
  }

 private:
  // The words of a slot; null if there is no such slot.
  file_windows* words_of(std::uint32_t slot) const {
    file_block* const block = files_.block_of(slot);
    return block == nullptr ? nullptr : &block->windows[slot % block_slots];
  }
  void put_base(file_windows* of, std::uint64_t pull_base) const { memory_.write_one(&of->pull_base, pull_base); }

  const simt::device_memory& memory_;
  const file_memory& files_;
  const file_mount& mount_;
  std::mutex lock_;
  std::set<file_windows*> told_;  // the words with told windows; under the lock
};

}  // namespace gpufs
