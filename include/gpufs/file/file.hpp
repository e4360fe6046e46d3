// SPDX-License-Identifier: Apache-2.0
// Files, for a group of threads: pread, map_page, unmap_page, fstat. Opening and closing is in gpufs/file/open.hpp, writing in
// write.hpp.
//
// Every call names its group first (gpufs::this_thread(), this_warp(), this_tile<N>(), this_block()); all lanes of the group call,
// with equal arguments, and all get the same result. Results are counts or negative errnos, never both in one value.
//
// Memory: what an address names is one piece of memory for all lanes, and what each lane has of its own comes back by value. So a
// buffer, a path or an array lies in global or shared memory (in a local variable for this_thread() alone); what lanes have written
// there they sync before the call, and may reuse after it. Statuses and handles are results. Only append_each takes an address of
// each lane's own. (The CPU machine stops a launch whose lanes call otherwise, and says how.)
//
// Waits are bounded: mount_options::io_timeout for the host (-ETIMEDOUT), frame_timeout while every frame is pinned (-ENOMEM).
// After GPUfs (CACM'14), section 3, and SYSTOR'16, section 4.2 (calls for warps).
#pragma once
#include <sys/stat.h>

#include "gpufs/file/detail/read_pages.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

template <class Byte>
GPUFS_DEVICE mapped_page<Byte> not_mapped(int error) {
  return mapped_page<Byte>({nullptr, nullptr, nullptr, 0, error});
}

// Does the work of map_page for a file that is open, or was open. The leader computes the addresses and passes them to all lanes:
// the values that they are computed from would cost each lane registers while it reads the page.
template <class Group, class Pages>
GPUFS_DEVICE mapped_page<> map_page_by(Group group, const Pages& of, std::int64_t offset) {
  constexpr std::int32_t missing = 1;
  struct answer {
    std::byte* data;
    std::uint64_t* state;
    std::uint32_t nbytes;  // from the offset to the end of the page or of the file
    std::int32_t error;
  };
  using acquired = typename Pages::cache_type::acquired;
  bool is_open = false;  // the leader's
  acquired got{};        // as well
  answer found = by_leader(group, [&]() -> answer {
    const open_entry entry = of.look();
    const file_view& view = entry.view;
    if (view.error != 0) return {nullptr, nullptr, 0, view.error};
    is_open = true;
    if (offset < 0) return {nullptr, nullptr, 0, -EINVAL};
    if (offset >= view.nbytes) return {nullptr, nullptr, 0, -ENXIO};
    cache::frame_storage storage = cache::unpack(entry.frames);
    const std::uint64_t page_number = static_cast<std::uint64_t>(offset) >> storage.page_shift;
    const std::int64_t left = view.nbytes - offset;
    got = acquire_page(group, of, storage, view, page_number);
    const cache::frames frames(storage);
    const std::uint32_t in_page = static_cast<std::uint32_t>(offset) & (frames.page_nbytes() - 1);
    const std::uint32_t here = frames.page_nbytes() - in_page;
    return {frames.data(got.frame) + in_page, &frames.state_word(got.frame), left < here ? static_cast<std::uint32_t>(left) : here,
            got.what >= Pages::cache_type::role::fill ? missing : got.error};
  });
  int error = found.error;
  if (error == missing) [[unlikely]] {
    got = simt::call_cold(&complete_missed<Group, Pages>, group, of, got);
    simt::rejoin(group);
    error = got.error;
    if (error == 0) {
      const cache::frames frames(of.frames());
      found.data = frames.data(got.frame) + (static_cast<std::uint32_t>(offset) & (frames.page_nbytes() - 1));
      found.state = &frames.state_word(got.frame);
    }
  }
  if (error == 0) [[likely]]
    return mapped_page<>({found.data, found.state, of.entry(), found.nbytes, static_cast<std::int32_t>(of.number())});
  if (is_open) simt::call_cold(&count_error, of.mount(), file_slots::index_of(of.number()));
  return not_mapped<const std::byte>(error);
}

}  // namespace detail

// Reads up to nbytes at `offset` into dst (any device memory, any alignment). Bytes read: fewer only at the end of the file. If a
// page cannot be read the call fails with the error of the first such page, and what dst has then is undefined: -EBADF (not open,
// or not for reading; a file that did not open gives the error of its open), -EINVAL (offset < 0), -EOVERFLOW, -EFAULT, -EIO,
// -ESTALE (the file changed since it was opened, or is being written by this mount; docs/guide/writing.md, "Files and versions"),
// -ENOMEM, -EMFILE (a page of it has 2^23 pins, by map_page or pointers), -ETIMEDOUT.
template <simt::group Group>
GPUFS_DEVICE std::int64_t pread(Group group, const file& opened, void* dst, std::size_t nbytes, std::int64_t offset) {
  const simt::group_call call(group, "pread(file, mount, dst, nbytes, offset)", opened.number(), opened.entry(),
                              simt::memory_of_all{dst, nbytes}, nbytes, offset);
  if (opened.error() != 0) [[unlikely]]
    return simt::call_cold(&detail::refuse<Group>, group, opened);
  return detail::pread_by(group, detail::file_pages(opened), dst, nbytes, offset);
}

// Maps the page that holds `offset`: it is pinned in the cache, and does not move, until unmap_page. The page's error() is 0
// or as pread's, and -ENXIO at or beyond the end of the file. A group that maps more pages than the cache has frames gets
// -ENOMEM after frame_timeout. map_page<std::byte>, of map_to_write.hpp, maps a page for writing too.
template <class Byte = const std::byte, simt::group Group>
requires std::is_same_v<Byte, const std::byte> GPUFS_DEVICE mapped_page<Byte> map_page(Group group, const file& opened,
                                                                                       std::int64_t offset) {
  const simt::group_call call(group, "map_page(file, mount, offset)", opened.number(), opened.entry(), offset);
  if (opened.error() != 0) [[unlikely]]
    return detail::not_mapped<Byte>(simt::call_cold(&detail::refuse<Group>, group, opened));
  return detail::map_page_by(group, detail::file_pages(opened), offset);
}

// Gives a mapped page back: unmap_page(group, std::move(page)). 0; the page's error(), where it is not mapped; or -EBADF, where it
// was unmapped before, through a page_handle: noticed unless somebody has its frame pinned just then, when their pin is taken.
template <simt::group Group>
GPUFS_DEVICE int unmap_page(Group group, mapped_page<> mapped) {
  const simt::group_call call(group, "unmap_page(page)", mapped.data());
  if (mapped.error() != 0) return mapped.error();
  detail::finish_reads(group);
  const page_handle<const std::byte> page = mapped.release();
  return detail::by_leader(group, [&] {
    if (!cache::frames::unpin_checked(*page.state)) [[unlikely]] {
      simt::call_cold(&detail::count_unpin_error, page.entry, file_slots::index_of(file_number{page.number}));
      return -EBADF;
    }
    return 0;
  });
}

// The status of an open file, as the host gave it at the open. If the file is open for writing, the size is the present one. Makes
// no call of the host. `error` is 0, -EBADF, or the error of the open if the file did not open.
template <simt::group Group>
GPUFS_DEVICE file_status fstat(Group group, const file& opened) {
  const simt::group_call call(group, "fstat(file, mount)", opened.number(), opened.entry());
  if (opened.error() != 0) return {.error = simt::call_cold(&detail::refuse<Group>, group, opened)};
  return detail::by_leader(group, [&]() -> file_status {
    const file_table table(*opened.mount().get());
    const file_view view = table.view_of_any(opened.number());
    if (view.error != 0) return {.error = view.error};
    const file_slot& slot = table.slot(view.slot);
    return {view.nbytes, slot.inode, slot.mtime_ns, slot.mode & ~slot_fixed_size, slot.cache_id, view.kind, 0};
  });
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
