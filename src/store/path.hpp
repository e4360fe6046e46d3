// SPDX-License-Identifier: Apache-2.0
// The checks of paths and open flags that all stores make before they look for the file.
#pragma once
#include <string>
#include <string_view>

namespace gpufs::store {

// Checks O_* flags and names::open_write_once; returns 0 or a negative errno. -EINVAL: flags that are unknown or name another file
// than a regular one (O_PATH, O_DIRECTORY); flags that create or truncate, and open_write_once, without write access; and write
// access with O_SYNC or O_DSYNC, which ask that each write be on stable storage. -EROFS: flags that write, create or truncate,
// unless `writable`.
int check_flags(int flags, bool writable = false);

// Whether a file opened with these flags is written. The flags must have passed check_flags.
bool writes(int flags);

// Returns 0 and the path without its leading slashes; or -ENOENT (empty), -ENAMETOOLONG (over 4095 bytes, or a component over 255),
// -EINVAL (a NUL byte inside), -EISDIR (the root itself).
int check_path(std::string_view path, std::string_view* relative);

// Splits a path (checked as by check_path) into its parent directory, "." for the root, and the last component with the slashes
// that follow it, which ask for a directory. 0, -EINVAL if that component is "." or "..", or check_path's error.
int split_path(std::string_view path, std::string* parent, std::string* name);

// For stores without directories: "a//b/./c" is "a/b/c", "a/../b" is "b". -EXDEV for a `..` out of the root, -ENOTDIR for a
// path that ends like a directory's, else check_path's error.
int lexical_path(std::string_view path, std::string* out);

}  // namespace gpufs::store
