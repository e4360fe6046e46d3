// SPDX-License-Identifier: Apache-2.0
// Time, waiting, and letting others run. A loop that waits backs off, and has a deadline.
#pragma once
#include <cstdint>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/detail/cpu_machine.hpp"
#if GPUFS_ON_CUDA
#include <ctime>
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// CPU machine: a point where the seed may let another lane run. Nothing on CUDA, and nothing in a host thread.
GPUFS_HOST_DEVICE void preempt() {
#if !GPUFS_ON_CUDA
  runtime::cpu_lane* lane = runtime::cpu_current;
  if (lane->countdown != 0 && --lane->countdown == 0) runtime::cpu_preempt();
#endif
}

// Nanoseconds from an arbitrary origin, the same for all threads of a device; steps of up to about 1 us on CUDA.
GPUFS_HOST_DEVICE std::uint64_t clock_ns() {
#ifdef __CUDA_ARCH__
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
#elif GPUFS_ON_CUDA
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
#else
  return runtime::cpu_clock_ns();
#endif
}

// Waits a little longer each time, up to cap_ns. On the CPU machine the other lanes run first; when all lanes of an OS thread
// back off, it yields its core.
class backoff {
 public:
  GPUFS_DEVICE explicit backoff(std::uint32_t cap_ns = 2048, std::uint32_t first_ns = 32) : cap_ns_(cap_ns), first_ns_(first_ns) {}
  GPUFS_DEVICE void operator()() {
#if GPUFS_ON_CUDA
    __nanosleep(next_ns_);
    next_ns_ = next_ns_ * 2 < cap_ns_ ? next_ns_ * 2 : cap_ns_;
#else
    runtime::cpu_backoff(cap_ns_);
#endif
  }
  GPUFS_DEVICE void reset() { next_ns_ = first_ns_; }

 private:
  std::uint32_t cap_ns_, first_ns_;
  std::uint32_t next_ns_ = first_ns_;
};

class deadline {
 public:
  GPUFS_DEVICE explicit deadline(std::uint64_t timeout_ns) {
    const std::uint64_t now = clock_ns();
    end_ns_ = now + timeout_ns < now ? ~std::uint64_t{0} : now + timeout_ns;
  }
  GPUFS_DEVICE bool expired() const { return clock_ns() >= end_ns_; }
  // Whether less than that is left of it.
  GPUFS_DEVICE bool nearer_than(std::uint64_t ns) const {
    const std::uint64_t now = clock_ns();
    return end_ns_ != ~std::uint64_t{0} && (now >= end_ns_ || end_ns_ - now < ns);
  }
  // As a timeout of who goes on with it. Of one without an end, it has none either.
  GPUFS_DEVICE std::uint64_t left_ns() const {
    const std::uint64_t now = clock_ns();
    return end_ns_ == ~std::uint64_t{0} ? end_ns_ : now >= end_ns_ ? 0 : end_ns_ - now;
  }

 private:
  std::uint64_t end_ns_;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
