// SPDX-License-Identifier: Apache-2.0
// A file descriptor that closes itself.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace gpufs::store {

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

// True when the descriptor was O_NONBLOCK, which it is no more. Files are opened so; for a regular file it means nothing to
// read(2), but the io_uring of some kernels, and what a FUSE server makes of it, give EAGAIN instead of waiting: whoever gets that
// calls this and asks again. So the two calls are spent only where they are needed.
inline bool make_blocking(int fd) {
  const int status = ::fcntl(fd, F_GETFL);
  return status >= 0 && (status & O_NONBLOCK) != 0 && ::fcntl(fd, F_SETFL, status & ~O_NONBLOCK) == 0;
}

}  // namespace gpufs::store
