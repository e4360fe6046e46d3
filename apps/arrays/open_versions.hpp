// SPDX-License-Identifier: Apache-2.0
// Which version of each file a mount has open.
#pragma once
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "apps/arrays/rows.hpp"

namespace gpufs::apps::arrays {

// The files that a mount has open, as they were then: who opens a path joins those, whose version may be an older one.
class open_versions {
 public:
  // file_error, ESTALE: it is open as it was before it was replaced or, in a mount that does not write, written.
  void join(const std::string& path, const guarded_file& guard, bool writes) {
    struct stat now {};
    if (::fstat(guard.descriptor(), &now) != 0) guard.fail(errno, std::strerror(errno));
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = open_.try_emplace(path, version{now.st_dev, now.st_ino, now.st_size, now.st_mtim, 0});
    version& first = at->second;
    const bool is_same = now.st_dev == first.device && now.st_ino == first.inode;
    const bool is_written =
        now.st_size != first.nbytes || now.st_mtim.tv_sec != first.mtime.tv_sec || now.st_mtim.tv_nsec != first.mtime.tv_nsec;
    if (!is_new && (!is_same || (is_written && !writes)))
      guard.fail(ESTALE, "this mount has it open as it was before it was replaced or written");
    ++first.nopen;
  }
  void leave(const std::string& path) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(path);
    if (--at->second.nopen == 0) open_.erase(at);
  }

 private:
  struct version {
    dev_t device;
    ino_t inode;
    off_t nbytes;
    timespec mtime;
    std::uint64_t nopen;
  };
  std::mutex mutex_;
  std::map<std::string, version> open_;
};

// One of them, from before its open to after its close.
class joined_version {
 public:
  joined_version(open_versions& all, std::string path, const guarded_file& guard, bool writes) : all_(all), path_(std::move(path)) {
    all_.join(path_, guard, writes);
  }
  ~joined_version() { all_.leave(path_); }
  joined_version(const joined_version&) = delete;
  joined_version& operator=(const joined_version&) = delete;

 private:
  open_versions& all_;
  std::string path_;
};

}  // namespace gpufs::apps::arrays
