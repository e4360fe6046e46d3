// SPDX-License-Identifier: Apache-2.0
// Files that host code opens and closes, and that kernels use meanwhile.
#pragma once
#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpufs/file/handles.hpp"
#include "gpufs/mount.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

enum class advice : std::uint32_t;     // gpufs/file/prefetch.hpp, which says what each means
enum class map_flags : std::uint32_t;  // gpufs/pointer/map.hpp
namespace detail {
struct made_mapping;
struct host_mapping;
}  // namespace detail

// An open file of a mount; kernels get it as `ref()`, and the destructor closes it. A kernel of one warp, launched on the mount's
// device, opens it: so kernels that open the path share it, and its errors are those of gpufs::open. Another kernel closes it, with
// a block of 128 threads if the file may be written: written bytes are then in the file's host page cache. Neither waits for other
// running kernels to end, but for room on the device beside them. Both kernels are the library's. Move-only. The mount must end
// after it, and kernels that use the file before it. In a child of fork() its destructor does nothing, like the mount's: the file
// is the parent's.
class host_file {
 public:
  // Throws simt::launch_error, and std::system_error with open's errno, or EINVAL for a path that contains a NUL.
  host_file(const host_mount& fs, const std::string& path, int flags = O_RDONLY);
  ~host_file();
  host_file(host_file&& from) noexcept;
  host_file& operator=(host_file&& from) noexcept;

  // For kernels, by value. After close(), and for a host_file that was moved from, its error() is -EBADF.
  file ref() const { return file_; }
  const std::string& path() const { return path_; }

  // Tells the mount how readers will use nbytes of the file from `offset` on, as gpufs::advise of gpufs/file/prefetch.hpp does in a
  // kernel; nbytes 0: to its end. Waits for a kernel of one warp, and so for room on the device beside running kernels (willneed
  // and dontneed: also for those pages); on CUDA a process's first call may also wait until running kernels have ended, as it loads
  // that kernel. Throws simt::launch_error, and std::system_error with advise's error (EINVAL: no such advice or range), or EBADF
  // after close() and in a child of fork().
  void advise(advice what, std::int64_t offset = 0, std::size_t nbytes = 0) const;

  // Does what the destructor does, and throws std::system_error with the error of gpufs::close if written bytes may be lost. The
  // file is closed nevertheless. A second call does nothing.
  void close();

 private:
  friend struct detail::host_mapping;  // gpufs/map_array.hpp
  detail::made_mapping map(std::int64_t offset, std::int64_t count, map_flags flags, std::uint32_t nbytes,
                           std::uint32_t alignment) const;
  [[noreturn]] void fail(int error, const char* what) const;

  file file_;
  simt::platform* device_;  // the mount's
  std::string path_;
  pid_t process_;  // the process that opened it
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
