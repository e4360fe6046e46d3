// SPDX-License-Identifier: Apache-2.0
#include "path.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "gpufs/names/words.hpp"

namespace gpufs::store {
namespace {

constexpr std::size_t max_component_nbytes = 255;

// Calls each(component) for each non-empty part between slashes, until a call returns non-zero.
template <class Each>
int for_each_component(std::string_view path, Each each) {
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    if (end != 0) {
      if (const int error = each(path.substr(0, end)); error != 0) return error;
    }
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return 0;
}

}  // namespace

bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

int check_flags(int flags, bool writable) {
  constexpr int writing = O_CREAT | O_TRUNC | O_APPEND | O_EXCL;
  if (!writable && (writes(flags) || (flags & writing) != 0)) return -EROFS;
  constexpr int harmless = names::open_flags_to_read | static_cast<int>(names::open_unmapped | names::open_prepared);
  if (!writes(flags)) return (flags & ~(harmless | O_SYNC | O_DSYNC | O_APPEND | O_EXCL)) == 0 ? 0 : -EINVAL;
  if ((flags & O_ACCMODE) == O_ACCMODE) return -EINVAL;
  return (flags & ~(harmless | O_ACCMODE | names::open_flags_to_write)) == 0 ? 0 : -EINVAL;
}

int check_path(std::string_view path, std::string_view* relative) {
  if (path.empty()) return -ENOENT;
  if (path.size() > names::max_path_nbytes) return -ENAMETOOLONG;
  if (path.find('\0') != std::string_view::npos) return -EINVAL;
  path.remove_prefix(std::min(path.find_first_not_of('/'), path.size()));
  if (path.empty()) return -EISDIR;
  *relative = path;
  return for_each_component(path, [](std::string_view c) { return c.size() > max_component_nbytes ? -ENAMETOOLONG : 0; });
}

int split_path(std::string_view path, std::string* parent, std::string* name) {
  std::string_view relative;
  if (const int error = check_path(path, &relative); error != 0) return error;
  const std::size_t end = relative.find_last_not_of('/') + 1;  // there is one: not the root
  const std::size_t slash = relative.rfind('/', end - 1);
  const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
  const std::string_view last = relative.substr(begin, end - begin);
  if (last == "." || last == "..") return -EINVAL;
  *parent = begin == 0 ? "." : relative.substr(0, begin);
  *name = end == relative.size() ? last : relative.substr(begin, end + 1 - begin);
  return 0;
}

int lexical_path(std::string_view path, std::string* out) {
  std::string_view relative;
  if (const int error = check_path(path, &relative); error != 0) return error;
  out->clear();
  bool directory = relative.back() == '/';
  const int error = for_each_component(relative, [&](std::string_view component) {
    directory = component == "." || component == ".." || relative.back() == '/';
    if (component == ".") return 0;
    if (component == "..") {
      if (out->empty()) return -EXDEV;
      const std::size_t slash = out->rfind('/');
      out->resize(slash == std::string::npos ? 0 : slash);
      return 0;
    }
    if (!out->empty()) out->push_back('/');
    out->append(component);
    return 0;
  });
  if (error != 0) return error;
  if (out->empty()) return -EISDIR;
  return directory ? -ENOTDIR : 0;
}

}  // namespace gpufs::store
