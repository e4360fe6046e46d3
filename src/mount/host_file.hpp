// SPDX-License-Identifier: Apache-2.0
// host_file for the machine that the including source is compiled for.
#pragma once
#include "gpufs/host_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "../simt/answer_of.hpp"
#include "gpufs/file/open.hpp"
#include "gpufs/file/prefetch.hpp"
#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/pointer/map.hpp"
#include "gpufs/simt/launch.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

struct open_for_host {
  mount_ref fs;
  int flags;
  file* opened;
  char path[names::max_path_nbytes + 1];

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const file got = open(warp, fs, path, flags);
    if (warp.leader()) *opened = got;
  }
};

// If the file may be written, a few warps close it, and each writes pages of other lists back. The bound on registers keeps these
// warps' share of a multiprocessor little above that of one unbounded warp.
inline constexpr unsigned close_nthreads = 4 * simt::warp_lanes, close_nblocks = 8;

struct close_for_host {
  file opened;
  std::int32_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto block = this_block();
    const int error = close(block, opened);
    if (block.leader()) *result = error;
  }
};

struct advise_for_host {
  file opened;
  advice what;
  std::int64_t offset;
  std::size_t nbytes;
  std::int32_t* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const int error = gpufs::advise(warp, opened, offset, nbytes, what);
    if (warp.leader()) *result = error;
  }
};

struct map_for_host {
  file opened;
  std::int64_t offset, count;
  map_flags flags;
  std::uint32_t nbytes, alignment;  // of an element
  made_mapping* result;

  GPUFS_DEVICE void operator()() const {
    const auto warp = this_warp();
    const made_mapping made = map_elements(warp, opened, [&] {
      return mapping_request{opened.number(), offset, count, nbytes, alignment, no_handler{}.form(), flags, false, false};
    });
    if (warp.leader()) *result = made;
  }
};

}  // namespace detail

host_file::host_file(const host_mount& fs, const std::string& path, int flags)
    : device_(&fs.device()), path_(path), process_(::getpid()) {
  detail::open_for_host kernel{mount_ref(mount_inside(fs).resident()), flags, nullptr, {}};
  {
    const simt::on_device here(*device_);
    // Now, because else it would be loaded while kernels use the file.
    simt::load<detail::close_for_host, detail::close_nthreads, detail::close_nblocks>();
  }
  if (path.find('\0') != std::string::npos) fail(EINVAL, "open");
  if (path.size() >= sizeof kernel.path) fail(ENAMETOOLONG, "open");
  std::memcpy(kernel.path, path.c_str(), path.size() + 1);
  const file opened = simt::answer_of(*device_, kernel, &detail::open_for_host::opened, simt::warp_lanes);
  if (opened.error() != 0) fail(-opened.error(), "open");
  file_ = opened;
}

host_file::~host_file() {
  try {
    close();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpufs: %s\n", error.what());
  }
}

host_file::host_file(host_file&& from) noexcept
    : file_(std::exchange(from.file_, file())), device_(from.device_), path_(std::move(from.path_)), process_(from.process_) {}

host_file& host_file::operator=(host_file&& from) noexcept {
  std::swap(file_, from.file_);
  std::swap(device_, from.device_);
  std::swap(path_, from.path_);
  std::swap(process_, from.process_);
  return *this;
}

void host_file::advise(advice what, std::int64_t offset, std::size_t nbytes) const {
  int error = file_.error() != 0 || process_ != ::getpid() ? -EBADF : 0;
  using kernel = detail::advise_for_host;
  if (error == 0)
    error = simt::answer_of(*device_, kernel{file_, what, offset, nbytes, nullptr}, &kernel::result, simt::warp_lanes);
  if (error != 0) fail(-error, "advise");
}

detail::made_mapping host_file::map(std::int64_t offset, std::int64_t count, map_flags flags, std::uint32_t nbytes,
                                    std::uint32_t alignment) const {
  if (file_.error() != 0 || process_ != ::getpid()) fail(EBADF, "map_array");
  using kernel = detail::map_for_host;
  const detail::made_mapping made =
      simt::answer_of(*device_, kernel{file_, offset, count, flags, nbytes, alignment, nullptr}, &kernel::result, simt::warp_lanes);
  const int error = detail::error_of(made.name);
  if (error != 0) fail(-error, "map_array");
  return made;
}

void host_file::close() {
  if (file_.error() != 0 || process_ != ::getpid()) return;
  using kernel = detail::close_for_host;
  const unsigned nthreads = file_table::may_write(file_.number()) ? detail::close_nthreads : simt::warp_lanes;
  const int error = simt::answer_of<detail::close_nthreads, detail::close_nblocks>(
      *device_, kernel{std::exchange(file_, file()), nullptr}, &kernel::result, nthreads);
  if (error != 0) fail(-error, "close");
}

void host_file::fail(int error, const char* what) const {
  throw std::system_error(error, std::generic_category(), std::string("gpufs::host_file: ") + what + " of '" + path_.c_str() + "'");
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
