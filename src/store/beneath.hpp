// Opening a regular file below a directory, and nowhere else.
#pragma once
#include <sys/stat.h>

#include <string>

#include "gpufs/store/posix_store.hpp"
#include "unique_fd.hpp"

namespace gpufs::store {

// Opens `path` (checked by check_path) below `root` for reading, with `flags` (O_DIRECT, O_NOFOLLOW) added. Returns 0 and the
// descriptor of a regular file with what fstat says of it, or the negative errno of posix_store's table. The descriptor is
// O_NONBLOCK: see make_blocking.
int open_beneath(int root, const std::string& path, int flags, bool use_openat2, unique_fd* out, struct stat* status);

}  // namespace gpufs::store
