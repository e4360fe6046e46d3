// SPDX-License-Identifier: Apache-2.0
#include "beneath.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <ctime>
#include <functional>
#include <string_view>
#include <vector>

namespace gpufs::store {
namespace {

// O_NONBLOCK: a worker must not wait for a FIFO's writer, or for a lease to end.
constexpr int open_flags = O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
constexpr mode_t new_file_mode = 0666;
constexpr std::uint64_t resolve_flags = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
constexpr int max_symlinks = 40;  // the kernel's own limit

// 0 for a regular file, else the error with which we refuse the file.
int refusal(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return 0;
    case S_IFDIR:
      return -EISDIR;
    case S_IFIFO:
      return -EOPNOTSUPP;
    case S_IFSOCK:
      return -ENXIO;
    case S_IFCHR:
    case S_IFBLK:
      return -ENODEV;
    case S_IFLNK:
      return -ELOOP;  // only with O_NOFOLLOW
    default:
      return -EOPNOTSUPP;
  }
}

int refusal_of(int fd, struct stat* status) { return ::fstat(fd, status) == 0 ? refusal(status->st_mode) : -errno; }

// Returns the descriptor or -errno.
int sys_openat2(int root, const char* path, std::uint64_t flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = flags;
  how.mode = (flags & O_CREAT) != 0 ? new_file_mode : 0;
  how.resolve = resolve;
  // EAGAIN: a rename or mount raced with a `..` of ours, so the kernel cannot tell whether we stayed below (openat2(2)).
  for (int attempt = 0;; ++attempt) {
    const long fd = ::syscall(SYS_openat2, root, path, &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno == EINTR || (errno == EAGAIN && attempt < 64)) continue;
    return -errno;
  }
}

// The directories, by root and path, in which this process has opened files within the last second by paths without links. It only
// says where a look at a name is sure to go down, so what has changed meanwhile, or is another root with the same number, makes the
// look one at another file, as any change after a look does. Threads share it, as the files of one directory go to any of them. An
// entry is one word, the key but for its last bits, and in these when it was noted; so each is whole, whoever stores it.
class walked_directories {
 public:
  bool has(int root, std::string_view directory) const {
    const std::uint64_t key = key_of(root, directory);
    const std::uint64_t seen = entries_[place_of(key)].load(std::memory_order_relaxed);
    return ((seen ^ key) & ~time_bits) == 0 && ((now() - seen) & time_bits) < lasts;
  }
  void note(int root, std::string_view directory) {
    const std::uint64_t key = key_of(root, directory), word = (key & ~time_bits) | (now() & time_bits);
    std::atomic<std::uint64_t>& entry = entries_[place_of(key)];
    if (entry.load(std::memory_order_relaxed) != word) entry.store(word, std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t time_bits = 0xffff, lasts = 15;  // of 2^26 ns: a second
  static std::uint64_t key_of(int root, std::string_view directory) {
    return std::hash<std::string_view>()(directory) ^ static_cast<std::uint64_t>(root) * 0x9e3779b97f4a7c15u;
  }
  std::size_t place_of(std::uint64_t key) const { return (key >> 16) % entries_.size(); }
  static std::uint64_t now() {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec)) >> 26;
  }
  std::array<std::atomic<std::uint64_t>, 16384> entries_{};
};
walked_directories walked;

std::string_view directory_of(std::string_view path) {
  const std::size_t end = path.rfind('/');
  return end == std::string_view::npos ? std::string_view() : path.substr(0, end);
}

// Returns the descriptor or -errno.
int by_openat2(int root, const std::string& path, std::uint64_t flags) {
  // A path without `..` and links only goes down. If the call says so, the kernel need not check at the end whether it is still
  // below the root: that check takes a lock that all threads of all processes share.
  const bool goes_down = path.find("..") == std::string::npos;
  const int fd = goes_down ? sys_openat2(root, path.c_str(), flags, RESOLVE_NO_SYMLINKS) : -ELOOP;
  if (goes_down && fd >= 0) walked.note(root, directory_of(path));
  return fd == -ELOOP ? sys_openat2(root, path.c_str(), flags, resolve_flags) : fd;
}

// The reason why we refuse the file that the path leads to, or 0. It is also 0 if the path leads to nothing: then opening it gives
// the error. We look at the file before we open it, because opening has effects: a process that waits to write to a FIFO goes on,
// and SIGPIPE kills it when we close the FIFO; the driver of a device acts, or answers in the device's place. An O_PATH descriptor
// opens nothing.
int refusal_by_openat2(int root, const std::string& path, int nofollow) {
  struct stat st;
  // A name that is no link cannot lead elsewhere, where the way to it has none: in the root itself, or where we went just now. Then
  // no descriptor is needed, which takes a third of the time: threads that open many files take turns at the process's table of
  // them. Where we went just now there may be a link by now, and the look one outside of the root: it is believed only if it
  // permits what the open itself will check.
  const bool direct_child = path.find('/') == std::string::npos && path != "..";
  const bool goes_down = direct_child || (path.find("..") == std::string::npos && walked.has(root, directory_of(path)));
  if (goes_down && ::fstatat(root, path.c_str(), &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0) {
    if (direct_child ? !S_ISLNK(st.st_mode) : S_ISREG(st.st_mode)) return refusal(st.st_mode);
  }
  const unique_fd node(by_openat2(root, path, static_cast<std::uint64_t>(O_PATH | O_CLOEXEC | nofollow)));
  return node.get() < 0 ? 0 : refusal_of(node.get(), &st);
}

int open_by_openat2(int root, const std::string& path, int flags, unique_fd* out, struct stat* status) {
  const bool fresh = (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);  // an existing file is not opened
  if (const int why = fresh ? 0 : refusal_by_openat2(root, path, flags & O_NOFOLLOW); why != 0) return why;
  const int fd = by_openat2(root, path, static_cast<std::uint64_t>(open_flags | flags));
  if (fd < 0) return fd;
  *out = unique_fd(fd);
  return refusal_of(fd, status);  // again: another file may be there by now
}

int resolve_by_openat2(int root, const std::string& path, int flags, unique_fd* out) {
  // With O_NOFOLLOW, RESOLVE_NO_SYMLINKS lets a link at the end pass, and that link is wanted.
  const int fd = by_openat2(root, path, static_cast<std::uint64_t>(O_PATH | O_CLOEXEC | flags));
  if (fd < 0) return fd;
  *out = unique_fd(fd);
  return 0;
}

// Walks along a path. It keeps one O_PATH descriptor for each directory on the way, so that `..` goes back to the directory before,
// and never above the root.
class walk {
 public:
  walk(int root, const std::string& path) : root_(root) { push_components(path); }

  int open(int flags, unique_fd* out, struct stat* status) {
    flags_ = flags;
    const int error = go();
    if (error != 0) return error;
    if (name_.empty()) return (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL) ? -EEXIST : -EISDIR;
    if (node_.get() >= 0) {
      if (const int why = refusal(found_.st_mode); why != 0) return why;
    }
    *out = unique_fd(::openat(here(), name_.c_str(), open_flags | O_NOFOLLOW | flags, new_file_mode));
    if (out->get() < 0) return -errno;  // ELOOP: a link has replaced the file since we looked
    return refusal_of(out->get(), status);
  }

  int resolve(int flags, unique_fd* out) {
    flags_ = flags;
    const int error = go();
    if (error != 0) return error;
    if (!name_.empty()) {
      if ((flags & O_DIRECTORY) != 0) return -ENOTDIR;
      *out = std::move(node_);
    } else {
      *out = unique_fd(::openat(here(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    }
    return out->get() < 0 ? -errno : 0;
  }

 private:
  int here() const { return dirs_.empty() ? root_ : dirs_.back().get(); }

  // Pushes the components so that the first one is taken first. A trailing slash asks for a directory, and so does "." at the end.
  void push_components(std::string_view path) {
    const auto first = static_cast<std::ptrdiff_t>(todo_.size());
    bool ends_as_directory = false;
    while (!path.empty()) {
      const std::size_t end = std::min(path.find('/'), path.size());
      const std::string_view name = path.substr(0, end);
      if (!name.empty() && name != ".") todo_.emplace_back(name);
      ends_as_directory = name == "." || end < path.size();
      path.remove_prefix(std::min(end + 1, path.size()));
    }
    must_be_directory_ |= ends_as_directory && first == 0;
    std::reverse(todo_.begin() + first, todo_.end());
  }

  // Walks to the end of the path. If name_ is empty then, the path leads to the directory here(); else to name_ in here(), which is
  // node_ or, with O_CREAT, does not exist.
  int go() {
    while (!todo_.empty() && name_.empty()) {
      std::string name = std::move(todo_.back());
      todo_.pop_back();
      if (name == "..") {
        if (dirs_.empty()) return -EXDEV;
        dirs_.pop_back();
        continue;
      }
      if (const int error = step(std::move(name)); error != 0) return error;
    }
    return 0;
  }

  int step(std::string name) {
    const bool last = todo_.empty(), creates = (flags_ & O_CREAT) != 0, fresh = creates && (flags_ & O_EXCL) != 0;
    node_ = unique_fd(::openat(here(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (node_.get() < 0) {
      if (errno != ENOENT || !last || !creates) return -errno;
      if (must_be_directory_) return -EISDIR;
      name_ = std::move(name);
      return 0;
    }
    if (::fstat(node_.get(), &found_) != 0) return -errno;
    if (S_ISDIR(found_.st_mode)) {
      dirs_.push_back(std::move(node_));
      return 0;
    }
    if (last && creates && must_be_directory_) return -EISDIR;
    const bool may_follow = !last || must_be_directory_ || ((flags_ & O_NOFOLLOW) == 0 && !fresh);
    if (S_ISLNK(found_.st_mode) && may_follow) return follow(node_.get());
    if (!last || must_be_directory_) return -ENOTDIR;
    if (fresh) return -EEXIST;
    name_ = std::move(name);
    return 0;
  }

  int follow(int link) {
    if (++nlinks_ > max_symlinks) return -ELOOP;
    std::array<char, PATH_MAX> target;
    const ssize_t n = ::readlinkat(link, "", target.data(), target.size());
    if (n < 0) return -errno;
    if (n == 0) return -ENOENT;
    if (static_cast<std::size_t>(n) == target.size()) return -ENAMETOOLONG;
    if (target[0] == '/') return -EXDEV;
    push_components({target.data(), static_cast<std::size_t>(n)});
    return 0;
  }

  int root_;
  int flags_ = 0;
  int nlinks_ = 0;
  bool must_be_directory_ = false;
  unique_fd node_;
  struct stat found_;
  std::string name_;
  std::vector<unique_fd> dirs_;
  std::vector<std::string> todo_;  // components; the next one is last
};

// Calls by_kernel() -> 0 or -errno, or by_walk() if there is no openat2.
template <class ByKernel, class ByWalk>
int beneath(int root, ByKernel by_kernel, ByWalk by_walk) {
  if (openat2_missing.load(std::memory_order_relaxed)) return by_walk();
  const int error = by_kernel();
  if (error != -ENOSYS && error != -EPERM) return error;
  // Older container runtimes refuse a system call by EPERM, too; or the error is the file's own (immutable).
  if (error == -EPERM && unique_fd(sys_openat2(root, ".", O_PATH | O_CLOEXEC, RESOLVE_BENEATH)).get() >= 0) return error;
  openat2_missing.store(true, std::memory_order_relaxed);
  return by_walk();
}

}  // namespace

int open_beneath(int root, const std::string& path, int flags, unique_fd* out, struct stat* status) {
  const int error = beneath(
      root, [&] { return open_by_openat2(root, path, flags, out, status); },
      [&] { return walk(root, path).open(flags, out, status); });
  if (error != 0) *out = unique_fd();
  return error;
}

int resolve_beneath(int root, const std::string& path, int flags, unique_fd* out) {
  return beneath(
      root, [&] { return resolve_by_openat2(root, path, flags, out); }, [&] { return walk(root, path).resolve(flags, out); });
}

}  // namespace gpufs::store
