// SPDX-License-Identifier: Apache-2.0
// Calls on paths: what they do, what they refuse, and that nothing outside of the root changes. Each runs with openat2 and with the
// walk that replaces it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <thread>

#include "gpufs/store/posix_store.hpp"
#include "posix_extras.hpp"

namespace gpufs::test {
namespace {

class store_of_paths : public testing::TestWithParam<bool> {
 protected:
  store_of_paths() {
    std::filesystem::create_directory(dir_ / "root");
    files_ = std::make_unique<store::posix_store>(dir_ / "root", store::posix_options{.writable = true});
  }
  std::string in_root(const std::string& name) const { return dir_ / ("root/" + name); }
  bool exists(const std::string& name) const {
    struct stat st;
    return lstat(in_root(name).c_str(), &st) == 0;
  }
  void link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(symlink(target.c_str(), in_root(name).c_str()), 0);
  }
  int rename(std::string_view from, std::string_view to) {
    mode_ = 0;
    return files_->rename(from, to, &mode_);
  }
  int status(std::string_view path, bool link = false) { return files_->status(path, link, &status_); }

  const set_meanwhile<bool> walks_{store::openat2_missing, !GetParam()};
  temp_dir dir_;
  std::unique_ptr<store::store> files_;
  std::uint32_t mode_ = 0;
  store::path_status status_;
};

TEST_P(store_of_paths, unlinks) {
  dir_.add("root/a", 10, 1);
  dir_.add("root/d/b", 10, 1);
  dir_.add("outside", 10, 1);
  std::filesystem::create_directory(in_root("empty"));
  link("a", "to_a");
  link("empty", "to_empty");
  link("../outside", "out");
  EXPECT_EQ(files_->unlink("none", false), -ENOENT);
  EXPECT_EQ(files_->unlink("d", false), -EISDIR);
  EXPECT_EQ(files_->unlink("d", true), -ENOTEMPTY);
  EXPECT_EQ(files_->unlink("a", true), -ENOTDIR);
  EXPECT_EQ(files_->unlink("a/", false), -ENOTDIR);
  EXPECT_EQ(files_->unlink("a/b", false), -ENOTDIR);
  EXPECT_EQ(files_->unlink("to_empty", true), -ENOTDIR);
  EXPECT_EQ(files_->unlink("to_empty/", true), -ENOTDIR);
  EXPECT_EQ(files_->unlink("to_a", false), 0) << "the link, not what it names";
  EXPECT_EQ(files_->unlink("out", false), 0);
  EXPECT_EQ(files_->unlink("/a", false), 0);
  EXPECT_EQ(files_->unlink("d/../d//b", false), 0);
  EXPECT_EQ(files_->unlink("d/", true), 0);
  EXPECT_EQ(files_->unlink("empty", true), 0);
  EXPECT_EQ(names_in(dir_ / "root"), std::vector<std::string>{"to_empty"});
  EXPECT_TRUE(std::filesystem::exists(dir_ / "outside"));
}

TEST_P(store_of_paths, renames) {
  dir_.add("root/a", 10, 1);
  dir_.add("root/b", 10, 2);
  dir_.add("root/d/c", 10, 3);
  std::filesystem::create_directory(in_root("empty"));
  link("a", "to_a");
  EXPECT_EQ(rename("none", "x"), -ENOENT);
  EXPECT_EQ(rename("a", "none/x"), -ENOENT);
  EXPECT_EQ(rename("a", "d"), -EISDIR);
  EXPECT_EQ(rename("empty", "a"), -ENOTDIR);
  EXPECT_EQ(rename("empty", "d"), -ENOTEMPTY);
  EXPECT_EQ(rename("d", "d/e"), -EINVAL);
  EXPECT_EQ(rename("a", "x/"), -ENOTDIR);
  EXPECT_EQ(rename("a", "b"), 0);
  EXPECT_EQ(mode_ & S_IFMT, static_cast<unsigned>(S_IFREG));
  EXPECT_EQ(file_bytes(in_root("b")), content(1, 0, 10));
  EXPECT_EQ(rename("b", "/d/b"), 0);
  EXPECT_EQ(rename("d", "empty/"), 0);
  EXPECT_EQ(mode_ & S_IFMT, static_cast<unsigned>(S_IFDIR));
  EXPECT_EQ(file_bytes(in_root("empty/c")), content(3, 0, 10));
  EXPECT_EQ(rename("to_a", "link"), 0);
  EXPECT_EQ(mode_ & S_IFMT, static_cast<unsigned>(S_IFLNK));
  EXPECT_EQ(names_in(dir_ / "root"), (std::vector<std::string>{"empty", "link"}));
}

TEST_P(store_of_paths, makes_directories) {
  dir_.add("root/a", 10, 1);
  link("none", "dangling");
  const mode_t before = umask(022);
  EXPECT_EQ(files_->make_directory("d", 0777), 0);
  EXPECT_EQ(files_->make_directory("d/e/", 0700), 0);
  umask(before);
  EXPECT_EQ(status("d"), 0);
  EXPECT_EQ(status_.mode, S_IFDIR | 0755u);
  EXPECT_EQ(status("d/e"), 0);
  EXPECT_EQ(status_.mode, S_IFDIR | 0700u);
  EXPECT_EQ(files_->make_directory("d", 0777), -EEXIST);
  EXPECT_EQ(files_->make_directory("a", 0777), -EEXIST);
  EXPECT_EQ(files_->make_directory("dangling", 0777), -EEXIST);
  EXPECT_EQ(files_->make_directory("x/y", 0777), -ENOENT);
  EXPECT_EQ(files_->make_directory("a/y", 0777), -ENOTDIR);
}

TEST_P(store_of_paths, refuses_paths) {
  std::filesystem::create_directories(in_root("d/e"));
  std::filesystem::create_directory(dir_ / "outside");
  link("../outside", "out");
  link(dir_ / "outside", "absolute");
  link("loop", "loop");
  const std::pair<std::string, int> cases[] = {{"", -ENOENT},
                                               {"/", -EISDIR},
                                               {"//", -EISDIR},
                                               {".", -EINVAL},
                                               {"./", -EINVAL},
                                               {"..", -EINVAL},
                                               {"d/..", -EINVAL},
                                               {"d/.", -EINVAL},
                                               {"d/e/../", -EINVAL},
                                               {"../x", -EXDEV},
                                               {"d/../../x", -EXDEV},
                                               {"out/x", -EXDEV},
                                               {"absolute/x", -EXDEV},
                                               {"loop/x", -ELOOP},
                                               {std::string("a\0b", 3), -EINVAL},
                                               {std::string(256, 'x'), -ENAMETOOLONG},
                                               {std::string(4096, 'x'), -ENAMETOOLONG}};
  dir_.add("root/a", 10, 1);
  for (const auto& [path, error] : cases) {
    EXPECT_EQ(files_->unlink(path, false), error) << path;
    EXPECT_EQ(files_->unlink(path, true), error) << path;
    EXPECT_EQ(files_->make_directory(path, 0777), error) << path;
    EXPECT_EQ(rename(path, "new"), error) << path;
    EXPECT_EQ(rename("a", path), error) << path;
  }
  EXPECT_TRUE(names_in(dir_ / "outside").empty());
  EXPECT_EQ(files_->make_directory("d/e/../ok", 0777), 0);
  EXPECT_TRUE(exists("d/ok"));
}

TEST_P(store_of_paths, says_what_a_path_is) {
  dir_.add("root/a", 12'345, 1);
  std::filesystem::create_directory(in_root("d"));
  ASSERT_EQ(mkfifo(in_root("d/fifo").c_str(), 0644), 0);
  dir_.add("outside", 10, 1);
  link("a", "to_a");
  link("d", "to_d");
  link("../outside", "out");
  link("none", "dangling");
  struct stat st;
  ASSERT_EQ(stat(in_root("a").c_str(), &st), 0);
  for (const char* path : {"a", "/a", "d/../a", "to_a", "to_d/../a"}) {
    ASSERT_EQ(status(path), 0) << path;
    EXPECT_EQ(status_.nbytes, 12'345);
    EXPECT_EQ(status_.inode, st.st_ino);
    EXPECT_EQ(status_.mode, st.st_mode);
    EXPECT_EQ(status_.mtime_ns,
              static_cast<std::uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(st.st_mtim.tv_nsec));
  }
  ASSERT_EQ(stat((dir_ / "root").c_str(), &st), 0);
  for (const char* path : {"", "/", ".", "./", "d/.."}) {
    for (const bool link : {false, true}) {
      ASSERT_EQ(status(path, link), 0) << path;
      EXPECT_EQ(status_.inode, st.st_ino) << path;
    }
  }
  EXPECT_EQ(status("d/fifo"), 0) << "and waits for nobody";
  EXPECT_EQ(status_.mode & S_IFMT, static_cast<unsigned>(S_IFIFO));
  for (const char* path : {"to_a", "out", "dangling"}) {
    EXPECT_EQ(status(path, true), 0) << path;
    EXPECT_EQ(status_.mode & S_IFMT, static_cast<unsigned>(S_IFLNK)) << path;
  }
  EXPECT_EQ(status("to_d/", true), 0);
  EXPECT_EQ(status_.mode & S_IFMT, static_cast<unsigned>(S_IFDIR)) << "a slash follows the link, as in POSIX";
  EXPECT_EQ(status("out"), -EXDEV);
  EXPECT_EQ(status(".."), -EXDEV);
  EXPECT_EQ(status("dangling"), -ENOENT);
  EXPECT_EQ(status("a/"), -ENOTDIR);
  EXPECT_EQ(status("a/b"), -ENOTDIR);
  EXPECT_EQ(status(std::string_view("a\0", 2)), -EINVAL);
}

// All entries, in answers of nbytes bytes each.
std::map<std::string, directory_entry> list(store::store& files, std::string_view path, std::size_t nbytes) {
  std::map<std::string, directory_entry> all;
  std::int64_t position = 0;
  std::vector<std::byte> out(nbytes);
  for (;;) {
    const std::int64_t n = files.read_directory(path, &position, out);
    if (n <= 0) {
      EXPECT_EQ(n, 0);
      return all;
    }
    for (std::int64_t at = 0; at < n;) {
      directory_entry entry;
      std::memcpy(&entry, out.data() + at, sizeof entry);
      const char* name = reinterpret_cast<const char*>(out.data() + at + sizeof entry);
      EXPECT_EQ(entry.entry_nbytes % 8, 0);
      EXPECT_EQ(std::strlen(name), entry.name_nbytes);
      EXPECT_TRUE(all.emplace(name, entry).second) << name << " was there before";
      at += entry.entry_nbytes;
    }
  }
}

TEST_P(store_of_paths, reads_directories) {
  std::vector<std::string> names;
  for (int i = 0; i < 700; ++i) {
    names.push_back("file" + std::to_string(i) + std::string(static_cast<std::size_t>(i % 200), 'x'));
    dir_.add("root/d/" + names.back(), static_cast<std::uint64_t>(i), 1);
  }
  std::filesystem::create_directory(in_root("d/sub"));
  link("nowhere", "d/link");
  for (const std::size_t nbytes : {288ul, 1000ul, 4096ul, 1ul << 20}) {
    const auto all = list(*files_, "d", nbytes);
    EXPECT_EQ(all.size(), 702u) << nbytes;
    for (int i = 0; i < 700; ++i) {
      const auto found = all.find(names[static_cast<std::size_t>(i)]);
      ASSERT_NE(found, all.end()) << i;
      struct stat st;
      ASSERT_EQ(stat(in_root("d/" + found->first).c_str(), &st), 0);
      EXPECT_EQ(found->second.file_nbytes, i);
      EXPECT_EQ(found->second.inode, st.st_ino);
      EXPECT_EQ(found->second.mode, st.st_mode);
    }
    EXPECT_TRUE(S_ISDIR(all.at("sub").mode));
    EXPECT_TRUE(S_ISLNK(all.at("link").mode));
  }
  for (const char* root : {"", "/", ".", "d/.."}) EXPECT_EQ(list(*files_, root, 4096).size(), 1u) << root;
  EXPECT_TRUE(list(*files_, "d/sub", 4096).empty());
  std::int64_t position = 0;
  std::vector<std::byte> out(39);
  EXPECT_EQ(files_->read_directory("d", &position, out), -EINVAL) << "not even one fits";
  EXPECT_EQ(files_->read_directory("none", &position, out), -ENOENT);
  EXPECT_EQ(files_->read_directory("d/link", &position, out), -ENOENT);
  EXPECT_EQ(files_->read_directory("d/file0", &position, out), -ENOTDIR);
  EXPECT_EQ(files_->read_directory("..", &position, out), -EXDEV);
  out.resize(4096);
  for (const std::int64_t odd : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    position = odd;
    EXPECT_EQ(files_->read_directory("d", &position, out), -EINVAL);
  }
  for (const std::int64_t odd : {std::int64_t{1}, std::int64_t{12345}, std::numeric_limits<std::int64_t>::max()}) {
    position = odd;  // some entries or an error, as the file system has it
    EXPECT_LE(files_->read_directory("d", &position, out), 4096);
  }
}

TEST_P(store_of_paths, a_store_that_may_not_write_looks_only) {
  dir_.add("root/a", 10, 1);
  store::posix_store reads(dir_ / "root");
  std::uint32_t mode = 0;
  EXPECT_EQ(reads.unlink("a", false), -EROFS);
  EXPECT_EQ(reads.rename("a", "b", &mode), -EROFS);
  EXPECT_EQ(reads.make_directory("d", 0777), -EROFS);
  EXPECT_EQ(reads.status("a", false, &status_), 0);
  EXPECT_EQ(list(reads, "", 4096).size(), 1u);
  EXPECT_EQ(names_in(dir_ / "root"), std::vector<std::string>{"a"});
}

// Another process swaps a directory for a link out of the root and back, as fast as it can.
TEST_P(store_of_paths, stay_below_the_root_while_links_are_swapped_in) {
  std::filesystem::create_directories(dir_ / "outside/empty");
  std::filesystem::create_directories(in_root("d"));
  std::filesystem::create_directories(in_root("safe"));
  dir_.add("outside/old", 10, 1);
  std::atomic<bool> ends{false};
  std::thread swapper([&] { swap_with_link_until(ends, in_root("d"), dir_ / "outside"); });
  int ndone = 0, nrefused = 0;
  const auto count = [&](int result) { ++(result == 0 ? ndone : nrefused); };
  std::vector<std::byte> out(4096);
  for (int i = 0; i < 300; ++i) {
    count(files_->make_directory("d/new", 0777));
    count(files_->unlink("d/empty", true));
    count(files_->unlink("d/old", false));
    count(rename("d/old", "safe/old"));
    count(rename("d/new", "d/renamed"));
    count(files_->unlink("d/renamed", true));
    dir_.add("root/safe/mine", 10, 2);
    count(rename("safe/mine", "d/old"));
    std::int64_t position = 0;
    if (files_->read_directory("d", &position, out) > 0) {
      const char* name = reinterpret_cast<const char*>(out.data() + sizeof(directory_entry));
      EXPECT_STRNE(name, "empty") << "only the directory outside has it";
    }
  }
  ends = true;
  swapper.join();
  EXPECT_GT(ndone, 0);
  EXPECT_GT(nrefused, 0);
  EXPECT_EQ(names_in(dir_ / "outside"), (std::vector<std::string>{"empty", "old"}));
  EXPECT_EQ(file_bytes(dir_ / "outside/old"), content(1, 0, 10));
}

INSTANTIATE_TEST_SUITE_P(resolution, store_of_paths, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "openat2" : "walk"); });

}  // namespace
}  // namespace gpufs::test
