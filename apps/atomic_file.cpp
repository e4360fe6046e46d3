// SPDX-License-Identifier: Apache-2.0
#include "apps/atomic_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "gpufs/mount.hpp"

namespace gpufs::apps {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A file without a name, or -1 with errno.
int open_nameless(const std::string& folder) { return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666); }

bool unsupported(int error) { return error == EOPNOTSUPP || error == EISDIR || error == EINVAL || error == ENOSYS; }

}  // namespace

atomic_file::atomic_file(std::string path) : path_(std::move(path)), folder_(folder_of(path_)) {
  struct stat st;
  const std::size_t slash = path_.rfind('/');
  const std::string name = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  if (name.empty()) fail("write", EISDIR);
  if (::stat(path_.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) fail("write", S_ISDIR(st.st_mode) ? EISDIR : EEXIST);
  temporary_ = folder_ + "/." + name.substr(0, 200) + "." + std::to_string(::getpid()) + ".tmp";
  fd_ = open_nameless(folder_);
  if (fd_ < 0 && unsupported(errno)) {
    fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } else if (fd_ >= 0) {
    temporary_.clear();
  }
  if (fd_ < 0) {
    const int error = errno;
    temporary_.clear();
    fail("write", error);
  }
}

atomic_file::~atomic_file() {
  if (fd_ >= 0) ::close(fd_);
  remove_temporary();
}

void atomic_file::remove_temporary() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void atomic_file::fail(const std::string& doing, int error) const {
  throw gpufs::error(path_ + ": cannot " + doing + ": " + std::strerror(error));
}

void atomic_file::write(const void* data, std::size_t nbytes, std::uint64_t offset) {
  const auto* p = static_cast<const std::byte*>(data);
  while (nbytes != 0) {
    const ssize_t n = ::pwrite(fd_, p, nbytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", errno);
    p += n;
    offset += static_cast<std::uint64_t>(n);
    nbytes -= static_cast<std::size_t>(n);
  }
}

void atomic_file::read(void* dst, std::size_t nbytes, std::uint64_t offset) const {
  auto* p = static_cast<std::byte*>(dst);
  while (nbytes != 0) {
    const ssize_t n = ::pread(fd_, p, nbytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("read back", n < 0 ? errno : EIO);
    p += n;
    offset += static_cast<std::uint64_t>(n);
    nbytes -= static_cast<std::size_t>(n);
  }
}

void atomic_file::resize(std::uint64_t nbytes) {
  if (::ftruncate(fd_, static_cast<off_t>(nbytes)) != 0) fail("write", errno);
}

void atomic_file::publish() {
  if (::fsync(fd_) != 0) fail("sync", errno);
  if (temporary_.empty()) {
    // linkat does not replace a file, rename does.
    const std::size_t slash = path_.rfind('/');
    const std::string name = slash == std::string::npos ? path_ : path_.substr(slash + 1);
    const std::string link = folder_ + "/." + name.substr(0, 200) + "." + std::to_string(::getpid()) + ".tmp";
    const std::string self = "/proc/self/fd/" + std::to_string(fd_);
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, link.c_str(), AT_SYMLINK_FOLLOW) != 0) fail("write", errno);
    temporary_ = link;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write", errno);
  temporary_.clear();
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // the file is in place whatever this says
    ::close(folder);
  }
}

int open_without_name(const std::string& folder) {
  const int nameless = open_nameless(folder);
  if (nameless >= 0 || !unsupported(errno)) return nameless;
  std::string name = folder + "/.gpufs-scratch-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

scratch_map::scratch_map(const std::string& path, std::size_t nbytes) : nbytes_(nbytes) {
  const std::string folder = folder_of(path);
  const int fd = open_without_name(folder);
  if (fd < 0) throw gpufs::error(folder + ": cannot hold temporary data: " + std::strerror(errno));
  int error = ::posix_fallocate(fd, 0, static_cast<off_t>(nbytes));
  if (error == 0) {
    data_ = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data_ == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) {
    throw gpufs::error(folder + ": no room for " + std::to_string(nbytes >> 20) +
                       " MiB of temporary data: " + std::strerror(error));
  }
}

scratch_map::~scratch_map() { ::munmap(data_, nbytes_); }

}  // namespace gpufs::apps
