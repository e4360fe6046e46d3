// SPDX-License-Identifier: Apache-2.0
// Calls on paths below a directory.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "beneath.hpp"
#include "pack_entry.hpp"
#include "path.hpp"
#include "posix_file.hpp"

namespace gpufs::store {
namespace {

// The place at which a call changes a directory. `name` is one component: it is looked up in `parent` and nowhere else, so later
// changes of the path to `parent` have no effect.
struct place {
  unique_fd parent;
  std::string name;  // with a slash at its end if the path has one
};

int find_place(const unique_fd& root, const posix_options& options, std::string_view path, place* out) {
  if (!options.writable) return -EROFS;
  std::string parent;
  if (const int error = split_path(path, &parent, &out->name); error != 0) return error;
  return resolve_beneath(root.get(), parent, O_DIRECTORY, &out->parent);
}

// Resolves a path for status() and read_directory(), which accept the root, too.
int find(const unique_fd& root, std::string_view path, int flags, unique_fd* out) {
  std::string_view relative = ".";
  const int error = path.empty() ? 0 : check_path(path, &relative);
  if (error != 0 && error != -EISDIR) return error;
  return resolve_beneath(root.get(), std::string(relative), flags, out);
}

std::uint64_t mtime_of(const struct stat& st) {
  return static_cast<std::uint64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(st.st_mtim.tv_nsec);
}

std::uint64_t device_of(const unique_fd& fd) {
  struct stat st;
  return ::fstat(fd.get(), &st) == 0 ? st.st_dev : 0;
}

int result_of(int call) { return call == 0 ? 0 : -errno; }

}  // namespace

rooted_store::rooted_store(const std::string& root, posix_options options)
    : root_(open_root(root)), device_(device_of(*root_)), options_(options) {}
rooted_store::~rooted_store() = default;

int rooted_store::unlink(std::string_view path, bool directory) {
  place at;
  if (const int error = find_place(*root_, options_, path, &at); error != 0) return error;
  return result_of(::unlinkat(at.parent.get(), at.name.c_str(), directory ? AT_REMOVEDIR : 0));
}

int rooted_store::rename(std::string_view from, std::string_view to, std::uint32_t* mode) {
  place old_at, new_at;
  if (const int error = find_place(*root_, options_, from, &old_at); error != 0) return error;
  if (const int error = find_place(*root_, options_, to, &new_at); error != 0) return error;
  const std::string bare = old_at.name.substr(0, old_at.name.find('/'));
  struct stat st;
  if (::fstatat(old_at.parent.get(), bare.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return -errno;
  *mode = st.st_mode;
  const std::string bare_new = new_at.name.substr(0, new_at.name.find('/'));
  struct stat there;
  if (::fstatat(new_at.parent.get(), bare_new.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno != ENOENT) return -errno;
  } else if (there.st_dev == st.st_dev && there.st_ino == st.st_ino) {
    *mode = 0;  // rename(2) does nothing then
  }
  return result_of(::renameat(old_at.parent.get(), old_at.name.c_str(), new_at.parent.get(), new_at.name.c_str()));
}

int rooted_store::make_directory(std::string_view path, std::uint32_t mode) {
  place at;
  if (const int error = find_place(*root_, options_, path, &at); error != 0) return error;
  return result_of(::mkdirat(at.parent.get(), at.name.c_str(), static_cast<mode_t>(mode & 07777)));
}

int rooted_store::status(std::string_view path, bool link, path_status* out) {
  unique_fd node;
  if (const int error = find(*root_, path, link ? O_NOFOLLOW : 0, &node); error != 0) return error;
  struct stat st;
  if (::fstat(node.get(), &st) != 0) return -errno;
  *out = {st.st_size, st.st_dev, st.st_ino, mtime_of(st), st.st_mode};
  return 0;
}

std::int64_t rooted_store::read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) {
  if (*position < 0) return -EINVAL;
  unique_fd node;
  if (const int error = find(*root_, path, O_DIRECTORY, &node); error != 0) return error;
  const unique_fd directory(::openat(node.get(), ".", O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC));
  if (directory.get() < 0) return -errno;
  if (*position != 0 && ::lseek(directory.get(), *position, SEEK_SET) < 0) return -errno;
  alignas(dirent64) std::array<char, 16384> entries;
  std::size_t done = 0;
  for (;;) {
    const ssize_t n = ::getdents64(directory.get(), entries.data(), entries.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return done != 0 ? static_cast<std::int64_t>(done) : -errno;
    if (n == 0) return static_cast<std::int64_t>(done);
    for (ssize_t at = 0; at < n;) {
      const auto& entry = *reinterpret_cast<const dirent64*>(entries.data() + at);
      const std::string_view name = entry.d_name;
      at += entry.d_reclen;
      if (name != "." && name != "..") {
        const std::size_t nbytes = entry_nbytes_of(name);
        if (nbytes > out.size() - done) return done != 0 ? static_cast<std::int64_t>(done) : -EINVAL;
        directory_entry packed{};
        packed.inode = entry.d_ino;
        struct stat st;
        if (::fstatat(directory.get(), entry.d_name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0) {
          packed.inode = st.st_ino;
          packed.file_nbytes = st.st_size;
          packed.mtime_ns = mtime_of(st);
          packed.mode = st.st_mode;
        } else if (errno != ENOENT) {
          packed.mode = DTTOIF(entry.d_type);  // we may read the directory, but not search it
        }
        pack_entry(out.data() + done, packed, name);
        done += nbytes;
      }
      *position = entry.d_off;
    }
  }
}

}  // namespace gpufs::store
