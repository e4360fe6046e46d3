// SPDX-License-Identifier: Apache-2.0
// The service's bounded log, and counts of answers by errno.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "gpufs/service/detail/service.hpp"

namespace gpufs::service {

class error_log {
 public:
  static constexpr std::size_t capacity = 1024;

  // Adds an entry; if it equals the last one, only counts it. error: a positive errno, 0 for a notice.
  void add(std::string_view operation, std::string_view path, int error, std::string_view text);
  // Counts an answer of -error.
  void count(int error) {
    const bool known = error > 0 && static_cast<std::size_t>(error) < counts_.size();
    counts_[known ? static_cast<std::size_t>(error) : 0].fetch_add(1, std::memory_order_relaxed);
  }

  std::vector<log_entry> entries() const;
  std::map<int, std::uint64_t> counts() const;

 private:
  mutable std::mutex lock_;
  std::deque<log_entry> entries_;
  std::array<std::atomic<std::uint64_t>, 256> counts_{};  // [0]: errors that are no errno
};

// "2026-01-31T12:34:56.789Z open 'a/b': No such file or directory (text), 3 times"
std::string to_line(const log_entry& entry);

}  // namespace gpufs::service
