// SPDX-License-Identifier: Apache-2.0
// Where stores answer the reads that one worker has begun (store::open_file::begin_pread).
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "gpufs/store/store.hpp"

namespace gpufs::service {

// Answers lie here until the worker takes them. All that who answers does here is done under the lock: a worker that has seen the
// last answer has had the lock after that, and may end.
class read_answers final : public store::read_answer::taker {
 public:
  static constexpr std::uint32_t depth = 256;  // reads under way

  read_answers() {
    came_.reserve(depth);
    taken_.reserve(depth);
  }

  // The worker calls these. `place`, below depth, is that of a read, of which one may be under way there.
  store::read_answer expect(std::uint32_t place) {
    const std::scoped_lock hold(lock_);
    turns_[place] = ++turn_;
    return {*this, turn_ * depth + place};
  }
  // The read was not begun: whatever is answered to it is dropped.
  void forget(std::uint32_t place) {
    const std::scoped_lock hold(lock_);
    turns_[place] = 0;
    std::erase_if(came_, [&](const auto& one) { return one.first == place; });
  }
  // Calls each(place, result) for every answer that is there. Returns how many.
  template <class Each>
  unsigned reap(Each each) {
    if (ncame_.load(std::memory_order_relaxed) == 0) return 0;  // a hint: what counts is looked at under the lock
    {
      const std::scoped_lock hold(lock_);
      taken_.swap(came_);
      ncame_.store(0, std::memory_order_relaxed);
    }
    for (const auto& [place, result] : taken_) each(place, result);
    const auto n = static_cast<unsigned>(taken_.size());
    taken_.clear();
    return n;
  }
  // Waits for an answer, at most timeout_ns.
  void wait(std::uint64_t timeout_ns) {
    std::unique_lock hold(lock_);
    sleeps_ = true;
    one_.wait_for(hold, std::chrono::nanoseconds(timeout_ns), [this] { return !came_.empty(); });
    sleeps_ = false;
  }

  // By read_answer; any thread. Drops an answer that comes once more.
  void take(std::uint64_t tag, std::int64_t result) noexcept override {
    const auto place = static_cast<std::uint32_t>(tag % depth);
    const std::scoped_lock hold(lock_);
    if (turns_[place] != tag / depth) return;
    turns_[place] = 0;
    came_.emplace_back(place, result);  // has room: one for each place
    ncame_.store(static_cast<std::uint32_t>(came_.size()), std::memory_order_relaxed);
    if (std::exchange(sleeps_, false)) one_.notify_one();
  }

 private:
  std::atomic<std::uint32_t> ncame_{0};
  std::mutex lock_;  // of what follows, but taken_
  std::condition_variable one_;
  bool sleeps_ = false;
  std::uint64_t turn_ = 0;
  std::array<std::uint64_t, depth> turns_{};  // of the read under way there; 0: none
  std::vector<std::pair<std::uint32_t, std::int64_t>> came_, taken_;
};

}  // namespace gpufs::service
