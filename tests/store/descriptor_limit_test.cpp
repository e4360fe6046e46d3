// SPDX-License-Identifier: Apache-2.0
// More files open than the process may have descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpufs/store/posix_store.hpp"

namespace gpufs::store {
namespace {

class descriptor_limit : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit low = before_;
    low.rlim_cur = 100;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    std::string name = (std::filesystem::temp_directory_path() / "gpufs-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (int i = 0; i < 500; ++i) write(i, "file " + std::to_string(i));
  }
  void TearDown() override {
    ::setrlimit(RLIMIT_NOFILE, &before_);
    std::filesystem::remove_all(folder_);
  }

  static std::string name(int i) { return std::to_string(i); }
  void write(int i, const std::string& text) { std::ofstream(folder_ / name(i)) << text; }
  static std::string read(open_file& file) {
    std::vector<std::byte> bytes(64);
    const std::int64_t n = file.pread(bytes, 0);
    return n < 0 ? "error " + std::to_string(n)
                 : std::string(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n));
  }

  rlimit before_{};
  std::filesystem::path folder_;
};

TEST_F(descriptor_limit, all_files_open_and_read) {
  posix_store files(folder_.string());
  std::vector<std::unique_ptr<open_file>> open;
  int without = 0;
  for (int i = 0; i < 500; ++i) {
    int error = 0;
    open.push_back(files.open(name(i), O_RDONLY, &error));
    ASSERT_NE(open.back(), nullptr) << "file " << i << ": " << error;
    without += open.back()->descriptor() < 0;
  }
  EXPECT_EQ(without, 500 - 75) << "three quarters of 100 are kept";
  for (int i = 0; i < 500; ++i) EXPECT_EQ(read(*open[static_cast<std::size_t>(i)]), "file " + std::to_string(i));
  // Descriptors that are given back are used again.
  open.erase(open.begin(), open.begin() + 75);
  int error = 0;
  EXPECT_GE(files.open(name(0), O_RDONLY, &error)->descriptor(), 0);
}

TEST_F(descriptor_limit, a_file_without_a_descriptor_is_stale_when_its_path_names_another) {
  posix_store files(folder_.string());
  std::vector<std::unique_ptr<open_file>> open;
  for (int i = 0; i < 200; ++i) {
    int error = 0;
    open.push_back(files.open(name(i), O_RDONLY, &error));
    ASSERT_NE(open.back(), nullptr) << error;
  }
  std::filesystem::rename(folder_ / name(499), folder_ / name(150));
  std::filesystem::remove(folder_ / name(151));
  write(152, "longer than it was");
  const std::string stale = "error " + std::to_string(-ESTALE);
  EXPECT_EQ(read(*open[150]), stale);
  EXPECT_EQ(read(*open[151]), stale);
  EXPECT_EQ(read(*open[152]), stale);
  EXPECT_EQ(open[152]->check_version(), -ESTALE);
  EXPECT_EQ(read(*open[153]), "file 153");
  EXPECT_EQ(open[153]->check_version(), 0);
}

TEST_F(descriptor_limit, a_file_open_for_writing_keeps_its_descriptor) {
  posix_store files(folder_.string(), {.writable = true});
  std::vector<std::unique_ptr<open_file>> open;
  int error = 0;
  while (open.size() < 200) {
    auto file = files.open(name(static_cast<int>(open.size())), O_RDWR, &error);
    if (!file) break;
    EXPECT_GE(file->descriptor(), 0);
    open.push_back(std::move(file));
  }
  EXPECT_EQ(error, -EMFILE);
  EXPECT_GT(open.size(), 75u) << "only the kernel limits them";
  open.pop_back();
  const auto reader = files.open(name(300), O_RDONLY, &error);
  ASSERT_NE(reader, nullptr);
  EXPECT_LT(reader->descriptor(), 0) << "readers give way";
  EXPECT_EQ(read(*reader), "file 300");
}

}  // namespace
}  // namespace gpufs::store
