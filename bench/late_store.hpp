// SPDX-License-Identifier: Apache-2.0
// A store that answers each read after a time, as a disk does.
#pragma once
#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "gpufs/store/posix_store.hpp"

namespace bench {

// Reads of a file take a time, however many are under way: each has a host thread.
class late_file final : public gpufs::store::open_file {
 public:
  late_file(std::unique_ptr<gpufs::store::open_file> inner, std::chrono::nanoseconds delay)
      : inner_(std::move(inner)), info_(inner_->info()), delay_(delay) {
    info_.kind = gpufs::source_kind::staged;
    info_.pull_base = nullptr;
  }
  const gpufs::store::file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    const auto until = std::chrono::steady_clock::now() + delay_;
    const std::int64_t n = inner_->pread(dst, offset);
    prctl(PR_SET_TIMERSLACK, 1UL);
    std::this_thread::sleep_until(until);
    return n;
  }

 private:
  std::unique_ptr<gpufs::store::open_file> inner_;
  gpufs::store::file_info info_;
  std::chrono::nanoseconds delay_;
};
class late_store final : public gpufs::store::store {
 public:
  late_store(const std::string& folder, std::chrono::nanoseconds delay) : inner_(folder), delay_(delay) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto file = inner_.open(path, flags, error);
    return file == nullptr ? nullptr : std::make_unique<late_file>(std::move(file), delay_);
  }
  std::string_view name() const override { return "late"; }

 private:
  gpufs::store::posix_store inner_;
  std::chrono::nanoseconds delay_;
};

}  // namespace bench
