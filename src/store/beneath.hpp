// SPDX-License-Identifier: Apache-2.0
// Finds files below a directory, and nowhere else.
#pragma once
#include <sys/stat.h>

#include <atomic>
#include <string>

#include "../simt/unique_fd.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs::store {

// Whether the kernel or a container refuses openat2, so that paths are walked component by component. Set at the first refusal, and
// by tests.
inline std::atomic<bool> openat2_missing{false};

// Opens `path` (checked by check_path) below `root`. flags: O_RDONLY, O_RDWR or O_WRONLY, with O_DIRECT, O_NOFOLLOW, O_CREAT (a new
// file gets 0666 less the umask; the target of a dangling link is made if it lies below the root) and O_EXCL. Returns 0, the
// descriptor of a regular file and its fstat status, or the negative errno of posix_store's table. The descriptor is O_NONBLOCK:
// see make_blocking.
int open_beneath(int root, const std::string& path, int flags, unique_fd* out, struct stat* status);

// Resolves `path` below `root` to an O_PATH descriptor of any kind of file. flags: O_DIRECTORY, O_NOFOLLOW. Returns 0 or a negative
// errno.
int resolve_beneath(int root, const std::string& path, int flags, unique_fd* out);

}  // namespace gpufs::store
