// SPDX-License-Identifier: Apache-2.0
// Appends records of any sizes to a file, which lie there one behind the other, in their order: a scan says where each begins, and
// the group, or the grid, takes one place for all of them, without locks. In kernels. (Hillis and Steele, "Data parallel
// algorithms", CACM 1986: enumerating, here in bytes.) docs/design/data-parallel.md
#pragma once
#include "gpufs/par/detail/append_by_grid.hpp"
#include "gpufs/par/detail/record_items.hpp"
#include "gpufs/par/detail/scan_by_grid.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// Bytes of memory that the thread reaches that asks for it.
struct record {
  const void* bytes;
  std::int64_t nbytes;
};

// records(i): record number i. Each is asked for once, by any thread. A function of kernels: GPUFS_DEVICE.
template <class R>
concept record_source = std::is_trivially_copyable_v<R> && requires(const R& records) {
  { records(std::uint64_t{}) } -> std::same_as<record>;
};
struct records_of_array {
  const record* all;
  GPUFS_DEVICE record operator()(std::uint64_t i) const { return all[i]; }
};

// Where the first record begins in the file, or a negative errno, and how many bytes they are together.
struct appended_records {
  std::int64_t offset;
  std::uint64_t nbytes;
};

namespace detail {

// Whether that many bytes may be appended that lie in `room`.
GPUFS_DEVICE appended_records check_records(std::uint64_t all, std::uint64_t room) {
  const int error = sum_of_sizes::error(all);
  if (error != 0) return {error, 0};
  return {all > room ? -ENOBUFS : 0, all};
}

}  // namespace detail

// Appends n records to a file by one append, as `append` does and says of readers and failures. By a thread, a tile, a warp or a
// block, all threads of which call with equal arguments. places: null, or n elements of memory, which get how many bytes each
// record begins behind the first one. staging: device memory of all of them for as many bytes as the records have together; what is
// in it does not matter. Waits as `append` does. The offset at which record 0 begins, or nothing is appended, and it is: -EINVAL (a
// record has a negative size), -EFAULT (one has bytes, and no address), -EOVERFLOW (they have 2^63 bytes or more), -ENOBUFS (they
// have more than the staging; nbytes says how many); -EBADF and what else `append` gives. After an error places are any. Each
// record is copied by one thread, and all of them at once: for records of up to some hundred bytes.
template <simt::group Group, record_source Records>
GPUFS_DEVICE appended_records append_records(Group group, const file& opened, const Records& records, std::uint64_t n,
                                             std::uint64_t* places, void* staging, std::uint64_t nbytes) {
  const simt::group_call call(group, "par::append_records(file, mount, n, places, staging, nbytes)", opened.number(),
                              opened.entry(), n, simt::memory_of_all{places, places == nullptr ? 0 : n},
                              simt::memory_of_all{staging, nbytes}, nbytes);
  const std::uint64_t all = detail::scan_by_group(
      group, detail::record_items<record, Records>{records}, n, detail::sum_of_sizes{},
      detail::put_each<std::uint64_t, detail::put_records>{{static_cast<std::byte*>(staging), nbytes, places}});
  group.sync();  // all have copied theirs
  appended_records result = detail::check_records(all, nbytes);
  if (result.offset == 0) result.offset = append(group, opened, staging, all);
  return result;
}

// The same by all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results: one append
// for the grid's records, whose pages all blocks write. (Where the order of blocks does not matter, each calls for its own.) What
// any of them has written before, all see in the call. staging, places: global memory. space: scan_space::nbytes_to_append(n,
// blocks, threads a block) bytes, else -EINVAL. -ETIMEDOUT: as a scan's too.
template <record_source Records>
GPUFS_DEVICE appended_records append_records(simt::grid grid, const file& opened, const Records& records, std::uint64_t n,
                                             std::uint64_t* places, void* staging, std::uint64_t nbytes, const scan_space& space) {
  const simt::block block = grid.this_block();
  const simt::group_call call(block, "par::append_records(file, mount, n, places, staging, nbytes, space, nbytes)", opened.number(),
                              opened.entry(), n, simt::memory_of_all{places, places == nullptr ? 0 : n},
                              simt::memory_of_all{staging, nbytes}, nbytes, simt::memory_of_all{space.data}, space.nbytes);
  if (space.nbytes < scan_space::nbytes_to_append(n, simt::grid_size(), simt::block_size())) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  static_assert(sizeof(gpufs::detail::begun_write) <= 96);  // as nbytes_to_append knows
  auto* const begun = pieces.take<gpufs::detail::begun_write>(1);
  auto* const words = pieces.take<std::uint64_t>(simt::grid_size());
  using items = detail::record_items<record, Records>;
  const detail::look_back<detail::sum_of_sizes> tiles(pieces, detail::tiles_of<items>(n));
  std::uint64_t all = 0;
  const int error = detail::scan_by_look_back(
      grid, items{records}, n, detail::sum_of_sizes{}, tiles,
      detail::put_each<std::uint64_t, detail::put_records>{{static_cast<std::byte*>(staging), nbytes, places}}, all);
  if (error != 0) return {error, 0};
  appended_records result = detail::check_records(all, nbytes);
  if (result.offset == 0) result.offset = gpufs::detail::append_by_grid(grid, opened, staging, all, begun, words);
  return result;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
