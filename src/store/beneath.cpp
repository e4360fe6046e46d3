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
#include <string_view>
#include <vector>

namespace gpufs::store {
namespace {

// O_NONBLOCK: a FIFO without a writer, or a lease, must not hold a worker.
constexpr int open_flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
constexpr int max_symlinks = 40;  // as the kernel's

// 0 for a regular file, else why we refuse it.
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
      return -ELOOP;  // O_NOFOLLOW was asked for
    default:
      return -EOPNOTSUPP;
  }
}

int refusal_of(int fd, struct stat* status) { return ::fstat(fd, status) == 0 ? refusal(status->st_mode) : -errno; }

// The descriptor or -errno.
int sys_openat2(int root, const char* path, std::uint64_t flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = flags;
  how.resolve = resolve;
  // EAGAIN: a rename or mount raced with a `..` of ours, so the kernel cannot tell whether we stayed below (openat2(2)).
  for (int attempt = 0;; ++attempt) {
    const long fd = ::syscall(SYS_openat2, root, path, &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno == EINTR || (errno == EAGAIN && attempt < 64)) continue;
    return -errno;
  }
}

int by_openat2(int root, const std::string& path, int flags, unique_fd* out, struct stat* status) {
  constexpr std::uint64_t beneath = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const auto how = static_cast<std::uint64_t>(open_flags | flags);
  // A path without `..` and links only goes down. Told so, the kernel need not look afterwards whether it is still below the
  // root, which takes a lock that all threads of all processes share.
  const bool goes_down = path.find("..") == std::string::npos;
  int fd = goes_down ? sys_openat2(root, path.c_str(), how, RESOLVE_NO_SYMLINKS) : -ELOOP;
  if (fd == -ELOOP) fd = sys_openat2(root, path.c_str(), how, beneath);
  if (fd < 0) {
    // A socket or a device without a driver cannot be opened; say what it is rather than what its driver says.
    if (fd == -ENXIO || fd == -ENODEV) {
      const unique_fd probe(sys_openat2(root, path.c_str(), O_PATH | O_CLOEXEC, beneath));
      const int why = probe.get() < 0 ? fd : refusal_of(probe.get(), status);
      return why == 0 ? fd : why;
    }
    return fd;
  }
  *out = unique_fd(fd);
  return refusal_of(fd, status);
}

// The walk: one O_PATH descriptor a directory on the way, so that `..` goes back to where we came from and never above root.
class walk {
 public:
  walk(int root, const std::string& path) : root_(root) { push_components(path); }

  int open(int flags, unique_fd* out, struct stat* status) {
    while (!todo_.empty()) {
      const std::string name = std::move(todo_.back());
      todo_.pop_back();
      if (name == "..") {
        if (dirs_.empty()) return -EXDEV;
        dirs_.pop_back();
        continue;
      }
      if (const int error = step(name, flags, out, status); error != 0 || out->get() >= 0) return error;
    }
    return -EISDIR;
  }

 private:
  int here() const { return dirs_.empty() ? root_ : dirs_.back().get(); }

  // Pushes so that the first component is taken first. A trailing slash asks for a directory, as "." at the end does.
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

  int step(const std::string& name, int flags, unique_fd* out, struct stat* status) {
    unique_fd node(::openat(here(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (node.get() < 0) return -errno;
    struct stat st;
    if (::fstat(node.get(), &st) != 0) return -errno;
    const bool last = todo_.empty();
    if (S_ISDIR(st.st_mode)) {
      dirs_.push_back(std::move(node));
      return 0;
    }
    if (S_ISLNK(st.st_mode) && !(last && (flags & O_NOFOLLOW) != 0)) return follow(node.get());
    if (!last || must_be_directory_) return -ENOTDIR;
    if (const int why = refusal(st.st_mode); why != 0) return why;
    unique_fd file(::openat(here(), name.c_str(), open_flags | O_NOFOLLOW | flags));
    if (file.get() < 0) return -errno;  // ELOOP: replaced by a link since we looked
    *out = std::move(file);
    return refusal_of(out->get(), status);
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
  int nlinks_ = 0;
  bool must_be_directory_ = false;
  std::vector<unique_fd> dirs_;
  std::vector<std::string> todo_;  // components, the next one last
};

}  // namespace

int open_beneath(int root, const std::string& path, int flags, bool use_openat2, unique_fd* out, struct stat* status) {
  static std::atomic<bool> missing{false};
  int error = -ENOSYS;
  if (use_openat2 && !missing.load(std::memory_order_relaxed)) {
    error = by_openat2(root, path, flags, out, status);
    if (error == -EPERM) error = -ENOSYS;  // how older container runtimes refuse a system call; the walk gives a file's own
    if (error == -ENOSYS) missing.store(true, std::memory_order_relaxed);
  }
  if (error == -ENOSYS) error = walk(root, path).open(flags, out, status);
  if (error != 0) *out = unique_fd();
  return error;
}

}  // namespace gpufs::store
