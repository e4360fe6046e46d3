// SPDX-License-Identifier: Apache-2.0
// Calls of a program that a process makes, by the operating system alone; and what is below a directory.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz/names.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

struct posix_result {
  std::int64_t value = 0;
  std::uint64_t inode = 0;
};

// By a path below `root`. write opens the file, which must be there.
inline posix_result make_by_posix(const std::string& root, const call& c) {
  const std::string path = root + "/" + c.path, second = root + "/" + c.second;
  const auto result = [](int error) { return posix_result{error == 0 ? 0 : -errno, 0}; };
  switch (c.what) {
    case verb::unlink:
      return result(::unlink(path.c_str()));
    case verb::rmdir:
      return result(::rmdir(path.c_str()));
    case verb::mkdir:
      return result(::mkdir(path.c_str(), 0777));
    case verb::rename:
      return result(::rename(path.c_str(), second.c_str()));
    case verb::write: {
      const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      if (fd < 0) return {-errno, 0};
      struct ::stat status {};
      posix_result r{::fstat(fd, &status) != 0 ? -errno : 0, status.st_ino};
      const auto bytes = content(c.id, 0, c.nbytes);
      if (r.value == 0) {
        const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(c.begin));
        r.value = n < 0 ? -errno : n;
      }
      ::close(fd);
      return r;
    }
    default:
      return {-ENOSYS, 0};
  }
}

inline void add_names(name_tree& tree, const std::string& root, const std::string& below) {
  DIR* directory = ::opendir((root + "/" + below).c_str());
  if (directory == nullptr) fail_errno("opendir " + below);
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name, path = below.empty() ? name : below + "/" + name;
    if (name == "." || name == "..") continue;
    struct ::stat status {};
    if (::lstat((root + "/" + path).c_str(), &status) != 0) fail_errno("lstat " + path);
    const bool is_directory = S_ISDIR(status.st_mode);
    node& n = tree.nodes[path];
    if (S_ISLNK(status.st_mode)) {
      n = {node_kind::link, 0, std::filesystem::read_symlink(root + "/" + path).string()};
    } else {
      n = {is_directory ? node_kind::directory : node_kind::file,
           is_directory ? 0 : status.st_ino,
           {},
           is_directory ? status.st_ino : 0};
    }
    if (is_directory) add_names(tree, root, path);
  }
  ::closedir(directory);
}
inline name_tree names_below(const std::string& root) {
  name_tree tree;
  add_names(tree, root, "");
  return tree;
}

inline std::size_t open_descriptors() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
  return n;
}

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
