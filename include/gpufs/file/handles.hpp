// SPDX-License-Identifier: Apache-2.0
// What kernels name mounts, files and pages by.
#pragma once
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gpufs/cache/detail/page_cache.hpp"
#include "gpufs/file/detail/file_table.hpp"
#include "gpufs/simt/stop.hpp"

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

// An open file, or why it is not open: 16 bytes. Copying it opens nothing; only the number needs to be kept. Calls on one
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

// The plain words of a mapped page, for places that cannot hold an owner: memory that outlives the kernel, and C. Each copy is as
// good as the first. The caller must make sure that only one of them becomes a mapped_page again.
template <class Byte>
struct page_handle {
  Byte* data = nullptr;
  std::uint64_t* state = nullptr;     // the frame's
  const file_entry* entry = nullptr;  // the file's, the first copy
  std::uint32_t nbytes = 0;
  std::int32_t number = -EBADF;  // the file's, or a negative errno
};

// A page that map_page has mapped, to read (const std::byte) or to write as well (std::byte), or why it is not mapped: it stays
// where it is until unmap_page takes it. It moves, and is never copied: each lane of the group that mapped it has one, all equal,
// and others that read or write the bytes get data(), nbytes() or a reference. Nothing is unmapped by its end, as that takes a
// group: a page that nobody unmaps keeps its frame until the mount goes.
template <class Byte = const std::byte>
class mapped_page {
  static_assert(std::is_same_v<const Byte, const std::byte>, "a page is of const std::byte, or of std::byte to be written");

 public:
  // A mapped page of nothing, like one that was moved from: error() is -EBADF.
  mapped_page() = default;
  GPUFS_DEVICE explicit mapped_page(const page_handle<Byte>& released) : handle_(released) {}
  GPUFS_DEVICE mapped_page(mapped_page&& other) noexcept : handle_(other.release()) {}
  // Over one that is mapped, it loses that: on the CPU machine the launch fails.
  GPUFS_DEVICE mapped_page& operator=(mapped_page&& other) noexcept {
    if (error() == 0 && this != &other) simt::report_misuse("writes over a page that is still mapped: unmap_page it before");
    handle_ = other.release();
    return *this;
  }

  GPUFS_DEVICE int error() const { return handle_.number < 0 ? handle_.number : 0; }
  // The byte at the offset asked for, and how many bytes follow it in this page and in the file.
  GPUFS_DEVICE Byte* data() const { return handle_.data; }
  GPUFS_DEVICE std::uint32_t nbytes() const { return handle_.nbytes; }

  GPUFS_DEVICE const page_handle<Byte>& handle() const { return handle_; }
  // The page stays mapped, and is this object's no more.
  GPUFS_DEVICE page_handle<Byte> release() {
    const page_handle<Byte> handle = handle_;
    handle_ = {};
    return handle;
  }

 private:
  page_handle<Byte> handle_;
};
static_assert(!std::is_copy_constructible_v<mapped_page<>> && !std::is_copy_assignable_v<mapped_page<>>);

// What fstat gives.
struct file_status {
  std::int64_t nbytes = 0;
  std::uint64_t inode = 0;
  std::uint64_t mtime_ns = 0;
  std::uint32_t mode = 0;
  std::uint32_t cache_id = 0;  // names this version of the file within the mount
  source_kind source = {};     // where its bytes come from
  std::int32_t error = 0;      // 0, or a negative errno, and then the rest is zeros
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
