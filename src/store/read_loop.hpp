// SPDX-License-Identifier: Apache-2.0
// The loops around calls like read(2) and write(2) that stores and service share.
#pragma once
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "../simt/unique_fd.hpp"

namespace gpufs::store {

// How many of nbytes at offset (>= 0) lie in a file of file_nbytes.
inline std::size_t clip(std::size_t nbytes, std::int64_t offset, std::int64_t file_nbytes) {
  if (offset >= file_nbytes) return 0;
  const auto left = static_cast<std::uint64_t>(file_nbytes - offset);
  return nbytes < left ? nbytes : static_cast<std::size_t>(left);
}

// Reads dst by read(ptr, nbytes, offset) -> bytes or -errno, up to the first call that returns 0: the end of the file. Goes on
// after -EINTR and short reads. Returns how many bytes, or the error.
template <class Read>
std::int64_t read_to_end(Read read, std::span<std::byte> dst, std::int64_t offset) {
  std::size_t done = 0;
  while (done < dst.size()) {
    const std::int64_t n = read(dst.data() + done, dst.size() - done, offset + static_cast<std::int64_t>(done));
    if (n == -EINTR) continue;
    if (n < 0) return n;
    if (n == 0) break;
    done += static_cast<std::size_t>(n) < dst.size() - done ? static_cast<std::size_t>(n) : dst.size() - done;
  }
  return static_cast<std::int64_t>(done);
}

// The same for a range that lay inside the file when it was opened. Returns dst.size(), -ESTALE if the file ends earlier now (it
// was truncated), or the error of the read.
template <class Read>
std::int64_t read_fully(Read read, std::span<std::byte> dst, std::int64_t offset) {
  const std::int64_t n = read_to_end(read, dst, offset);
  return n >= 0 && static_cast<std::size_t>(n) < dst.size() ? -ESTALE : n;
}

// Writes all parts (at most IOV_MAX; the call changes them) one behind the other at offset. Goes on after EINTR, short writes, and
// EAGAIN of an O_NONBLOCK descriptor. Returns 0 or -errno. *done: how many bytes were written, also before an error.
inline int write_fully(int fd, std::span<iovec> parts, std::int64_t offset, std::size_t* done) {
  *done = 0;
  bool waits = false;
  for (;;) {
    while (!parts.empty() && parts.front().iov_len == 0) parts = parts.subspan(1);
    if (parts.empty()) return 0;
    const ssize_t n = ::pwritev(fd, parts.data(), static_cast<int>(parts.size()), offset + static_cast<std::int64_t>(*done));
    if (n == 0) return -EIO;  // a regular file takes bytes or gives an error
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN || waits) return -errno;
      make_blocking(fd);  // unless another thread just has
      waits = true;
      continue;
    }
    *done += static_cast<std::size_t>(n);
    for (auto left = static_cast<std::size_t>(n); left != 0;) {
      iovec& part = parts.front();
      const std::size_t taken = left < part.iov_len ? left : part.iov_len;
      part = {static_cast<std::byte*>(part.iov_base) + taken, part.iov_len - taken};
      left -= taken;
      if (part.iov_len == 0) parts = parts.subspan(1);
    }
  }
}

}  // namespace gpufs::store
