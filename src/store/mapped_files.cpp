// SPDX-License-Identifier: Apache-2.0
#include "mapped_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "file_system.hpp"

namespace gpufs::store {

file_written_in_place::file_written_in_place(std::unique_ptr<open_file> file, std::shared_ptr<mappings> owner,
                                             mappings::use mapping)
    : file_(std::move(file)),
      owner_(std::move(owner)),
      mapping_(std::move(mapping)),
      info_(file_->info()),
      own_nbytes_(mapping_->nbytes),
      whole_nbytes_(mapping_->nbytes),
      ctime_ns_(info_.ctime_ns) {
  info_.pull_base = mapping_->device_address;
  info_.reason = "live: it is open for writing, its mapping is registered, and the device writes the host's page cache in place";
}

int file_written_in_place::truncate(std::int64_t nbytes) {
  const std::scoped_lock hold(lock_);
  if (nbytes >= 0) own_nbytes_ = std::min(own_nbytes_, static_cast<std::size_t>(nbytes));
  return file_->truncate(nbytes);
}

int file_written_in_place::note_written_in_place(std::int64_t nbytes, bool last) {
  if (nbytes < 0) return -EINVAL;
  const std::scoped_lock hold(lock_);
  struct stat before, after;
  const int fd = file_->descriptor();
  if (::fstat(fd, &before) != 0) return -errno;
  // If the process lost the right to write the file after it opened it, it may not set mtime either. This is no error.
  if (::futimens(fd, nullptr) != 0 && errno != EACCES && errno != EPERM && errno != EROFS) return -errno;
  if (::fstat(fd, &after) != 0) return -errno;
  // A truncation between the two calls of fstat shows by the size or blocks that the file has lost.
  const bool changed = ns_of(before.st_ctim) != ctime_ns_ || after.st_size < before.st_size || after.st_blocks < before.st_blocks;
  if (last || changed) whole_nbytes_ = owner_->whole_nbytes(*mapping_, std::min(whole_nbytes_, own_nbytes_), changed);
  ctime_ns_ = ns_of(after.st_ctim);
  const std::size_t wanted = std::min(own_nbytes_, static_cast<std::size_t>(nbytes));
  return whole_nbytes_ < wanted || static_cast<std::size_t>(after.st_size) < wanted ? -EIO : 0;
}

mapped_file::mapped_file(std::unique_ptr<posix_file> file, std::shared_ptr<mappings> owner, mappings::use mapping)
    : file_(std::move(file)), owner_(std::move(owner)), mapping_(std::move(mapping)), info_(file_->info()) {
  const bool whole = owner_->hold_whole(mapping_);
  info_.kind = whole ? source_kind::pull : source_kind::windows;
  info_.pull_base = mapping_->device_address;
  info_.reason = whole ? "pull: its mapping is registered, and the device reads the host's page cache in place"
                       : owner_->progress_of(*mapping_);
}

std::string mapped_file::reason() const {
  return info_.kind == source_kind::windows ? owner_->progress_of(*mapping_) : info_.reason;
}

registered_windows mapped_file::windows() const {
  return {mapping_->registered.load(std::memory_order_acquire), mapping_->window_shift};
}

}  // namespace gpufs::store
