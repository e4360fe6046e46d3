// SPDX-License-Identifier: Apache-2.0
// The kind of file system that a file is in.
#pragma once
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdint>

namespace gpufs::store {

enum class file_system_kind : std::uint8_t {
  local,
  memory,  // tmpfs, ramfs, hugetlbfs
  remote,  // another machine serves it: any call may hang
  fuse,    // a user's process serves it: any call may hang
};
inline bool may_hang(file_system_kind kind) { return kind == file_system_kind::remote || kind == file_system_kind::fuse; }

// Asks the file system, so this call may hang, too. A file system that gives an error counts as remote.
inline file_system_kind file_system_of(int fd) {
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0) return file_system_kind::remote;
  switch (static_cast<std::uint64_t>(fs.f_type) & 0xffffffffu) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
    case HUGETLBFS_MAGIC:
      return file_system_kind::memory;
    case FUSE_SUPER_MAGIC:
      return file_system_kind::fuse;
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case V9FS_MAGIC:
    case CEPH_SUPER_MAGIC:
    case AFS_SUPER_MAGIC:
    case AFS_FS_MAGIC:
    case CODA_SUPER_MAGIC:
    case OCFS2_SUPER_MAGIC:
    case 0x0bd00bd0:  // Lustre
    case 0x47504653:  // GPFS
    case 0x19830326:  // BeeGFS
      return file_system_kind::remote;
    default:
      return file_system_kind::local;
  }
}

}  // namespace gpufs::store
