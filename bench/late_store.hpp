// SPDX-License-Identifier: Apache-2.0
// A store that answers each read after a time, as a disk does.
#pragma once
#include <sys/prctl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "gpufs/store/posix_store.hpp"

namespace bench {

// Gives each answer a time after it was asked for. As all wait equally long, one thread serves however many.
class late_answers {
 public:
  explicit late_answers(std::chrono::nanoseconds delay) : delay_(delay), thread_([this] { run(); }) {}
  ~late_answers() {
    {
      const std::scoped_lock hold(lock_);
      ends_ = true;
    }
    more_.notify_one();
    thread_.join();
  }
  late_answers(const late_answers&) = delete;
  late_answers& operator=(const late_answers&) = delete;

  void ask(std::chrono::steady_clock::time_point asked, gpufs::store::read_answer answer, std::int64_t result) {
    {
      const std::scoped_lock hold(lock_);
      waiting_.push_back({asked + delay_, answer, result});
      if (waiting_.size() != 1) return;
    }
    more_.notify_one();
  }

 private:
  struct late {
    std::chrono::steady_clock::time_point when;
    gpufs::store::read_answer answer;
    std::int64_t result;
  };

  void run() {
    constexpr std::chrono::microseconds awake(30);  // a sleep ends so much too late
    prctl(PR_SET_TIMERSLACK, 1UL);
    std::unique_lock hold(lock_);
    for (;;) {
      more_.wait(hold, [this] { return !waiting_.empty() || ends_; });
      if (waiting_.empty()) return;
      const late first = waiting_.front();
      waiting_.pop_front();
      hold.unlock();
      if (first.when - std::chrono::steady_clock::now() > awake) std::this_thread::sleep_until(first.when - awake);
      while (std::chrono::steady_clock::now() < first.when) std::this_thread::yield();
      first.answer(first.result);
      hold.lock();
    }
  }

  const std::chrono::nanoseconds delay_;
  std::mutex lock_;  // of what follows
  std::condition_variable more_;
  std::deque<late> waiting_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

class late_file final : public gpufs::store::open_file {
 public:
  late_file(std::unique_ptr<gpufs::store::open_file> inner, std::shared_ptr<late_answers> answers)
      : inner_(std::move(inner)), info_(inner_->info()), answers_(std::move(answers)) {
    info_.kind = gpufs::source_kind::staged;
    info_.pull_base = nullptr;
  }
  const gpufs::store::file_info& info() const override { return info_; }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override { return inner_->pread(dst, offset); }
  // The bytes come now, from memory.
  bool begin_pread(std::span<std::byte> dst, std::int64_t offset, gpufs::store::read_answer answer) override {
    const auto asked = std::chrono::steady_clock::now();
    answers_->ask(asked, answer, inner_->pread(dst, offset));
    return true;
  }

 private:
  std::unique_ptr<gpufs::store::open_file> inner_;
  gpufs::store::file_info info_;
  std::shared_ptr<late_answers> answers_;
};

class late_store final : public gpufs::store::store {
 public:
  late_store(const std::string& folder, std::chrono::nanoseconds delay)
      : inner_(folder), answers_(std::make_shared<late_answers>(delay)) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    auto file = inner_.open(path, flags, error);
    return file == nullptr ? nullptr : std::make_unique<late_file>(std::move(file), answers_);
  }
  std::string_view name() const override { return "late"; }

 private:
  gpufs::store::posix_store inner_;
  std::shared_ptr<late_answers> answers_;
};

}  // namespace bench
