// SPDX-License-Identifier: Apache-2.0
// A pair of queues of a controller in software that one thread serves at a time, as fast as memory is: in order, and without a look
// at what the driver does wrong.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace gpufs::nvme {

// Where the queues lie, and the words of their doorbells.
struct soft_pair_places {
  std::uint32_t id;
  std::vector<std::byte*> commands, entries;  // pages of 4 KiB
  std::uint32_t ncommands, nentries;
  std::uint32_t* command_bell;
  std::uint32_t* entry_bell;
};

class soft_pair {
 public:
  explicit soft_pair(soft_pair_places at) : at_(std::move(at)) {}

  // Looks once: fetches what there is, and completes what is due by now_ns and has room. due(n) says when the next n commands are
  // due: the first, and how much later each other one; execute(words) does one of 16 words, and gives its status. Returns how many
  // were fetched or completed.
  template <class Due, class Execute>
  std::uint32_t step(std::uint64_t now_ns, Due due, Execute execute) {
    // Meets the driver's fence before its store: the commands are in memory.
    const std::uint32_t bell = std::atomic_ref(*at_.command_bell).load(std::memory_order_acquire) % at_.ncommands;
    const std::uint32_t n = std::min((bell + at_.ncommands - head_) % at_.ncommands, most_at_once);
    if (n != 0) {
      const auto [first_ns, apart_ns] = due(n);
      for (std::uint32_t i = 0; i < n; ++i) {
        work& made = under_way_.emplace_back();
        std::memcpy(made.words, at_.commands[head_ / 64] + head_ % 64 * 64, sizeof made.words);
        made.due_ns = first_ns + i * apart_ns;
        head_ = (head_ + 1) % at_.ncommands;
      }
    }
    std::uint32_t ended = 0;
    for (; !under_way_.empty() && under_way_.front().due_ns <= now_ns && has_room(); ++ended) {
      post(under_way_.front().words, execute(under_way_.front().words));
      under_way_.pop_front();
    }
    ncompleted_.store(ncompleted() + ended, std::memory_order_relaxed);
    return n + ended;
  }
  // All commands that were fetched and are not done get this status, as far as there is room. The queue is deleted then.
  void end_all(std::uint32_t status) {
    for (; !under_way_.empty() && has_room(); under_way_.pop_front()) post(under_way_.front().words, status);
  }
  std::uint64_t ncompleted() const { return ncompleted_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t most_at_once = 256;
  struct work {
    std::uint32_t words[16];
    std::uint64_t due_ns;
  };

  bool has_room() const {
    // Meets the driver's fence before its store: it has read the entries up to there.
    return (tail_ + 1) % at_.nentries != std::atomic_ref(*at_.entry_bell).load(std::memory_order_acquire) % at_.nentries;
  }
  // The last word, which has the phase, by a release: data and the other words come before it.
  void post(const std::uint32_t* words, std::uint32_t status) {
    auto* const entry = reinterpret_cast<std::uint32_t*>(at_.entries[tail_ / 256] + tail_ % 256 * 16);
    for (int i = 0; i < 2; ++i) std::atomic_ref(entry[i]).store(0, std::memory_order_relaxed);
    std::atomic_ref(entry[2]).store(head_ | at_.id << 16, std::memory_order_relaxed);
    std::atomic_ref(entry[3]).store(words[0] >> 16 | phase_ << 16 | status << 17, std::memory_order_release);
    if (++tail_ == at_.nentries) {
      tail_ = 0;
      phase_ ^= 1;
    }
  }

  soft_pair_places at_;
  std::uint32_t head_ = 0, tail_ = 0, phase_ = 1;
  std::deque<work> under_way_;
  std::atomic<std::uint64_t> ncompleted_{0};
};

// One that a thread serves while the controller has it.
struct served_pair {
  std::mutex mutex;
  std::atomic<bool> is_there{false};
  std::unique_ptr<soft_pair> pair;
  std::uint64_t ncompleted = 0;  // by earlier ones of this number
};

}  // namespace gpufs::nvme
