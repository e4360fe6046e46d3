// SPDX-License-Identifier: Apache-2.0
// Where a file's bytes lie on the device that its file system lies on, for a group of threads: for kernels that drive that device
// themselves. The call follows the rules of file.hpp. Other calls need nothing of it.
#pragma once
#include "gpufs/file/detail/take_listing.hpp"
#include "gpufs/file/open.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// The result of read_extents.
struct extents_part {
  std::int64_t n;       // extents written to `out`; 0: there are no more; or a negative errno
  std::int64_t offset;  // where the next call goes on
};

namespace detail {

// Does the work of read_extents. One lane calls.
inline GPUFS_DEVICE_COLD names::listing list_extents(const file_mount* mount, file_number number, std::int64_t offset,
                                                     std::uint32_t nbytes) {
  const file_view view = file_table(*mount).view_of_any(number);
  if (view.error != 0) return {view.error, {}, 0, 0};
  return mount_names(*mount, ring_hint()).extents(view.handle, offset, nbytes);
}

}  // namespace detail

// Gives the extents of an open file from a byte `offset` on, in order, as many as fit into one request to the host: at most n, and
// at most what a request carries (a page, at least 4 KiB: 128; of large pages 1,024). `out` lies in device memory, aligned to 8.
// `offset` is 0 for the first call, then the offset of the last result. The first extent is cut to begin at `offset`.
//
// The extents are those of the file as the host has it: of a file that is open for writing, what kernels have written since the
// last fsync is not among them. They stay true until somebody writes, cuts or moves the file's blocks. After an error, the result's
// n is negative: -EOPNOTSUPP (the file system knows no places of its device: its files lie in memory, on another machine, or on
// btrfs), -ESTALE (the file is not what was opened), -EINVAL (n is 0, or offset is negative), -EBADF, -EFAULT or -ETIMEDOUT.
template <simt::group Group>
GPUFS_DEVICE extents_part read_extents(Group group, const file& opened, extent* out, std::uint32_t n, std::int64_t offset = 0) {
  const std::uint32_t most = n < 1u << 16 ? n : 1u << 16;
  const auto room = static_cast<std::uint32_t>(most * sizeof(extent));
  const simt::group_call call(group, "read_extents(file, mount, out, n, offset)", opened.number(), opened.entry(),
                              simt::memory_of_all{out, out == nullptr ? 0 : room}, n, offset);
  if (opened.error() != 0) return {simt::call_cold(&detail::refuse<Group>, group, opened), offset};
  if (out == nullptr) return {-EFAULT, offset};
  const file_mount* layout = opened.mount().get();
  const names::listing got =
      detail::by_leader(group, [&] { return simt::call_cold(&detail::list_extents, layout, opened.number(), offset, room); });
  if (got.error != 0) return {got.error, offset};
  const std::int64_t nbytes = detail::take_listing(group, mount_names(*layout, 0), got, out, room);
  return {nbytes < 0 ? nbytes : nbytes / static_cast<std::int64_t>(sizeof(extent)), got.position};
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
