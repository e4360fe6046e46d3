// SPDX-License-Identifier: Apache-2.0
// What kernels name mounts, files and pages by.
#pragma once
#include <type_traits>

#include "gpufs/cache/page_cache.hpp"
#include "gpufs/file/file_table.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

using simt::this_block;
using simt::this_thread;
using simt::this_tile;
using simt::this_warp;

// A mount as kernels see it: 8 bytes, passed by value, valid while the mount lives. One that was made of nothing names no mount;
// it may be given one, and used for nothing else.
class mount_ref {
 public:
  GPUFS_HOST_DEVICE mount_ref() : mount_(nullptr) {}
  GPUFS_HOST_DEVICE explicit mount_ref(const file_mount* mount) : mount_(mount) {}

  // In device memory.
  GPUFS_HOST_DEVICE const file_mount* get() const { return mount_; }

 private:
  const file_mount* mount_;
};
static_assert(sizeof(mount_ref) == 8 && std::is_trivially_copyable_v<mount_ref>);

// An open file, or why it is not open: 16 bytes. A view: copying it opens nothing; only the number needs to be kept. Calls on one
// that did not open give its error; one that was made of nothing has -EBADF.
class file {
 public:
  GPUFS_HOST_DEVICE file() : mount_(nullptr), number_(-EBADF) {}
  // The file with this number, as open() gave it. A number that no open can have given becomes -EBADF.
  GPUFS_DEVICE file(const mount_ref& mount, file_number number) : mount_(mount.get()), number_(static_cast<std::int32_t>(number)) {
    const std::uint32_t slot = file_slots::index_of(number);
    if (number_ < 0 && number_ > -4096) return;  // an error
    if (number_ >= 0 && mount_ != nullptr && file_slots(*mount_).is_made(slot)) {
      entry_ = file_slots(*mount_).entry(slot, 0);
    } else {
      number_ = -EBADF;
    }
  }

  GPUFS_HOST_DEVICE file_number number() const { return file_number{number_}; }
  // 0, or the negative errno of the open that made it.
  GPUFS_HOST_DEVICE int error() const { return number_ < 0 ? number_ : 0; }
  GPUFS_DEVICE mount_ref mount() const {
    return mount_ref(number_ < 0 ? mount_ : file_slots::mount_of(file_slots::home_of(entry_, file_slots::index_of(number()))));
  }
  // The first of the copies of its entry; null where error() is not 0.
  GPUFS_HOST_DEVICE const file_entry* entry() const { return number_ < 0 ? nullptr : entry_; }

 private:
  // Which of the two, the number says: the one while it is not negative, so that a hit needs nothing of the mount.
  union {
    const file_entry* entry_;
    const file_mount* mount_;
  };
  std::int32_t number_;
};
static_assert(sizeof(file) == 16 && std::is_trivially_copyable_v<file>);

class page;
namespace detail {
template <class Group, class Pages>
GPUFS_DEVICE page map_page_by(Group group, const Pages& of, std::int64_t offset);
}  // namespace detail

// A mapped page: it stays where it is until unmap_page. Plain loads through data() are allowed. Made by map_page.
class page {
 public:
  page() = default;

  GPUFS_DEVICE int error() const { return number_ < 0 ? number_ : 0; }
  // The byte at the offset asked for, and how many bytes follow it in this page and in the file.
  GPUFS_DEVICE const std::byte* data() const { return data_; }
  GPUFS_DEVICE std::uint32_t nbytes() const { return nbytes_; }

 private:
  template <class Group, class Pages>
  friend GPUFS_DEVICE page detail::map_page_by(Group group, const Pages& of, std::int64_t offset);
  template <simt::group Group>
  friend GPUFS_DEVICE page map_page(Group group, const file& opened, std::int64_t offset);
  template <simt::group Group>
  friend GPUFS_DEVICE int unmap_page(Group group, page& mapped);

  const std::byte* data_;
  std::uint64_t* state_;     // the frame's
  const file_entry* entry_;  // the file's, the first copy
  std::uint32_t nbytes_;
  std::int32_t number_;  // the file's, or a negative errno
};

struct file_status {
  std::int64_t nbytes;
  std::uint64_t inode;
  std::uint64_t mtime_ns;
  std::uint32_t mode;
  std::uint32_t cache_id;  // names this version of the file within the mount
  source_kind source;      // where its bytes come from
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
