// The loop around a read(2)-like call that stores and service share.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpufs::store {

// How many of nbytes at offset (>= 0) lie in a file of file_nbytes.
inline std::size_t clip(std::size_t nbytes, std::int64_t offset, std::int64_t file_nbytes) {
  if (offset >= file_nbytes) return 0;
  const auto left = static_cast<std::uint64_t>(file_nbytes - offset);
  return nbytes < left ? nbytes : static_cast<std::size_t>(left);
}

// Reads all of dst, which lies inside the file as it was at open, by read(ptr, nbytes, offset) -> bytes or -errno. Goes on
// after -EINTR and short reads. dst.size(), -ESTALE when the file ends early (it was truncated), or the error.
template <class Read>
std::int64_t read_fully(Read read, std::span<std::byte> dst, std::int64_t offset) {
  std::size_t done = 0;
  while (done < dst.size()) {
    const std::int64_t n = read(dst.data() + done, dst.size() - done, offset + static_cast<std::int64_t>(done));
    if (n == -EINTR) continue;
    if (n < 0) return n;
    if (n == 0) return -ESTALE;
    done += static_cast<std::size_t>(n) < dst.size() - done ? static_cast<std::size_t>(n) : dst.size() - done;
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace gpufs::store
