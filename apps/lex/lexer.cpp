// SPDX-License-Identifier: Apache-2.0
#include "apps/lex/lexer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gpufs/mount.hpp"

namespace gpufs::apps::lex {

open_file::open_file(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail(errno);
  struct stat about {};
  int error = ::fstat(descriptor_, &about) != 0 ? errno : 0;
  const bool is_regular = error == 0 && S_ISREG(about.st_mode);
  if (error == 0 && S_ISDIR(about.st_mode)) error = EISDIR;
  if (!is_regular) {
    ::close(descriptor_);
    if (error != 0) fail(error);
    throw gpufs::error(path_ + ": is no regular file: copy it to one first", EINVAL);
  }
  nbytes_ = static_cast<std::uint64_t>(about.st_size);
}
open_file::~open_file() { ::close(descriptor_); }

void open_file::read(std::uint8_t* to, std::uint64_t nbytes, std::uint64_t offset) const {
  while (nbytes != 0) {
    const ssize_t got = ::pread(descriptor_, to, nbytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno);
    if (got == 0) fail(ESTALE);
    to += got;
    nbytes -= static_cast<std::uint64_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
}

void open_file::fail(int error) const {
  const bool changed = error == ESTALE || error == ENXIO;
  throw gpufs::error(
      path_ + ": " +
          (changed ? "was truncated, replaced or written by others while it was lexed: try again" : std::strerror(error)),
      error);
}

}  // namespace gpufs::apps::lex
