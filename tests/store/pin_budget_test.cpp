// SPDX-License-Identifier: Apache-2.0
// A container's memory limit bounds what mappings may pin.
#include "../../src/store/pin_budget.hpp"

#include <sys/wait.h>

#include <fstream>

#include "file/harness.hpp"
#include "file/name_spaces.hpp"
#include "gpufs/store/mapped_store.hpp"

namespace gpufs::test {
namespace {

constexpr std::uint64_t none = ~std::uint64_t{0};

class memory_limit : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  std::uint64_t limit(const std::string& groups) {
    put("groups", groups);
    return store::memory_limit(dir_ / "groups", dir_ / "mounted");
  }
  temp_dir dir_;
};

TEST_F(memory_limit, is_the_least_of_the_group_and_those_above_it) {
  put("mounted/a/memory.max", "7000000\n");
  put("mounted/a/b/memory.max", "max\n");
  put("mounted/a/b/c/memory.max", "9000000\n");
  EXPECT_EQ(limit("0::/a/b/c\n"), 7'000'000u);
  EXPECT_EQ(limit("0::/a/b\n"), 7'000'000u);
  EXPECT_EQ(limit("0::/x\n"), none);
  EXPECT_EQ(limit("0::/\n"), none);
  put("mounted/memory.max", "5000000\n");
  EXPECT_EQ(limit("0::/\n"), 5'000'000u) << "a container's own group, mounted as the root";
  EXPECT_EQ(limit("0::/not/to/be/seen\n"), 5'000'000u);
}

TEST_F(memory_limit, of_the_first_version_of_control_groups) {
  put("mounted/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("mounted/memory/a/memory.limit_in_bytes", "8000000\n");
  EXPECT_EQ(limit("9:name=systemd:/\n4:cpu,memory:/a/b\n3:memoryless:/\n0::/\n"), 8'000'000u);
  EXPECT_EQ(limit("4:memory:/\n"), 9223372036854771712u);
  EXPECT_EQ(limit("3:cpu:/a\n"), none);
  EXPECT_EQ(limit("nonsense\n:\n::\n"), none);
  EXPECT_EQ(store::memory_limit(dir_ / "none", dir_ / "mounted"), none);
}

// A control group of our own, where we may make one; else nothing is tested here.
TEST_F(memory_limit, bounds_the_budget_of_a_process_in_it) {
  std::string parent, name = "memory.max";
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t path = line.find(":/") + 1;
    if (line.find(":memory:") != std::string::npos) {
      parent = "/sys/fs/cgroup/memory" + line.substr(path);
      name = "memory.limit_in_bytes";
      break;
    }
    if (line.starts_with("0::")) parent = "/sys/fs/cgroup" + line.substr(path);
  }
  const std::string group = parent + "/gpufs-test-" + std::to_string(::getpid());
  if (parent.empty() || ::mkdir(group.c_str(), 0755) != 0) GTEST_SKIP() << "no control group can be made in '" << parent << "'";
  constexpr std::uint64_t limit_nbytes = 256 << 20;
  const bool limited = write_text((group + "/" + name).c_str(), std::to_string(limit_nbytes));
  const pid_t child = ::fork();
  if (child == 0) {
    if (!limited || !write_text((group + "/cgroup.procs").c_str(), std::to_string(::getpid()))) ::_exit(77);
    const store::mapped_store asked(simt::cpu_platform(), dir_.path(), std::uint64_t{1} << 40),
        usual(simt::cpu_platform(), dir_.path());
    EXPECT_LE(store::default_pin_nbytes(), limit_nbytes / 2);
    EXPECT_LE(usual.usage().budget_nbytes, limit_nbytes / 2);
    EXPECT_EQ(asked.usage().budget_nbytes, limit_nbytes);
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(wait_until([&] { return ::rmdir(group.c_str()) == 0; }));
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no process can be put into a control group with a memory limit";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpufs::test
