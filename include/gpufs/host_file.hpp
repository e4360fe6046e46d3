// SPDX-License-Identifier: Apache-2.0
// Files that host code opens and closes, and that kernels use meanwhile.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "gpufs/file/open.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/simt/detail/pinned_answer.hpp"
#include "gpufs/simt/launch.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

template <class File>
struct open_for_host {
  mount_ref fs;
  int flags;
  File* opened;
  char path[names::max_path_nbytes + 1];

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const File got = open(warp, fs, path, flags);
    if (warp.leader()) *opened = got;
  }
};

// If the file may be written, a few warps close it, and each writes pages of other lists back. The bound on registers keeps these
// warps' share of a multiprocessor little above that of one unbounded warp.
inline constexpr unsigned close_nthreads = 4 * simt::warp_lanes, close_nblocks = 8;

template <class File>
struct close_for_host {
  File opened;
  std::int32_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto block = this_block();
    const int error = close(block, opened);
    if (block.leader()) *result = error;
  }
};

}  // namespace detail

// An open file of a mount; kernels get it as `ref()`, and the destructor closes it. A kernel of one warp, launched on the mount's
// device, opens it: so kernels that open the path share it, and its errors are those of gpufs::open. Another kernel closes it, with
// a block of 128 threads if the file may be written: written bytes are then in the file's host page cache. Neither waits for other
// running kernels to end, but for room on the device beside them. Move-only. The mount must end after it, and kernels that use the
// file before it. In a child of fork() its destructor does nothing, like the mount's: the file is the parent's.
template <class File>  // gpufs::file; a template, so that a program without one compiles no kernel
class basic_host_file {
 public:
  // Throws simt::launch_error, and std::system_error with open's errno, or EINVAL for a path that contains a NUL.
  template <class Fs>  // gpufs::mount
  basic_host_file(const Fs& fs, const std::string& path, int flags = O_RDONLY)
      : device_(&fs.device()), path_(path), process_(::getpid()) {
    detail::open_for_host<File> kernel{fs.ref(), flags, nullptr, {}};
    {
      const simt::on_device here(*device_);
      // Now, because else it would be loaded while kernels use the file.
      simt::load<detail::close_for_host<File>, detail::close_nthreads, detail::close_nblocks>();
    }
    if (path.find('\0') != std::string::npos) fail(EINVAL, "open");
    if (path.size() >= sizeof kernel.path) fail(ENAMETOOLONG, "open");
    std::memcpy(kernel.path, path.c_str(), path.size() + 1);
    const File opened = answer_of(*device_, kernel, &detail::open_for_host<File>::opened, simt::warp_lanes);
    if (opened.error() != 0) fail(-opened.error(), "open");
    file_ = opened;
  }
  ~basic_host_file() {
    try {
      close();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "gpufs: %s\n", error.what());
    }
  }
  basic_host_file(basic_host_file&& from) noexcept
      : file_(from.release()), device_(from.device_), path_(std::move(from.path_)), process_(from.process_) {}
  basic_host_file& operator=(basic_host_file&& from) noexcept {
    std::swap(file_, from.file_);
    std::swap(device_, from.device_);
    std::swap(path_, from.path_);
    std::swap(process_, from.process_);
    return *this;
  }

  // For kernels, by value. After close(), and for a host_file that was moved from, its error() is -EBADF.
  File ref() const { return file_; }
  const std::string& path() const { return path_; }

  // Does what the destructor does, and throws std::system_error with the error of gpufs::close if written bytes may be lost. The
  // file is closed nevertheless. A second call does nothing.
  void close() {
    if (file_.error() != 0 || process_ != ::getpid()) return;
    using kernel = detail::close_for_host<File>;
    const unsigned nthreads = file_table::may_write(file_.number()) ? detail::close_nthreads : simt::warp_lanes;
    const int error =
        answer_of<detail::close_nthreads, detail::close_nblocks>(*device_, kernel{release(), nullptr}, &kernel::result, nthreads);
    if (error != 0) fail(-error, "close");
  }

 private:
  File release() { return std::exchange(file_, File()); }

  template <unsigned MaxThreads = 0, unsigned MinBlocks = 0, class Kernel, class Answer>
  static Answer answer_of(simt::platform& device, Kernel kernel, Answer* Kernel::*where, unsigned nthreads) {
    static_assert(sizeof(Answer) <= simt::runtime::pinned_answer::nbytes);
    const simt::on_device here(device);
    const simt::runtime::pinned_answer answer(device);
    auto* result = static_cast<Answer*>(answer.get());
    kernel.*where = result;
    simt::launch<MaxThreads, MinBlocks>({.grid = 1, .block = nthreads}, kernel);
    return *result;
  }
  [[noreturn]] void fail(int error, const char* what) const {
    throw std::system_error(error, std::generic_category(),
                            std::string("gpufs::host_file: ") + what + " of '" + path_.c_str() + "'");
  }

  File file_;
  simt::platform* device_;  // the mount's
  std::string path_;
  pid_t process_;  // the process that opened it
};
using host_file = basic_host_file<file>;

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
