// SPDX-License-Identifier: Apache-2.0
// What is common to calls whose answer is a list of records: entries of a directory, extents of a file.
#pragma once
#include "gpufs/file/detail/file_table.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Copies a listing of `of` to `out`, at most `room` bytes of it, and gives its bytes back. All lanes call, with the leader's
// listing, which has no error. The bytes, or a negative errno.
template <class Group, names::name_space Names>
GPUFS_DEVICE std::int64_t take_listing(Group group, const Names& of, const names::listing& got, void* out, std::uint32_t room) {
  const std::int64_t fits = got.nbytes <= room ? got.nbytes : room;
  const int error = simt::copy_from_host(group, out, of.bytes_of(got.kept), static_cast<std::size_t>(fits));
  group.sync();
  if (group.leader()) of.give_back(got.kept);
  return error != 0 ? error : fits;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
