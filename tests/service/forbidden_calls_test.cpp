// SPDX-License-Identifier: Apache-2.0
// Where a container forbids system calls (openat2, io_uring), files are opened, read and written without them, and no path leads
// out.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>

#include "file/harness.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/auto_store.hpp"
#include "ring_client.hpp"

namespace gpufs::test {
namespace {

// For this thread and those that it starts, for ever: 0 or an errno.
int forbid(int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return errno;
  return 0;
}

class forbidden_calls : public testing::TestWithParam<int> {
 protected:
  void use_files() {
    dir_.add("root/d/large", 1 << 20, 1);
    dir_.add("root/d/small", 10'000, 2);
    dir_.add("outside", 100, 3);
    const auto link = [&](const std::string& to, const std::string& at) {
      ASSERT_EQ(::symlink(to.c_str(), (dir_ / ("root/" + at)).c_str()), 0);
    };
    link("d/small", "inside");
    link("../outside", "out");
    link(dir_ / "outside", "absolute");
    ASSERT_EQ(::mkfifo((dir_ / "root/fifo").c_str(), 0644), 0);
    let_file_times_pass();
    service::service host(simt::cpu_platform(),
                          std::make_shared<store::auto_store>(simt::cpu_platform(), dir_ / "root", 0,
                                                              store::auto_options{.posix = {.writable = true}}),
                          {.writable = true, .nworkers = 2});
    ring_client client(host.transport().rings);
    std::vector<std::byte> got;
    for (const auto& [path, seed] : {std::pair{"d/large", 1}, {"d/small", 2}, {"inside", 2}}) {
      const auto file = client.open(path);
      ASSERT_EQ(file.result, 0) << path;
      EXPECT_EQ(client.read(file.handle, 5000, 4096, &got), 4096);
      EXPECT_EQ(got, content(static_cast<std::uint64_t>(seed), 5000, 4096)) << path;
      EXPECT_EQ(client.close(file.handle), 0);
    }
    const auto fresh = client.open("d/new", O_RDWR | O_CREAT);
    ASSERT_EQ(fresh.result, 0);
    EXPECT_EQ(client.write(fresh.handle, 0, content(4, 0, 3000)), 3000);
    EXPECT_EQ(client.close(fresh.handle), 0);
    EXPECT_EQ(dir_.read("root/d/new"), content(4, 0, 3000));
    for (const char* path : {"out", "absolute", "../outside", "d/../../outside"})
      EXPECT_EQ(client.open(path).result, -EXDEV) << path;
    EXPECT_EQ(client.open("none").result, -ENOENT);
    EXPECT_EQ(client.open("fifo").result, -EOPNOTSUPP);
    bool told = false;
    for (const std::string& line : host.log()) told |= line.find("io_uring") != std::string::npos;
    EXPECT_TRUE(told) << "the log says that reads block";
  }
  temp_dir dir_;
};

TEST_P(forbidden_calls, are_done_without) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (forbid(GetParam()) != 0) ::_exit(77);
    if (::syscall(SYS_openat2, -1, "", nullptr, 0) != -1 || errno != GetParam()) ::_exit(78);
    use_files();
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "system calls cannot be forbidden here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

INSTANTIATE_TEST_SUITE_P(by, forbidden_calls, testing::Values(EPERM, ENOSYS),
                         [](const auto& p) { return std::string(p.param == EPERM ? "EPERM" : "ENOSYS"); });

}  // namespace
}  // namespace gpufs::test
