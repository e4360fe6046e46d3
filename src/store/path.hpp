// SPDX-License-Identifier: Apache-2.0
// What all stores say of a path and of open flags before they look for the file.
#pragma once
#include <string>
#include <string_view>

namespace gpufs::store {

// 0 or the negative errno for O_* flags (and names::open_write_once): -EINVAL for flags that name something else than a regular
// file (O_PATH, O_DIRECTORY) or nothing known, and for those that create or truncate, or open_write_once, without write access, or
// ask with it that each write be on stable storage (O_SYNC, O_DSYNC). Unless `writable`, -EROFS for everything that writes, creates
// or truncates.
int check_flags(int flags, bool writable = false);

// Whether a file opened with these flags (that check_flags lets pass) is written.
bool writes(int flags);

// 0 and the path without its leading slashes, or -ENOENT (empty), -ENAMETOOLONG (over 4095 bytes, or a component over 255),
// -EINVAL (a NUL byte inside), -EISDIR (the root itself).
int check_path(std::string_view path, std::string_view* relative);

// Splits a path (checked as by check_path) into its parent directory, "." for the root, and the last component with the slashes
// that follow it, which ask for a directory. 0, or -EINVAL when that is "." or "..", or as check_path.
int split_path(std::string_view path, std::string* parent, std::string* name);

// For stores without directories: "a//b/./c" is "a/b/c", "a/../b" is "b". -EXDEV for a `..` out of the root, -ENOTDIR for a
// path that ends like a directory's, else as check_path.
int lexical_path(std::string_view path, std::string* out);

}  // namespace gpufs::store
