// SPDX-License-Identifier: Apache-2.0
// Which open files no kernel has read for a while, by looks at their counters.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "gpufs/file/detail/layout.hpp"
#include "gpufs/service/detail/service.hpp"

namespace gpufs {

class unread_files {
 public:
  // So many looks at a file that find nothing new make it unread: not files that are read by turns. It is said again after as many,
  // since it costs readers of other files something to ask, in vain if others need what is asked for.
  static constexpr unsigned enough_looks = 4;

  // Looks cost the end of a launch something, and launches may be short.
  static constexpr std::chrono::milliseconds between_looks{25};
  bool is_due() const { return std::chrono::steady_clock::now() >= next_look_; }

  // Looks at these open files, with the counters of all slots, and the mount's of reads past the cache, which no file counts.
  // Handles of those that are unread, longest first. A file that is not among them is forgotten.
  std::vector<std::uint32_t> look(std::span<const service::service::reads_by_windows> open, std::span<const file_counters> counts,
                                  std::uint64_t past_cache) {
    next_look_ = std::chrono::steady_clock::now() + between_looks;
    std::map<std::uint32_t, seen> now;
    std::vector<std::pair<unsigned, std::uint32_t>> unread;
    for (const auto [slot, handle] : open) {
      if (slot >= counts.size()) continue;
      seen of{counts[slot].faults + counts[slot].bytes_read + counts[slot].bytes_filled + past_cache, 0};
      const auto before = seen_.find(handle);
      if (before != seen_.end() && before->second.work == of.work) of.nlooks = before->second.nlooks + 1;
      now.emplace(handle, of);
      if (of.nlooks != 0 && of.nlooks % enough_looks == 0) unread.emplace_back(of.nlooks, handle);
    }
    seen_ = std::move(now);
    std::stable_sort(unread.begin(), unread.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::uint32_t> handles;
    handles.reserve(unread.size());
    for (const auto& [nlooks, handle] : unread) handles.push_back(handle);
    return handles;
  }

 private:
  struct seen {
    std::uint64_t work;
    unsigned nlooks;  // since it has changed
  };
  std::map<std::uint32_t, seen> seen_;  // by handle
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace gpufs
