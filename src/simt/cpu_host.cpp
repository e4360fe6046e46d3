// SPDX-License-Identifier: Apache-2.0
// The part of the CPU machine that host code needs, with or without lanes.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "gpufs/simt/detail/cpu_machine.hpp"
#include "sanitizer.hpp"

namespace gpufs::simt::runtime {
namespace {

constinit cpu_lane host_lane;

// Copies through a pipe: read(2) and write(2) report missing memory instead of raising a signal. For systems that forbid
// process_vm_readv. Makes its own pipe, so that nothing is shared with other threads or a forked child.
int copy_through_pipe(std::byte* dst, const std::byte* src, std::size_t nbytes) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -EIO;
  int result = 0;
  while (nbytes != 0 && result == 0) {
    const ssize_t in = ::write(ends[1], src, nbytes < 4096 ? nbytes : 4096);
    if (in <= 0) {
      if (in < 0 && errno == EINTR) continue;
      result = -EIO;
      break;
    }
    for (ssize_t out = 0; out < in;) {
      const ssize_t n = ::read(ends[0], dst + out, static_cast<std::size_t>(in - out));
      if (n > 0) out += n;
      if (n == 0 || (n < 0 && errno != EINTR)) {
        result = -EIO;
        break;
      }
    }
    dst += in;
    src += in;
    nbytes -= static_cast<std::size_t>(in);
  }
  ::close(ends[0]);
  ::close(ends[1]);
  return result;
}

// Which of the two may be gone. It plays the "other process" of the system call (which here is ourselves): access to that one
// raises no signal.
enum class may_be_gone { source, target };

template <may_be_gone which>
int copy_without_signal(void* target, const void* source, std::size_t nbytes) {
  auto* dst = static_cast<std::byte*>(target);
  auto* src = static_cast<const std::byte*>(source);
  while (nbytes != 0) {
    const iovec to{dst, nbytes};
    const iovec from{const_cast<std::byte*>(src), nbytes};
    // By number: ThreadSanitizer would take process_vm_writev for a plain read of the source, which other lanes may write.
    const long n = which == may_be_gone::source ? ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0)
                                                : ::syscall(SYS_process_vm_writev, ::getpid(), &from, 1L, &to, 1L, 0L);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES)) return copy_through_pipe(dst, src, nbytes);
    if (n <= 0) return -EIO;
    dst += n;
    src += n;
    nbytes -= static_cast<std::size_t>(n);
  }
  return 0;
}

}  // namespace

constinit thread_local cpu_lane* cpu_current = &host_lane;

std::uint64_t cpu_clock_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

int cpu_copy_from_host(void* to, const void* from, std::size_t nbytes) {
  sanitizer::will_write(static_cast<std::byte*>(to), nbytes);
  return copy_without_signal<may_be_gone::source>(to, from, nbytes);
}

int cpu_copy_to_host(void* to, const void* from, std::size_t nbytes) {
  return copy_without_signal<may_be_gone::target>(to, from, nbytes);
}

__attribute__((no_sanitize("thread"))) void cpu_copy_changing(void* to, const void* from, std::size_t nbytes) {
  // An aligned word at once, as a GPU loads it.
  if (nbytes == 4 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) {
    const std::uint32_t word = *static_cast<const volatile std::uint32_t*>(from);
    std::memcpy(to, &word, sizeof word);
    return;
  }
  if (nbytes == 8 && reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
    const std::uint64_t word = *static_cast<const volatile std::uint64_t*>(from);
    std::memcpy(to, &word, sizeof word);
    return;
  }
  auto* dst = static_cast<volatile unsigned char*>(to);
  auto* src = static_cast<const volatile unsigned char*>(from);
  for (std::size_t i = 0; i < nbytes; ++i) dst[i] = src[i];
}

}  // namespace gpufs::simt::runtime
