// SPDX-License-Identifier: Apache-2.0
#include "failing_calls.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <string_view>

namespace gpufs::test {
namespace {

constexpr auto none = consequence::none, told = consequence::told, either = consequence::either;
constexpr std::array calls{
    failing_call{"openat2", EMFILE, either},
    failing_call{"openat2", EINTR, none},
    failing_call{"openat2", EAGAIN, none},
    failing_call{"openat", ENOMEM, either},
    failing_call{"open", EMFILE, either},
    failing_call{"pread", EIO, either},
    failing_call{"pread", EINTR, none},
    failing_call{"pread", short_count, none},
    failing_call{"pread", no_bytes, either},
    failing_call{"pwrite", ENOSPC, told},
    failing_call{"pwrite", EINTR, none},
    failing_call{"pwrite", short_count, none},
    failing_call{"pwritev", EIO, told},
    failing_call{"pwritev", EAGAIN, none},
    failing_call{"pwritev", EINTR, none},
    failing_call{"pwritev", short_count, none},
    failing_call{"pwritev", no_bytes, told},
    failing_call{"fstat", EIO, either},
    failing_call{"fstatat", EIO, either},
    failing_call{"statx", EIO, told},
    failing_call{"fstatfs", EIO, either},
    failing_call{"readlinkat", EIO, told},
    failing_call{"ftruncate", ENOSPC, told},
    failing_call{"fsync", EIO, told},
    failing_call{"fdatasync", EIO, told},
    failing_call{"unlinkat", EIO, told},
    failing_call{"renameat", EIO, told},
    failing_call{"mkdirat", ENOSPC, told},
    failing_call{"getdents64", EIO, either},
    failing_call{"mmap", ENOMEM, either},
    failing_call{"fcntl", EMFILE, told},
    failing_call{"io_uring_queue_init", ENOMEM, either},
    failing_call{"io_uring_submit", EAGAIN, none},
};

std::atomic<const char*> chosen{nullptr};  // a call's name, when one shall fail
std::atomic<int> chosen_error{0};
std::atomic<const char*> forbidden{nullptr};
std::atomic<int> forbidden_error{0};
std::atomic<bool> lasts{false};
std::atomic<std::uint64_t> first{0}, ncalls{0};

// What this call shall fail with, or 0.
int fails(std::string_view name) {
  const char* never = forbidden.load(std::memory_order_acquire);
  if (never != nullptr && name == never) return forbidden_error;
  const char* which = chosen.load(std::memory_order_acquire);
  if (which == nullptr || name != which) return 0;
  const std::uint64_t n = ncalls.fetch_add(1);
  return n == first || (lasts && n > first) ? chosen_error.load() : 0;
}

// Whole words, as of a table in /proc.
std::size_t half(std::size_t nbytes) { return nbytes < 16 ? nbytes : (nbytes / 2 + 7) / 8 * 8; }

template <class Result>
Result failed(int error) {
  errno = error;
  return static_cast<Result>(-1);
}

}  // namespace

std::span<const failing_call> failing_calls() { return calls; }

void let_fail(const failing_call& which, std::uint64_t n, bool lasting) {
  chosen_error = which.error;
  first = n;
  lasts = lasting;
  ncalls = 0;
  chosen.store(which.name, std::memory_order_release);
}

void forbid(const char* name, int error) {
  forbidden_error = error;
  forbidden.store(name, std::memory_order_release);
}

std::uint64_t let_none_fail() {
  chosen = nullptr;
  return ncalls;
}

}  // namespace gpufs::test

using gpufs::test::failed;
using gpufs::test::fails;
using gpufs::test::half;
using gpufs::test::no_bytes;
using gpufs::test::short_count;

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming)
extern "C" {

#define GPUFS_TEST_WRAP(name, parameters, arguments)                                           \
  decltype(name) __real_##name;                                                                \
  auto __wrap_##name parameters noexcept(noexcept(name arguments))->decltype(name arguments) { \
    const int error = fails(#name);                                                            \
    return error != 0 ? failed<decltype(name arguments)>(error) : __real_##name arguments;     \
  }

GPUFS_TEST_WRAP(fstat, (int fd, struct stat* out), (fd, out))
GPUFS_TEST_WRAP(fstatat, (int at, const char* path, struct stat* out, int flags), (at, path, out, flags))
GPUFS_TEST_WRAP(statx, (int at, const char* path, int flags, unsigned mask, struct statx* out), (at, path, flags, mask, out))
GPUFS_TEST_WRAP(fstatfs, (int fd, struct statfs* out), (fd, out))
GPUFS_TEST_WRAP(readlinkat, (int at, const char* path, char* out, std::size_t n), (at, path, out, n))
GPUFS_TEST_WRAP(ftruncate, (int fd, off_t nbytes), (fd, nbytes))
GPUFS_TEST_WRAP(fsync, (int fd), (fd))
GPUFS_TEST_WRAP(fdatasync, (int fd), (fd))
GPUFS_TEST_WRAP(unlinkat, (int at, const char* path, int flags), (at, path, flags))
GPUFS_TEST_WRAP(renameat, (int at, const char* from, int to_at, const char* to), (at, from, to_at, to))
GPUFS_TEST_WRAP(mkdirat, (int at, const char* path, mode_t mode), (at, path, mode))
GPUFS_TEST_WRAP(getdents64, (int fd, void* out, std::size_t n), (fd, out, n))

ssize_t __real_pread(int fd, void* to, std::size_t n, off_t at);
ssize_t __wrap_pread(int fd, void* to, std::size_t n, off_t at) {
  const int error = fails("pread");
  if (error > 0) return failed<ssize_t>(error);
  if (error == no_bytes) return 0;
  return __real_pread(fd, to, error == short_count ? half(n) : n, at);
}
ssize_t __real_pwrite(int fd, const void* from, std::size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void* from, std::size_t n, off_t at) {
  const int error = fails("pwrite");
  if (error > 0) return failed<ssize_t>(error);
  if (error == no_bytes) return 0;
  return __real_pwrite(fd, from, error == short_count ? half(n) : n, at);
}
ssize_t __real_pwritev(int fd, const iovec* parts, int nparts, off_t at);
ssize_t __wrap_pwritev(int fd, const iovec* parts, int nparts, off_t at) {
  const int error = fails("pwritev");
  if (error > 0) return failed<ssize_t>(error);
  if (error == no_bytes) return 0;
  if (error == 0) return __real_pwritev(fd, parts, nparts, at);
  const iovec some{parts->iov_base, half(parts->iov_len)};
  return __real_pwritev(fd, &some, 1, at);
}

void* __real_mmap(void* at, std::size_t n, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, std::size_t n, int protection, int flags, int fd, off_t offset) {
  const int error = fd >= 0 ? fails("mmap") : 0;  // of files: not the stacks of the CPU machine's threads
  if (error == 0) return __real_mmap(at, n, protection, flags, fd, offset);
  errno = error;
  return MAP_FAILED;
}

int __real_openat(int at, const char* path, int flags, ...);
int __wrap_openat(int at, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const int error = fails("openat");
  return error != 0 ? failed<int>(error) : __real_openat(at, path, flags, mode);
}
int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const int error = fails("open");
  return error != 0 ? failed<int>(error) : __real_open(path, flags, mode);
}
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void* argument = va_arg(more, void*);
  va_end(more);
  const int error = fails("fcntl");
  return error != 0 ? failed<int>(error) : __real_fcntl(fd, command, argument);
}
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  va_list more;
  va_start(more, number);
  std::array<long, 6> a{};
  for (long& argument : a) argument = va_arg(more, long);
  va_end(more);
  const int error = number == SYS_openat2 ? fails("openat2") : 0;
  return error != 0 ? failed<long>(error) : __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int __real_io_uring_queue_init(unsigned n, io_uring* ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned n, io_uring* ring, unsigned flags) {
  const int error = fails("io_uring_queue_init");
  return error != 0 ? -error : __real_io_uring_queue_init(n, ring, flags);
}
int __real_io_uring_submit(io_uring* ring);
int __wrap_io_uring_submit(io_uring* ring) {
  const int error = fails("io_uring_submit");
  return error != 0 ? -error : __real_io_uring_submit(ring);
}
}
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming)
