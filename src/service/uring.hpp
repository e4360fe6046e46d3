// SPDX-License-Identifier: Apache-2.0
// One worker's asynchronous reads: a thin owner of an io_uring. It does nothing if the build or the kernel has none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#if GPUFS_HAVE_LIBURING
#include <liburing.h>
#endif

namespace gpufs::service {

// Used by one thread. Every submitted read is reaped before destruction.
class uring {
 public:
  static constexpr unsigned depth = 256;  // reads in flight

  uring() = default;
  uring(const uring&) = delete;
  uring& operator=(const uring&) = delete;

#if GPUFS_HAVE_LIBURING
  ~uring() {
    if (ready_) ::io_uring_queue_exit(&ring_);
  }

  // Sets the ring up. False and *why: the kernel refuses it, or is too old for reads (5.6) and timed waits (5.11).
  bool start(std::string* why) {
    const int error = ::io_uring_queue_init(depth, &ring_, 0);
    if (error < 0) {
      *why = "io_uring_queue_init gave errno " + std::to_string(-error);
      return false;
    }
    ready_ = true;
    // Sets how many threads of its own the kernel may use for reads. Without this, it uses at most four a core (before Linux 5.15,
    // always).
    unsigned nthreads[2] = {most_in_threads, 0};
    if (::io_uring_register_iowq_max_workers(&ring_, nthreads) != 0) most_in_threads_ = 4;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    const bool enough =
        (ring_.features & IORING_FEAT_EXT_ARG) != 0 && probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    ::io_uring_free_probe(probe);
    if (!enough) {
      ::io_uring_queue_exit(&ring_);
      ready_ = false;
      *why = "this kernel's io_uring lacks reads or timed waits";
    }
    return enough;
  }

  // How many reads that block may be in flight, so that none waits for another to end.
  unsigned most_blocking() const { return most_in_threads_; }

  // Queues a read; at most `depth` may be in flight.
  void prepare_read(int fd, void* to, std::uint32_t nbytes, std::int64_t offset, std::uint64_t tag) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);  // never full: it has room for all reads that may be in flight
    ::io_uring_prep_read(sqe, fd, to, nbytes, static_cast<std::uint64_t>(offset));
    ::io_uring_sqe_set_data64(sqe, tag);
  }

  // Hands the queued reads to the kernel.
  void submit() {
    // EINTR, and EAGAIN or EBUSY while the kernel is short of memory or our completions wait: the caller reaps and submits
    // again.
    if (::io_uring_sq_ready(&ring_) != 0) ::io_uring_submit(&ring_);
  }

  // Calls each(tag, bytes or -errno) for every completion that is there. Returns how many.
  template <class Each>
  unsigned reap(Each each) {
    submit();
    unsigned n = 0;
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const std::uint64_t tag = ::io_uring_cqe_get_data64(cqe);
      const int result = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      each(tag, result);
      ++n;
    }
    return n;
  }

  // Waits for a completion, at most timeout_ns.
  void wait(std::uint64_t timeout_ns) {
    __kernel_timespec timeout{static_cast<std::int64_t>(timeout_ns / 1'000'000'000),
                              static_cast<long long>(timeout_ns % 1'000'000'000)};
    io_uring_cqe* cqe = nullptr;
    ::io_uring_wait_cqe_timeout(&ring_, &cqe, &timeout);
  }

 private:
  static constexpr unsigned most_in_threads = 32;
  io_uring ring_{};
  bool ready_ = false;
  unsigned most_in_threads_ = most_in_threads;
#else
  bool start(std::string* why) {
    *why = "this build has no liburing";
    return false;
  }
  unsigned most_blocking() const { return 0; }
  void prepare_read(int, void*, std::uint32_t, std::int64_t, std::uint64_t) {}
  void submit() {}
  template <class Each>
  unsigned reap(Each) {
    return 0;
  }
  void wait(std::uint64_t) {}
#endif
};

}  // namespace gpufs::service
