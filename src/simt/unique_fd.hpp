// SPDX-License-Identifier: Apache-2.0
// A file descriptor that closes itself.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace gpufs {

class unique_fd {
 public:
  unique_fd() = default;
  explicit unique_fd(int fd) : fd_(fd) {}
  ~unique_fd() { reset(); }
  unique_fd(unique_fd&& other) noexcept : fd_(other.release()) {}
  unique_fd& operator=(unique_fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int fd_ = -1;
};

// Takes O_NONBLOCK off the descriptor. True: the descriptor had it. The store opens all files with O_NONBLOCK. read(2) ignores the
// flag for a regular file, but io_uring of some kernels, and some FUSE servers, give EAGAIN instead of waiting. A caller that gets
// EAGAIN calls this function and reads again. So the two system calls are made only where they are needed.
inline bool make_blocking(int fd) {
  const int status = ::fcntl(fd, F_GETFL);
  return status >= 0 && (status & O_NONBLOCK) != 0 && ::fcntl(fd, F_SETFL, status & ~O_NONBLOCK) == 0;
}

}  // namespace gpufs
