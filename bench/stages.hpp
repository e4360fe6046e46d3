// SPDX-License-Identifier: Apache-2.0
// Work in steps, double-buffered: in each tick every stage has another step, and the next tick begins when all of them are done, so
// that a run takes as long as its slowest stage. What hand-written programs do between a file, pinned memory and the device.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "device.hpp"

namespace bench {

struct stage {
  std::uint64_t delay;  // its step in tick t is t - delay: two buffers are enough between stages whose delays differ by one
  std::function<void(std::uint64_t step)> begin;
  std::function<void()> end = [] {};  // waits for what begin() has left under way
};

// Stages begin in this order in each tick: those that leave work under way stand before those of the host's own work. Passes on
// what they throw.
inline void run_stages(std::uint64_t nsteps, const std::vector<stage>& stages) {
  std::uint64_t last = 0;
  for (const stage& s : stages) last = std::max(last, s.delay);
  for (std::uint64_t tick = 0; tick < nsteps + last; ++tick) {
    for (const bool beginning : {true, false}) {
      for (const stage& s : stages) {
        if (tick < s.delay || tick - s.delay >= nsteps) continue;
        beginning ? s.begin(tick - s.delay) : s.end();
      }
    }
  }
}

// Host threads that stay, so that a step of a millisecond need not start them.
class host_team {
 public:
  explicit host_team(unsigned n) : begin_(n + 1), end_(n + 1) {
    for (unsigned t = 0; t < n; ++t) {
      threads_.emplace_back([this] {
        for (;;) {
          begin_.arrive_and_wait();
          if (work_ == nullptr) return;
          (*work_)();
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~host_team() {
    work_ = nullptr;
    begin_.arrive_and_wait();
  }
  host_team(const host_team&) = delete;
  host_team& operator=(const host_team&) = delete;

  unsigned size() const { return static_cast<unsigned>(threads_.size()); }
  // In each of them; waits until all have done it. It must not throw.
  void run(const std::function<void()>& work) {
    work_ = &work;
    begin_.arrive_and_wait();
    end_.arrive_and_wait();
  }

 private:
  std::barrier<> begin_, end_;
  const std::function<void()>* work_ = nullptr;
  std::vector<std::jthread> threads_;  // joined before the barriers go
};

// A piece of a file, and where it is in memory.
struct file_piece {
  std::byte* memory;
  std::size_t nbytes;
  std::uint64_t offset;
};

// piece(i) for i below n, by the team; throws when one cannot be read, or written, as a whole.
inline void move_pieces(host_team& team, bool writes, int fd, std::uint64_t n,
                        const std::function<file_piece(std::uint64_t i)>& piece) {
  std::atomic<bool> right{true};
  std::atomic<std::uint64_t> next{0};
  team.run([&] {
    for (std::uint64_t i = next++; i < n && right; i = next++) {
      const file_piece p = piece(i);
      const auto offset = static_cast<off_t>(p.offset);
      const ssize_t moved = writes ? ::pwrite(fd, p.memory, p.nbytes, offset) : ::pread(fd, p.memory, p.nbytes, offset);
      if (moved != static_cast<ssize_t>(p.nbytes)) right = false;
    }
  });
  if (!right) throw gpufs::error("a host thread cannot read or write a piece of a file");
}

// What is in order in a file, in pieces of 1 MiB.
inline void move_bytes(host_team& team, bool writes, int fd, std::byte* memory, std::uint64_t nbytes, std::uint64_t offset) {
  constexpr std::uint64_t most = 1 << 20;
  move_pieces(team, writes, fd, (nbytes + most - 1) / most, [&](std::uint64_t i) {
    return file_piece{memory + i * most, std::min(most, nbytes - i * most), offset + i * most};
  });
}

}  // namespace bench
