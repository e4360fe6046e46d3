// SPDX-License-Identifier: Apache-2.0
#include "apps/input_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gpufs/mount.hpp"

namespace gpufs::apps {

input_file::input_file(std::string path, std::string verb)
    : path_(std::move(path)), verb_(std::move(verb)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
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
input_file::~input_file() {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), nbytes_);
  ::close(descriptor_);
}

void input_file::read(void* to, std::uint64_t nbytes, std::uint64_t offset) const {
  auto* next = static_cast<std::byte*>(to);
  while (nbytes != 0) {
    const ssize_t got = ::pread(descriptor_, next, nbytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno);
    if (got == 0) fail(ESTALE);
    next += got;
    nbytes -= static_cast<std::uint64_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
}

const std::byte* input_file::map() const {
  if (mapping_ == nullptr) {
    void* const at = ::mmap(nullptr, nbytes_, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (at == MAP_FAILED) throw gpufs::error(path_ + ": cannot be mapped: " + std::strerror(errno), errno);
    mapping_ = static_cast<const std::byte*>(at);
  }
  return mapping_;
}

void input_file::fail(int error) const {
  const bool changed = error == ESTALE || error == ENXIO;
  throw gpufs::error(
      path_ + ": " +
          (changed ? "was truncated, replaced or written by others while it was " + verb_ + ": try again" : std::strerror(error)),
      error);
}

}  // namespace gpufs::apps
