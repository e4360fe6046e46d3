// SPDX-License-Identifier: Apache-2.0
#include "host_queue.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace gpufs::nvme {

namespace {
constexpr std::chrono::microseconds most_answers_take(50);
}

void host_queue::begin(std::uint32_t doorbell_stride) {
  stride_ = doorbell_stride;
  next_ = 0;
  std::memset(completions_.data(), 0, completions_.nbytes());  // phases of an earlier time
  if (id_ != 0) return;
  access_.write32(at::admin_sizes, (nslots_ - 1) << 16 | (nslots_ - 1));
  const auto write_address = [&](std::uint32_t offset, std::uint64_t address) {
    access_.write32(offset, static_cast<std::uint32_t>(address));
    access_.write32(offset + 4, static_cast<std::uint32_t>(address >> 32));
  };
  write_address(at::admin_submissions, submissions_at());
  write_address(at::admin_completions, completions_at());
}

int host_queue::execute(const submission& what, std::uint64_t timeout_ns, std::uint32_t* result) {
  const auto id = static_cast<std::uint32_t>(next_ & 0xffff);
  auto& place = reinterpret_cast<submission*>(submissions_.data())[next_ % nslots_];
  place = what;
  place.cdw0 |= id << 16;
  auto& entry = reinterpret_cast<completion*>(completions_.data())[next_ % nslots_];
  const std::uint32_t phase = ~(next_ / nslots_) & 1;
  ++next_;
  const auto slot = static_cast<std::uint32_t>(next_ % nslots_);
  const std::uint32_t bell = at::doorbells + 2 * id_ * stride_;
  access_.write32(bell, slot);  // after the command: see write32
  const auto begin = std::chrono::steady_clock::now(), end = begin + std::chrono::nanoseconds(timeout_ns);
  for (;;) {
    // Meets the controller's write, whose last word this is.
    const std::uint32_t status = std::atomic_ref(entry.status).load(std::memory_order_acquire);
    if ((status >> 16 & 1) == phase) {
      access_.write32(bell + stride_, slot);
      if ((status & 0xffff) != id) return -ETIMEDOUT;  // an answer to nothing that was asked: as good as none
      if (result != nullptr) *result = entry.result;
      return static_cast<int>(status >> 17);
    }
    if (std::chrono::steady_clock::now() - begin < most_answers_take) {  // a sleep would take as long again
      std::this_thread::yield();
      continue;
    }
    const std::uint32_t now = access_.read32(at::status);
    if (now == state::gone) return -ENODEV;
    if ((now & state::fatal) != 0) return -ETIMEDOUT;  // it will not answer
    if (std::chrono::steady_clock::now() >= end) return -ETIMEDOUT;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace gpufs::nvme
