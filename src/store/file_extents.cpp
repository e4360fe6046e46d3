// SPDX-License-Identifier: Apache-2.0
#include "file_extents.hpp"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "file_system.hpp"

namespace gpufs::store {
namespace {

std::uint32_t flags_of(std::uint32_t fiemap_flags) {
  constexpr std::uint32_t elsewhere = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED |
                                      FIEMAP_EXTENT_DATA_ENCRYPTED | FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_DATA_INLINE |
                                      FIEMAP_EXTENT_DATA_TAIL;
  return ((fiemap_flags & elsewhere) != 0 ? extent_elsewhere : 0) |
         ((fiemap_flags & FIEMAP_EXTENT_UNWRITTEN) != 0 ? extent_unwritten : 0) |
         ((fiemap_flags & FIEMAP_EXTENT_SHARED) != 0 ? extent_shared : 0);
}

// Of file systems whose answers are places of the device that they lie on. A server's are its own, if they are any (SMB gives the
// offset in the file), and btrfs's are addresses of its own, which it maps to its devices.
bool has_places(int fd) {
  struct statfs fs;
  if (file_system_of(fd) != file_system_kind::local || ::fstatfs(fd, &fs) != 0) return false;
  return static_cast<std::uint64_t>(fs.f_type) != BTRFS_SUPER_MAGIC;
}

}  // namespace

std::int64_t extents_of(int fd, std::int64_t* offset, std::span<extent> out) {
  if (*offset < 0 || out.empty()) return -EINVAL;
  if (!has_places(fd)) return -EOPNOTSUPP;
  const std::size_t most = std::min(out.size(), most_extents);
  // The header, and records behind it: so many of a record's size hold both.
  std::vector<fiemap_extent> memory(most + 1);
  static_assert(sizeof(fiemap) <= sizeof(fiemap_extent) && alignof(fiemap) <= alignof(fiemap_extent));
  auto& map = *reinterpret_cast<fiemap*>(memory.data());
  map.fm_start = static_cast<std::uint64_t>(*offset);
  map.fm_length = FIEMAP_MAX_OFFSET - map.fm_start;
  map.fm_flags = FIEMAP_FLAG_SYNC;
  map.fm_extent_count = static_cast<std::uint32_t>(most);
  while (::ioctl(fd, FS_IOC_FIEMAP, &map) != 0) {
    if (errno == EFBIG) return 0;  // no file is so long
    // A file system without extents says either.
    if (errno != EINTR) return errno == ENOTTY ? -EOPNOTSUPP : -errno;
  }
  for (std::uint32_t i = 0; i < map.fm_mapped_extents; ++i) {
    const fiemap_extent& from = map.fm_extents[i];
    // The first one may begin before what was asked for.
    const std::uint64_t before = from.fe_logical < map.fm_start ? map.fm_start - from.fe_logical : 0;
    out[i] = {static_cast<std::int64_t>(from.fe_logical + before), static_cast<std::int64_t>(from.fe_physical + before),
              static_cast<std::int64_t>(from.fe_length - before), flags_of(from.fe_flags), 0};
    *offset = out[i].offset + out[i].nbytes;
  }
  return map.fm_mapped_extents;
}

}  // namespace gpufs::store
