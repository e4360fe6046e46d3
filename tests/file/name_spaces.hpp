// SPDX-License-Identifier: Apache-2.0
// Mounts that only we see: made by a child in name spaces of its own, so that no rights are needed.
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <string>

namespace gpufs::test {

// What the child writes to its uid_map and gid_map; made before it is forked, as it may take no lock.
struct own_ids {
  std::string users = map_of(::getuid()), groups = map_of(::getgid());
  static std::string map_of(unsigned id) { return std::to_string(id) + " " + std::to_string(id) + " 1"; }
};

inline bool write_text(const char* name, const std::string& text) {
  const int fd = ::open(name, O_WRONLY | O_CLOEXEC);
  const bool done = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return done;
}

// For the calling process, from now on: mounts of its own, which nobody else gets. Where not, errno says why.
inline bool enter_name_spaces(const own_ids& ids) {
  const bool mapped = ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0
                          ? write_text("/proc/self/uid_map", ids.users) && write_text("/proc/self/setgroups", "deny") &&
                                write_text("/proc/self/gid_map", ids.groups)
                          : ::unshare(CLONE_NEWNS) == 0;
  return mapped && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

}  // namespace gpufs::test
