// SPDX-License-Identifier: Apache-2.0
#include "apps/arrays/rows.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "apps/helper_threads.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::arrays {

namespace {
[[noreturn]] void refuse_stream() { throw error("this engine has no streams: its rows are in the host's memory"); }
}  // namespace

void row_file::read_on(stream_handle, const row_list&, std::byte*) { refuse_stream(); }
void row_file::write_on(stream_handle, const row_list&, const std::byte*) { refuse_stream(); }
void row_file::prefetch_on(stream_handle, const row_list&) { refuse_stream(); }

std::vector<std::uint64_t> sizes_of(std::span<const std::string> paths) {
  std::vector<std::uint64_t> sizes(paths.size());
  std::vector<int> errors(paths.size());
  constexpr std::size_t part = 64;  // worth a thread's start
  parallel_for(
      std::min(16u, thread_count(0)), (paths.size() + part - 1) / part,
      [&](std::size_t k) {
        for (std::size_t i = k * part; i < std::min(paths.size(), (k + 1) * part); ++i) {
          struct stat status {};
          if (::stat(paths[i].c_str(), &status) != 0) {
            errors[i] = errno;
          } else if (!S_ISREG(status.st_mode)) {
            errors[i] = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
          }
          sizes[i] = static_cast<std::uint64_t>(status.st_size);
        }
      },
      helper_threads::of_process());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (errors[i] == EINVAL) throw file_error(EINVAL, "it is no regular file", paths[i]);
    if (errors[i] != 0) throw file_error(errors[i], std::strerror(errors[i]), paths[i]);
  }
  return sizes;
}

guarded_file::guarded_file(std::string path, int flags, std::uint64_t least_nbytes)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), flags | O_CLOEXEC)), least_nbytes_(least_nbytes) {
  if (descriptor_ < 0) fail(errno, std::strerror(errno));
  try {
    check();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

guarded_file::~guarded_file() { ::close(descriptor_); }

void guarded_file::check(std::uint64_t nbytes) const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) fail(errno, std::strerror(errno));
  if (static_cast<std::uint64_t>(status.st_size) < nbytes)
    fail(ESTALE, "it was truncated, and ends before the array does: write it anew, and open it anew");
}

void guarded_file::fail(int error, const char* what) const { throw file_error(error, what, path_); }

}  // namespace gpufs::apps::arrays
