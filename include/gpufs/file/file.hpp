// SPDX-License-Identifier: Apache-2.0
// Files, for a group of threads: pread, map_page, unmap_page, fstat. Opening and closing is in gpufs/file/open.hpp, writing in
// write.hpp.
//
// Every call names its group first (gpufs::this_thread(), this_warp(), this_tile<N>(), this_block()); all lanes of the group call,
// with equal arguments, and all get the same result. Results are counts or negative errnos, never both in one value.
//
// Memory: what an address names is one piece of memory for all lanes, and what each lane has of its own comes back by value. So a
// buffer, a path or an array lies in global or shared memory (in a local variable for this_thread() alone); what lanes have written
// there they sync before the call, and may reuse after it. Statuses and handles are results. (The CPU machine stops a launch whose
// lanes call otherwise, and says how.)
//
// Waits are bounded: mount_options::io_timeout for the host (-ETIMEDOUT), frame_timeout while every frame is pinned (-ENOMEM).
// After GPUfs (CACM'14), section 3, and SYSTOR'16, section 4.2 (calls for warps).
#pragma once
#include <sys/stat.h>

#include "gpufs/file/read_window.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// A group's leader looks the page up; one lane calls. `frames` are the mount's, from the entry; after a call out of line they are
// loaded anew, so that none of them need be kept meanwhile.
template <class Group, class Pages>
GPUFS_DEVICE typename Pages::cache_type::acquired acquire_page(Group group, const Pages& of, cache::frame_storage& frames,
                                                               const file_view& view, std::uint64_t page_number) {
  using Cache = typename Pages::cache_type;
  const cache::page_key key = cache::make_key(view.cache_id, page_number);
  cache::frame_index at{};
  if (Cache::pin_in_choice(cache::frames(frames), key, at)) [[likely]] {
    simt::count_one(group, of.hits().hits);
    return {at, Cache::role::hit, 0};
  }
  const auto got = simt::call_cold(&acquire_elsewhere<Pages>, of, key);
  frames = of.frames();
  return got;
}

// What is left to do after the leader's acquire_page, whose result all lanes have: brings the page in where it is missing. All
// lanes call. what: hit or waited, and the page is pinned, maybe in another frame; or error.
template <class Group, class Pages, class Acquired>
GPUFS_DEVICE Acquired complete_page(Group group, const Pages& of, const Acquired& got) {
  if (got.what < decltype(got.what)::fill) [[likely]]
    return got;
  return simt::call_cold(&complete_missed<Group, Pages>, group, of, got);
}

// All lanes have read. Each warp of a block waits for its own loads, since the fence of the leader's unpin waits for its warp's
// only.
template <class Group>
GPUFS_DEVICE void finish_reads(Group group) {
  if constexpr (std::is_same_v<Group, simt::block>) simt::fence(std::memory_order_acq_rel, simt::scope::block);
  group.sync();
}

// Checks a range as pread(2) does and clips it to the file: the bytes to read, 0 at or beyond the end, or a negative errno.
GPUFS_DEVICE std::int64_t clip(const file_view& view, const void* dst, std::size_t nbytes, std::int64_t offset) {
  constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
  if (offset < 0) return -EINVAL;
  if (nbytes > most || nbytes > most - static_cast<std::uint64_t>(offset)) return -EOVERFLOW;
  if (nbytes == 0 || offset >= view.nbytes) return 0;
  if (dst == nullptr) return -EFAULT;
  const auto left = static_cast<std::uint64_t>(view.nbytes - offset);
  return static_cast<std::int64_t>(nbytes < left ? nbytes : left);
}

// Reads the pages of the run, in place while they hit. All lanes call.
template <class Group, class Pages>
GPUFS_DEVICE page_failure read_pages_of(Group group, const Pages& of, const open_entry& entry, const byte_range& range,
                                        std::uint64_t page_number, std::uint64_t last, std::uint32_t step) {
  cache::frame_storage storage = cache::unpack(entry.frames);
  const cache::frames frames(storage);
  const std::uint32_t page_nbytes = frames.page_nbytes();
  // Of a file that is pulled, pages go on one by one: there is no answer to wait for.
  const bool by_host = may_ask_ahead(entry.view.kind);
  std::uint64_t look_again = 0;  // windows are large: after a page that is pulled, so are the next ones, mostly
  for (; page_number <= last; page_number += step) {
    auto got = by_leader(group, [&] { return acquire_page(group, of, storage, entry.view, page_number); });
    if constexpr (Pages::has_operations) {
      if (got.what >= decltype(got.what)::fill && by_host && last - page_number >= step && page_number >= look_again) [[unlikely]] {
        const page_run rest{page_number, last, step};
        const page_failure failed = simt::call_cold(&read_run<Group>, group, of, range, rest, got);
        if (failed.error != not_by_host) return failed;
        look_again = page_number + 64;
      }
    }
    got = complete_page(group, of, got);
    if (got.error != 0) return {page_number, got.error};
    copy_part(group, range, page_number, page_nbytes, frames.data(got.frame));
    finish_reads(group);
    if (group.leader()) frames.unpin(got.frame);
  }
  return {0, 0};
}

// Bytes read before the page that failed, or the error when there are none.
GPUFS_DEVICE std::int64_t bytes_before(std::int64_t offset, std::uint64_t failed_page, std::uint32_t page_shift, int error) {
  const auto end = static_cast<std::int64_t>(failed_page << page_shift);
  return end > offset ? end - offset : error;
}

// Calls work(group, first, last, step) -> page_failure for the pages first to last, in parts whose pages lie `step` apart. Which
// page failed, or error == 0.
template <class Group, class Work>
GPUFS_DEVICE page_failure each_run(Group group, std::uint64_t first, std::uint64_t last, Work work) {
  return work(group, first, last, 1u);
}

// A block spreads the pages over its warps; the first page that failed decides.
template <class Work>
GPUFS_DEVICE page_failure each_run(simt::block group, std::uint64_t first, std::uint64_t last, Work work) {
  struct failure {
    std::uint64_t page_and_error;  // page number relative to the first << 16 | -error; all ones: none
  };
  auto& first_failure = simt::shared<failure>();
  simt::atomic_ref<std::uint64_t, simt::scope::block> word(first_failure.page_and_error);
  group.sync();  // the last call's readers are done
  if (group.leader()) word.store(~std::uint64_t{0}, std::memory_order_relaxed);
  group.sync();
  const auto warp = group.warp();
  if (last - first >= simt::warp_rank()) {
    const page_failure failed = work(warp, first + simt::warp_rank(), last, group.nwarps());
    if (failed.error != 0 && warp.leader()) {
      const std::uint64_t mine = ((failed.page - first) << 16) | static_cast<std::uint32_t>(-failed.error);
      std::uint64_t seen = word.load(std::memory_order_relaxed);
      while (mine < seen && !word.compare_exchange(seen, mine, std::memory_order_relaxed)) {
      }
    }
  }
  group.sync();
  const std::uint64_t failed = word.load(std::memory_order_relaxed);
  if (failed == ~std::uint64_t{0}) return {0, 0};
  return {first + (failed >> 16), -static_cast<int>(failed & 0xffff)};
}

// Calls work(group, page) -> 0 or a negative errno for the pages first to last, until one fails.
template <class Group, class Work>
GPUFS_DEVICE page_failure each_page(Group group, std::uint64_t first, std::uint64_t last, Work work) {
  return each_run(group, first, last, [&](auto part, std::uint64_t begin, std::uint64_t end, std::uint32_t step) -> page_failure {
    for (std::uint64_t page = begin; page <= end; page += step) {
      const int error = work(part, page);
      if (error != 0) return {page, error};
    }
    return {0, 0};
  });
}

template <class Group, class Pages>
GPUFS_DEVICE std::int64_t read_pages(Group group, const Pages& of, const open_entry& entry, std::byte* dst, std::uint64_t total,
                                     std::int64_t offset) {
  const std::uint32_t shift = cache::unpack(entry.frames).page_shift;
  const auto begin = static_cast<std::uint64_t>(offset);
  const byte_range range{dst, begin, begin + total};
  const page_failure failed = each_run(group, begin >> shift, (range.end - 1) >> shift,
                                       [&](auto part, std::uint64_t first, std::uint64_t last, std::uint32_t step) {
                                         return read_pages_of(part, of, entry, range, first, last, step);
                                       });
  return failed.error == 0 ? static_cast<std::int64_t>(total) : failed.error;
}

// What pread does, of a file that is open, or was.
template <class Group, class Pages>
GPUFS_DEVICE std::int64_t pread_by(Group group, const Pages& of, void* dst, std::size_t nbytes, std::int64_t offset) {
  const open_entry entry = by_leader(group, [&] { return of.look(); });
  const file_view& view = entry.view;
  if (view.error != 0) return view.error;
  std::int64_t result = clip(view, dst, nbytes, offset);
  if (result > 0) result = read_pages(group, of, entry, static_cast<std::byte*>(dst), static_cast<std::uint64_t>(result), offset);
  if (group.leader()) {
    if (result < 0) [[unlikely]] {
      simt::call_cold(&count_error, of.mount(), view.slot);
    } else {
      count(of.hits().bytes_read, static_cast<std::uint64_t>(result));
    }
  }
  group.sync();
  return result;
}

template <class Byte>
GPUFS_DEVICE mapped_page<Byte> not_mapped(int error) {
  return mapped_page<Byte>({nullptr, nullptr, nullptr, 0, error});
}

// What map_page does, of a file that is open, or was. The leader finds the addresses, and all get those: what they are made of
// would cost registers while the page is read.
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

// What was known of the file when it was opened, and the size of one that is open for writing as it is now: no host call. Its error
// is 0, -EBADF, or the error of a file that did not open.
template <simt::group Group>
GPUFS_DEVICE file_status fstat(Group group, const file& opened) {
  const simt::group_call call(group, "fstat(file, mount)", opened.number(), opened.entry());
  if (opened.error() != 0) return {.error = simt::call_cold(&detail::refuse<Group>, group, opened)};
  return detail::by_leader(group, [&]() -> file_status {
    const file_table table(*opened.mount().get());
    const file_view view = table.view_of_any(opened.number());
    if (view.error != 0) return {.error = view.error};
    const file_slot& slot = table.slot(view.slot);
    return {view.nbytes, slot.inode, slot.mtime_ns, slot.mode, slot.cache_id, view.kind, 0};
  });
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
