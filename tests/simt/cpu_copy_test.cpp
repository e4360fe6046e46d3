// SPDX-License-Identifier: Apache-2.0
// The CPU machine's copies from memory that may be gone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "gpufs/simt/simt.hpp"
#include "harness.hpp"

namespace gpufs::simt::test {
namespace {

// copy_from_host where process_vm_readv is forbidden.
int copies_without_process_vm_readv() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 77;
  std::vector<unsigned char> from(100'000), to(100'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(scramble(i));
  if (copy_from_host(this_thread(), to.data(), from.data(), from.size()) != 0 || from != to) return 1;
  void* map = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ::munmap(static_cast<char*>(map) + 4096, 4096);
  if (copy_from_host(this_thread(), to.data(), map, 8192) != -EIO) return 2;
  return copy_from_host(this_thread(), to.data(), map, 4096) != 0 ? 3 : 0;
}
TEST(copy_from_host, has_a_second_way) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(copies_without_process_vm_readv());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "seccomp is not available";
  EXPECT_EQ(status, 0);
}

// copy_from_host while another process truncates the file: an error, never a signal.
struct pull_kernel {
  unsigned char* dst;
  const unsigned char* src;
  std::size_t nbytes;
  unsigned nrounds;
  unsigned* outcomes;  // 0, -EIO, other
  GPUFS_DEVICE void operator()() const {
    for (unsigned i = 0; i < nrounds; ++i) {
      const int rc = copy_from_host(this_warp(), dst + block_rank() * nbytes, src, nbytes);
      if (this_warp().leader()) atomic_ref<unsigned>(outcomes[rc == 0 ? 0 : rc == -EIO ? 1 : 2]).add_relaxed(1);
    }
  }
};

TEST(copy_from_host, survives_truncation) {
  constexpr std::size_t nbytes = 64 * 1024;
  const int fd = ::memfd_create("simt", 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, nbytes), 0);
  void* map = ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  device_array<unsigned char> dst(2 * nbytes);
  device_array<unsigned> outcomes(3);
  const pull_kernel kernel{dst.get(), static_cast<const unsigned char*>(map), nbytes, 1, outcomes.get()};
  launch({.grid = 2, .block = 32}, kernel);
  EXPECT_EQ(outcomes.read_one(0), 2u);
  ASSERT_EQ(::ftruncate(fd, 100), 0);
  launch({.grid = 2, .block = 32}, kernel);
  EXPECT_EQ(outcomes.read_one(0), 2u);
  EXPECT_EQ(outcomes.read_one(1), 2u);

  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int i = 0; i < 2000; ++i) {
      if (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, nbytes) != 0) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  unsigned nruns = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    launch({.grid = 2, .block = 32}, pull_kernel{dst.get(), static_cast<const unsigned char*>(map), nbytes, 10, outcomes.get()});
    ++nruns;
  }
  EXPECT_EQ(status, 0);
  const auto counts = outcomes.read();
  EXPECT_EQ(counts[0] + counts[1], 4 + 20 * nruns);
  EXPECT_EQ(counts[2], 0u);
  ::munmap(map, nbytes);
  EXPECT_EQ(copy_from_host(this_thread(), dst.get(), map, 100), -EIO);  // unmapped
  ::close(fd);
}

}  // namespace
}  // namespace gpufs::simt::test
