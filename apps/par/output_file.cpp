// SPDX-License-Identifier: Apache-2.0
#include "apps/par/output_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "apps/atomic_file.hpp"
#include "apps/bus_guard.hpp"
#include "gpufs/mount.hpp"

namespace gpufs::apps::par {
namespace {

// Of its own, as bus_guarded() asks.
[[gnu::noinline]] void copy(void* to, const void* from, std::size_t nbytes) { std::memcpy(to, from, nbytes); }

}  // namespace

output_file::output_file(std::string path, int descriptor, std::uint64_t nbytes)
    : path_(std::move(path)), descriptor_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)), nbytes_(nbytes) {
  if (descriptor_ < 0) fail(errno);
  if (::ftruncate(descriptor_, static_cast<off_t>(nbytes)) != 0) {
    const int error = errno;
    ::close(descriptor_);
    fail(error);
  }
  if (nbytes == 0) return;
  void* const mapping = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapping != MAP_FAILED) mapping_ = static_cast<std::byte*>(mapping);
}

output_file output_file::without_name(const std::string& folder, std::uint64_t nbytes) {
  const int descriptor = open_without_name(folder);
  if (descriptor < 0) throw gpufs::error(folder + ": no file can be made here: " + std::strerror(errno), errno);
  try {
    output_file made(folder + ": a file of " + std::to_string(nbytes) + " bytes", descriptor, nbytes);
    ::close(descriptor);
    return made;
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

output_file::output_file(output_file&& from) noexcept
    : path_(std::move(from.path_)),
      descriptor_(std::exchange(from.descriptor_, -1)),
      nbytes_(from.nbytes_),
      mapping_(std::exchange(from.mapping_, nullptr)) {}

output_file::~output_file() {
  if (mapping_ != nullptr) ::munmap(mapping_, nbytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void output_file::write(const std::byte* from, std::uint64_t nbytes, std::uint64_t offset) const {
  if (mapping_ != nullptr && bus_guarded([&] { copy(mapping_ + offset, from, nbytes); })) return;
  while (nbytes != 0) {  // also where the mapping found no room: this says why
    const ssize_t put = ::pwrite(descriptor_, from, nbytes, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail(put < 0 ? errno : EIO);
    from += put;
    nbytes -= static_cast<std::uint64_t>(put);
    offset += static_cast<std::uint64_t>(put);
  }
}

void output_file::read(std::byte* to, std::uint64_t nbytes, std::uint64_t offset) const {
  while (nbytes != 0) {
    const ssize_t got = ::pread(descriptor_, to, nbytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(got < 0 ? errno : EIO);
    to += got;
    nbytes -= static_cast<std::uint64_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
}

void output_file::fail(int error) const { throw gpufs::error(path_ + ": cannot be written: " + std::strerror(error), error); }

}  // namespace gpufs::apps::par
