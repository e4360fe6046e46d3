// SPDX-License-Identifier: Apache-2.0
// Two processes, each with a mount of one directory that lives all the while, and with a GPU of its own where there are two: what
// one's kernels have written and closed, kernels of the other see that open the file then; and of a page that both write at once,
// all keep their bytes: of a file on disk, and of one in memory that both write in place. The second process is this program,
// started anew.
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "file/script.hpp"

extern char** environ;

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace {

constexpr std::uint32_t page = 512;
constexpr std::int64_t rounds = fewer(24);
constexpr std::size_t file_nbytes = 20 * page + 100, cell = 7;  // every other cell is the second process's
constexpr const char *file_name = "shared", *peer_variable = "GPUFS_TEST_PEER", *place_variable = "GPUFS_TEST_PEER_PLACE";
enum class side : std::uint64_t { first, second };
enum class place : int { disk, memory };

// At the end of a round.
std::vector<std::byte> bytes_of(side of, std::int64_t round) {
  return round < 0 ? std::vector<std::byte>(file_nbytes)
                   : content(1000 + 2 * static_cast<std::uint64_t>(round) + std::uint64_t(of), 0, file_nbytes);
}
std::vector<std::byte> merged(std::int64_t first_round, std::int64_t second_round) {
  std::vector<std::byte> all = bytes_of(side::first, first_round);
  const auto second = bytes_of(side::second, second_round);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i / cell % 2 == 1) all[i] = second[i];
  }
  return all;
}

// In odd rounds both write at once; in even ones the second after the first.
bool at_once(std::int64_t round) { return round % 2 == 1; }

struct process {
  process(const std::filesystem::path& directory, side s, place where)
      : me(s), dir(directory), fs(dir / "files", options_for(dir / "files", where)) {}

  static mount_options options_for(const std::filesystem::path& root, place where) {
    mount_options o = writing_options(page, 16);
    if (where == place::memory) o.custom_store = mapping_store(root);
    return o;
  }

  // That the device writes the file in place, if it is in memory.
  void expect_source(place where) {
    script open, close;
    open.open(0, file_name, O_RDWR);
    close.close(0);
    groups.run(open);
    const auto files = fs.open_files();
    groups.run(close);
    ASSERT_EQ(files.size(), 1u);
    EXPECT_EQ(files[0].reason.starts_with("live: "), where == place::memory) << files[0].reason;
  }

  // What a kernel reads that opens the file; it then writes this round's bytes, and closes.
  std::vector<std::byte> read_and_write(std::int64_t round) {
    script s;
    s.open(0, file_name, O_RDWR);
    const auto read = s.pread(0, file_nbytes, 0);
    const auto mine = bytes_of(me, round);
    std::vector<std::size_t> writes;
    for (std::size_t at = me == side::first ? 0 : cell; at < file_nbytes; at += 2 * cell) {
      const std::size_t end = std::min(at + cell, file_nbytes);
      writes.push_back(s.pwrite(0, {mine.begin() + std::ptrdiff_t(at), mine.begin() + std::ptrdiff_t(end)}, std::int64_t(at)));
    }
    const auto close = s.close(0);
    const auto got = groups.run(s);
    EXPECT_EQ(got[read].value, std::int64_t{file_nbytes});
    for (const std::size_t w : writes) EXPECT_GT(got[w].value, 0);
    EXPECT_EQ(got[close].value, 0);
    return {got[read].bytes.begin(), got[read].bytes.begin() + file_nbytes};
  }

  void tell(const char* what, std::int64_t round) const { std::ofstream(dir / (what + std::to_string(round))); }
  bool wait_for(const char* what, std::int64_t round) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(dir / (what + std::to_string(round)))) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }

  side me;
  std::filesystem::path dir;
  mount fs;
  players groups{fs.ref(), {.grid = 1, .block = 32}};
};

// The environment of a process with the second GPU, if there are two: `devices` are those of this one.
std::vector<std::string> environment_of_peer(const std::string& directory, place where) {
  std::vector<std::string> all;
  std::string devices = "0,1";
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string one = *e;
    if (one.starts_with("CUDA_VISIBLE_DEVICES=")) {
      devices = one.substr(one.find('=') + 1);
    } else if (!one.starts_with("GTEST_")) {
      all.push_back(one);
    }
  }
  int count = 1;
#if GPUFS_ON_CUDA
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 1;
#endif
  const std::size_t comma = devices.find(',');
  if (count >= 2 && comma != std::string::npos) {
    devices = devices.substr(comma + 1, devices.find(',', comma + 1) - comma - 1);
  } else {
    devices = devices.substr(0, comma);
  }
  std::printf("%d GPU%s\n", count, count == 1 ? "" : "s");
  all.push_back("CUDA_VISIBLE_DEVICES=" + devices);
  all.push_back(std::string(peer_variable) + "=" + directory);
  all.push_back(std::string(place_variable) + "=" + std::to_string(static_cast<int>(where)));
  return all;
}

class processes : public ::testing::TestWithParam<place> {};
INSTANTIATE_TEST_SUITE_P(files, processes, ::testing::Values(place::disk, place::memory),
                         [](const auto& which) { return which.param == place::memory ? "in_memory" : "on_disk"; });

TEST_P(processes, see_what_others_have_closed_and_keep_each_others_bytes) {
  if (GetParam() == place::memory && memory_directory() != "/dev/shm") GTEST_SKIP() << "there is no tmpfs at /dev/shm";
  const temp_dir dir(GetParam() == place::memory ? memory_directory() : std::filesystem::temp_directory_path());
  std::filesystem::create_directory(dir / "files");
  std::ofstream(dir / "files/shared") << std::string(file_nbytes, '\0');  // without holes, else nobody writes it in place
  auto variables = environment_of_peer(dir.path(), GetParam());
  std::vector<char*> environment;
  for (std::string& v : variables) environment.push_back(v.data());
  environment.push_back(nullptr);
  std::string filter = "--gtest_filter=second_process.DISABLED_runs", also = "--gtest_also_run_disabled_tests",
              self = "/proc/self/exe";
  char* arguments[] = {self.data(), filter.data(), also.data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environment.data()), 0);
  {
    process first(dir.path(), side::first, GetParam());
    first.expect_source(GetParam());
    for (std::int64_t round = 0; round < rounds && !HasFailure(); ++round) {
      if (at_once(round)) first.tell("go", round);
      const auto seen = first.read_and_write(round);
      if (!at_once(round)) {
        EXPECT_EQ(seen, merged(round - 1, round - 1)) << "round " << round;
        first.tell("go", round);
      }
      EXPECT_TRUE(first.wait_for("done", round)) << "round " << round;
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the second process";
  EXPECT_EQ(dir.read("files/shared"), merged(rounds - 1, rounds - 1));
}

// The second process.
TEST(second_process, DISABLED_runs) {
  const char *directory = std::getenv(peer_variable), *where = std::getenv(place_variable);
  if (directory == nullptr || where == nullptr) GTEST_SKIP() << "it is started by the other test";
  const place folder{std::atoi(where)};
  process second(directory, side::second, folder);
  second.expect_source(folder);
  for (std::int64_t round = 0; round < rounds; ++round) {
    ASSERT_TRUE(second.wait_for("go", round)) << "round " << round;
    const auto seen = second.read_and_write(round);
    if (!at_once(round)) {
      EXPECT_EQ(seen, merged(round, round - 1)) << "round " << round;
    }
    second.tell("done", round);
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
