// SPDX-License-Identifier: Apache-2.0
// Handles of a mount whose page cache is another one, and the calls that read by them: each is gpufs's own, made of its parts.
#pragma once
#include "gpufs/file/open.hpp"
#include "research/baselines/layout.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

template <class Cache>
struct original_ref {
  const file_mount* mount;
  const original_layout* cache;
};

template <class Cache>
class original_file {
 public:
  GPUFS_HOST_DEVICE original_file(const original_ref<Cache>& fs, const file& opened) : fs_(fs), opened_(opened) {}
  GPUFS_DEVICE original_file(const original_ref<Cache>& fs, file_number number)
      : original_file(fs, file(mount_ref(fs.mount), number)) {}

  GPUFS_HOST_DEVICE file_number number() const { return opened_.number(); }
  GPUFS_HOST_DEVICE int error() const { return opened_.error(); }
  GPUFS_HOST_DEVICE const file& itself() const { return opened_; }
  GPUFS_HOST_DEVICE const cache::cache_layout* cache() const { return fs_.cache; }

 private:
  original_ref<Cache> fs_;
  file opened_;
};

// As gpufs::detail::file_pages.
template <class Cache>
class original_pages : public gpufs::detail::file_pages {
 public:
  using cache_type = Cache;
  static constexpr bool has_operations = false;

  GPUFS_DEVICE explicit original_pages(const original_file<Cache>& opened) : file_pages(opened.itself()), cache_(opened.cache()) {}

  GPUFS_DEVICE const cache::cache_layout* cache() const { return cache_; }

 private:
  const cache::cache_layout* cache_;
};

template <class Group, class Cache>
GPUFS_DEVICE original_file<Cache> open(Group group, const original_ref<Cache>& fs, const char* path, int flags = O_RDONLY) {
  return {fs, gpufs::detail::open_path_by<Cache>(group, fs.mount, fs.cache, path, flags)};
}
template <class Group, class Cache>
GPUFS_DEVICE int close(Group group, const original_file<Cache>& opened) {
  return gpufs::close(group, opened.itself());
}
template <class Group, class Cache>
GPUFS_DEVICE file_status fstat(Group group, const original_file<Cache>& opened) {
  return gpufs::fstat(group, opened.itself());
}
template <class Group, class Cache>
GPUFS_DEVICE std::int64_t pread(Group group, const original_file<Cache>& opened, void* dst, std::size_t nbytes,
                                std::int64_t offset) {
  if (opened.error() != 0) return gpufs::pread(group, opened.itself(), dst, nbytes, offset);
  return gpufs::detail::pread_by(group, original_pages<Cache>(opened), dst, nbytes, offset);
}
template <class Group, class Cache>
GPUFS_DEVICE mapped_page<> map_page(Group group, const original_file<Cache>& opened, std::int64_t offset) {
  if (opened.error() != 0) return gpufs::map_page(group, opened.itself(), offset);
  return gpufs::detail::map_page_by(group, original_pages<Cache>(opened), offset);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
