// SPDX-License-Identifier: Apache-2.0
// What is common to calls whose answer is a list of records: entries of a directory, extents of a file.
#pragma once
#include "gpufs/file/detail/file_table.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Copies a listing to `out`, at most `room` bytes of it, and gives its request slot back. All lanes call, with the leader's
// listing, which has no error. The bytes, or a negative errno.
template <class Group>
GPUFS_DEVICE std::int64_t take_listing(Group group, const file_mount* mount, const names::listing& got, void* out,
                                       std::uint32_t room) {
  const mount_requests rings(*mount);
  const std::int64_t fits = got.nbytes <= room ? got.nbytes : room;
  const int error = simt::copy_from_host(group, out, rings.payload(got.ticket), static_cast<std::size_t>(fits));
  group.sync();
  if (group.leader()) rings.give_back(got.ticket);
  return error != 0 ? error : fits;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
