// SPDX-License-Identifier: Apache-2.0
// What tests of stores and service share beside file/harness.hpp.
#pragma once
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "../../src/store/beneath.hpp"
#include "file/harness.hpp"
#include "gpufs/store/store.hpp"
#include "set_meanwhile.hpp"

namespace gpufs::test {

inline std::vector<std::byte> read_all(store::open_file& file) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.info().nbytes));
  const std::int64_t n = file.pread(bytes, 0);
  if (n != file.info().nbytes) fail_errno("pread gave " + std::to_string(n));
  return bytes;
}

inline int error_of(store::store& store, std::string_view path, int flags = 0) {
  int error = 0;
  return store.open(path, flags, &error) == nullptr ? error : 0;
}

inline std::vector<std::byte> file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::byte> bytes;
  for (char c; in.get(c);) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// What an attacker does: puts a symbolic link to `target` in the place of `directory`, and the directory back, again and again.
inline void swap_with_link_until(const std::atomic<bool>& ends, const std::string& directory, const std::string& target) {
  const std::string link = directory + ".link";
  if (::symlink(target.c_str(), link.c_str()) != 0) fail_errno("symlink");
  bool swapped = false;
  for (; !ends || swapped; swapped = !swapped) {
    if (::renameat2(AT_FDCWD, directory.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE) != 0) fail_errno("renameat2");
  }
}

// A file system of so many bytes over a directory, where the process may mount one.
class small_tmpfs {
 public:
  small_tmpfs(std::string at, std::size_t nbytes) : at_(std::move(at)) {
    mounted_ = ::mount("gpufs-test", at_.c_str(), "tmpfs", 0, ("size=" + std::to_string(nbytes)).c_str()) == 0;
  }
  ~small_tmpfs() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  small_tmpfs(const small_tmpfs&) = delete;
  small_tmpfs& operator=(const small_tmpfs&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::string at_;
  bool mounted_ = false;
};

// A socket's file. False where the path does not fit an address.
inline bool make_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::strcpy(address.sun_path, path.c_str());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return bound;
}

// While it lives, this thread is an ordinary user, when the process is root's (the kernel keeps credentials by thread).
class as_ordinary_user {
 public:
  as_ordinary_user() {
    if (::geteuid() == 0) changed_ = ::syscall(SYS_setresuid, -1, 65534, -1) == 0;
  }
  ~as_ordinary_user() {
    if (changed_) ::syscall(SYS_setresuid, -1, 0, -1);
  }

 private:
  bool changed_ = false;
};

// Makes nested directories below `root` so that root-relative path of a file there has exactly `nbytes` bytes, components of at
// most 255, and returns that path. Goes down by descriptors: the whole name is longer than the kernel takes.
inline std::string make_deep_file(const std::string& root, std::size_t nbytes, std::string_view text) {
  int dir = ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::string path;
  while (nbytes - path.size() > 255) {
    const std::size_t left = nbytes - path.size();
    const std::string name(left == 256 ? 254 : 255, 'd');
    if (::mkdirat(dir, name.c_str(), 0755) != 0 && errno != EEXIST) fail_errno("mkdirat");
    const int next = ::openat(dir, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (next < 0) fail_errno("openat");
    ::close(dir);
    dir = next;
    path += name + "/";
  }
  const std::string name(nbytes - path.size(), 'f');
  const int fd = ::openat(dir, name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail_errno("deep file");
  ::close(fd);
  ::close(dir);
  return path + name;
}

}  // namespace gpufs::test
