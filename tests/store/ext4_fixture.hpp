// SPDX-License-Identifier: Apache-2.0
// Stores of file systems in images, for ext4_store_test.cpp and ext4_damage_test.cpp.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <map>

#include "ext4_image.hpp"
#include "gpufs/store/mem_store.hpp"
#include "gpufs/store/posix_store.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {

inline constexpr char plain[] = "-t ext4 -b 1024 -O ^metadata_csum,^64bit,^has_journal -I 256";  // words that can be patched

// A device of these bytes, in memory. `before` comes before each read: its -errno is the read's, and so is what it throws.
class odd_device final : public gpufs::store::store {
 public:
  odd_device(std::vector<std::byte> bytes, std::function<int()> before)
      : bytes_(std::make_shared<std::vector<std::byte>>(std::move(bytes))), before_(std::move(before)) {}
  std::unique_ptr<gpufs::store::open_file> open(std::string_view, int flags, int* error) override {
    *error = flags == O_RDONLY ? 0 : -EROFS;
    return flags == O_RDONLY ? std::make_unique<file>(*this) : nullptr;
  }
  std::string_view name() const override { return "odd"; }

 private:
  struct file final : gpufs::store::open_file {
    explicit file(const odd_device& of) : bytes(of.bytes_), before(of.before_) {
      known.nbytes = static_cast<std::int64_t>(bytes->size());
    }
    const gpufs::store::file_info& info() const override { return known; }
    std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
      if (const int error = before(); error != 0) return error;
      std::memcpy(dst.data(), bytes->data() + offset, dst.size());
      return static_cast<std::int64_t>(dst.size());
    }
    std::shared_ptr<const std::vector<std::byte>> bytes;
    std::function<int()> before;
    gpufs::store::file_info known;
  };
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::function<int()> before_;
};

class ext4 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_ext4(); !why.empty()) GTEST_SKIP() << why;
  }
  std::shared_ptr<store::store> mounted() const {
    return store::make_ext4_store(simt::cpu_platform(), std::make_shared<store::posix_store>(image_.dir.path()), {.file = "image"});
  }
  // The errno of a mount that is refused, and what it says.
  std::string refused() const {
    try {
      mounted();
    } catch (const std::system_error& error) {
      return std::to_string(error.code().value()) + " " + error.what();
    }
    return "mounted";
  }
  void expect_refused(int error, const std::string& words) const {
    const std::string said = refused();
    EXPECT_EQ(said.substr(0, said.find(' ')), std::to_string(error)) << said;
    EXPECT_NE(said.find(words), said.npos) << said;
  }
  // What an open of it says.
  static std::pair<int, std::string> opened(store::store& files, const std::string& path) {
    int error = 0;
    std::string why;
    files.open_explained(path, O_RDONLY, &error, &why);
    return {error, why};
  }
  // Every file of the tree is in the file system, with its bytes.
  void expect_tree(store::store& files) const {
    std::size_t nfiles = 0;
    for (const auto& each : std::filesystem::recursive_directory_iterator(image_.tree(""))) {
      if (!each.is_regular_file() || each.is_symlink()) continue;
      const std::string path = std::filesystem::relative(each.path(), image_.tree("")).string();
      int error = 0;
      const auto file = files.open(path, O_RDONLY, &error);
      ASSERT_TRUE(file) << path << " " << error;
      struct stat st;
      ASSERT_EQ(::stat(each.path().c_str(), &st), 0);
      EXPECT_EQ(file->info().nbytes, st.st_size);
      EXPECT_EQ(file->info().mode, st.st_mode);
      EXPECT_TRUE(read_all(*file) == file_bytes(each.path())) << path;
      ++nfiles;
    }
    EXPECT_GT(nfiles, 0u);
  }
  void link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(::symlink(target.c_str(), image_.tree(name).c_str()), 0);
  }
  void add_tree(const char* options) const {
    for (const std::uint64_t nbytes : {0, 1, 60, 100, 1023, 1025, 4096, 4097, 300'001})
      image_.dir.add("tree/of_" + std::to_string(nbytes), nbytes, nbytes + 1);
    image_.dir.add("tree/d/e/f", 5000, 7);
    image_.dir.add_sparse("tree/sparse", 100'000, 5000, 8);
    // Of mke2fs with inline data the last hole is lost.
    const bool may_end_in_a_hole = std::string(options).find("inline_data") == std::string::npos;
    image_.dir.add_sparse("tree/sparse_at_both_ends", 40'000, 5000, 9);
    if (may_end_in_a_hole) image_.dir.resize("tree/sparse_at_both_ends", 200'000);
  }

  const ext4_image image_;
};

}  // namespace gpufs::test
