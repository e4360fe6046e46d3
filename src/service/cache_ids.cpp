// SPDX-License-Identifier: Apache-2.0
#include "cache_ids.hpp"

namespace gpufs::service {

std::uint32_t cache_ids::id_of(const store::file_info& file) {
  const known now{{file.device, file.inode, file.begin}, file.nbytes, file.mtime_ns, file.ctime_ns, file.settled, 0};
  part& mine = parts_[hash{}(now.file) % parts_.size()];
  const std::scoped_lock hold(mine.lock);
  const auto found = mine.files.find(now.file);
  if (found != mine.files.end()) {
    const known& before = *found->second;
    const bool same = before.nbytes == now.nbytes && before.mtime_ns == now.mtime_ns && before.ctime_ns == now.ctime_ns;
    mine.by_use.splice(mine.by_use.begin(), mine.by_use, found->second);
    if (same && before.settled && now.settled) return before.id;
  }
  const std::uint32_t fresh = next_id();
  if (fresh == 0) return 0;
  if (found != mine.files.end()) {
    mine.by_use.front() = now;
  } else {
    mine.by_use.push_front(now);
    mine.files.emplace(now.file, mine.by_use.begin());
    if (mine.files.size() > part_capacity_) {
      mine.files.erase(mine.by_use.back().file);
      mine.by_use.pop_back();
    }
  }
  return mine.by_use.front().id = fresh;
}

std::uint32_t cache_ids::next_id() {
  const std::uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
  return id <= last_id ? static_cast<std::uint32_t>(id) : 0;
}

}  // namespace gpufs::service
