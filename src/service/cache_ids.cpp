// SPDX-License-Identifier: Apache-2.0
#include "cache_ids.hpp"

namespace gpufs::service {

std::uint32_t cache_ids::id_of(const store::file_info& file) {
  const known now{{file.device, file.inode}, file.nbytes, file.mtime_ns, file.ctime_ns, file.settled, 0};
  const std::scoped_lock hold(lock_);
  const auto found = files_.find(now.file);
  if (found != files_.end()) {
    const known& before = *found->second;
    const bool same = before.nbytes == now.nbytes && before.mtime_ns == now.mtime_ns && before.ctime_ns == now.ctime_ns;
    by_use_.splice(by_use_.begin(), by_use_, found->second);
    if (same && before.settled && now.settled) return before.id;
  }
  if (next_ > last_id) return 0;
  if (found != files_.end()) {
    by_use_.front() = now;
  } else {
    by_use_.push_front(now);
    files_.emplace(now.file, by_use_.begin());
    if (files_.size() > capacity_) {
      files_.erase(by_use_.back().file);
      by_use_.pop_back();
    }
  }
  return by_use_.front().id = next_++;
}

}  // namespace gpufs::service
