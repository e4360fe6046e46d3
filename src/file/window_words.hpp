// SPDX-License-Identifier: Apache-2.0
// Which windows of open files kernels may pull, as the host writes it into device memory while they run.
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
  // All must outlive it.
  window_words(const simt::device_memory& memory, const file_memory& files, const file_mount& mount)
      : memory_(memory), files_(files), mount_(mount) {}

  // More of the file in this slot is registered; it is open. The slot number came from the device. False: not now,
  // while_none_is_told. Of windows that are smaller than a page it tells nothing: all of a page must be registered.
  bool tell(std::uint32_t slot, const file_windows& what) {
    file_windows* const to = words_of(slot);
    if (to == nullptr || what.shift < mount_.cache.frames.page_shift) return true;
    const std::unique_lock hold(lock_, std::try_to_lock);
    if (!hold) return false;
    put_base(to, 0);  // see file_windows
    memory_.write_one(&to->registered, what.registered);
    memory_.write_one(&to->shift, what.shift);
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
  // Of a slot; null where there is none.
  file_windows* words_of(std::uint32_t slot) const {
    file_block* const block = files_.block_of(slot);
    return block == nullptr ? nullptr : &block->windows[slot % block_slots];
  }
  void put_base(file_windows* of, std::uint64_t pull_base) const { memory_.write_one(&of->pull_base, pull_base); }

  const simt::device_memory& memory_;
  const file_memory& files_;
  const file_mount& mount_;
  std::mutex lock_;
  std::set<file_windows*> told_;  // of which slots; under the lock
};

}  // namespace gpufs
