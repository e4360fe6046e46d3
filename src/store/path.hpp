// What all stores say of a path and of open flags before they look for the file.
#pragma once
#include <string>
#include <string_view>

namespace gpufs::store {

// 0 or the negative errno for O_* flags: -EROFS for everything that writes, creates or truncates, -EINVAL for flags that name
// something else than a regular file (O_PATH, O_DIRECTORY) or nothing known.
int check_flags(int flags);

// 0 and the path without its leading slashes, or -ENOENT (empty), -ENAMETOOLONG (over 4095 bytes, or a component over 255),
// -EINVAL (a NUL byte inside), -EISDIR (the root itself).
int check_path(std::string_view path, std::string_view* relative);

// For stores without directories: "a//b/./c" is "a/b/c", "a/../b" is "b". -EXDEV for a `..` out of the root, -ENOTDIR for a
// path that ends like a directory's, else as check_path.
int lexical_path(std::string_view path, std::string* out);

}  // namespace gpufs::store
