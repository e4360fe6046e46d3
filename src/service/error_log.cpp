// SPDX-License-Identifier: Apache-2.0
#include "error_log.hpp"

#include <time.h>

#include <cstdio>
#include <system_error>

namespace gpufs::service {

void error_log::add(std::string_view operation, std::string_view path, int error, std::string_view text) {
  const auto now = std::chrono::system_clock::now();
  const std::scoped_lock hold(lock_);
  if (!entries_.empty()) {
    log_entry& last = entries_.back();
    if (last.error == error && last.operation == operation && last.path == path && last.text == text) {
      ++last.count;
      last.time = now;
      return;
    }
  }
  if (entries_.size() == capacity) entries_.pop_front();
  entries_.push_back({now, std::string(operation), std::string(path), error, std::string(text), 1});
}

std::vector<log_entry> error_log::entries() const {
  const std::scoped_lock hold(lock_);
  return {entries_.begin(), entries_.end()};
}

std::map<int, std::uint64_t> error_log::counts() const {
  std::map<int, std::uint64_t> counts;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (const auto n = counts_[i].load(std::memory_order_relaxed); n != 0) counts[static_cast<int>(i)] = n;
  }
  return counts;
}

std::string to_line(const log_entry& entry) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(entry.time.time_since_epoch()).count();
  const time_t seconds = since / 1000;
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char date[64], stamp[80];
  std::strftime(date, sizeof date, "%FT%T", &parts);
  std::snprintf(stamp, sizeof stamp, "%s.%03dZ ", date, static_cast<int>(since % 1000));
  std::string line = stamp + entry.operation;
  if (!entry.path.empty()) line += " '" + entry.path + "'";
  line += ": ";
  if (entry.error != 0) {
    line += std::generic_category().message(entry.error);
    if (!entry.text.empty()) line += " (" + entry.text + ")";
  } else {
    line += entry.text;
  }
  if (entry.count > 1) line += ", " + std::to_string(entry.count) + " times";
  return line;
}

}  // namespace gpufs::service
