// SPDX-License-Identifier: Apache-2.0
// A write beyond RLIMIT_FSIZE fails with -EFBIG and sends SIGXFSZ to the thread; the signal ends a process that does not handle it.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cerrno>

namespace gpufs::service {

// While it lives, the calling thread gets only the error.
class file_size_signal_held {
 public:
  file_size_signal_held() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~file_size_signal_held() {
    const timespec now{};
    while (!was_pending_ && ::sigtimedwait(&signal_, nullptr, &now) < 0 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  file_size_signal_held(const file_size_signal_held&) = delete;
  file_size_signal_held& operator=(const file_size_signal_held&) = delete;

 private:
  sigset_t signal_, before_;
  bool was_pending_;
};

}  // namespace gpufs::service
