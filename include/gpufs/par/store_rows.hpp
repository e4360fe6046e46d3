// SPDX-License-Identifier: Apache-2.0
// Rows of a batch that go past the cache into a file that the device writes in place: docs/design/batches.md, "What a scatter
// does". Who brings such a row's page into the cache meanwhile reads the row, or is seen afterwards.
#pragma once
#include "gpufs/file/write.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A lane's.
struct row_to_write {
  const std::byte* from;  // device memory
  std::uint64_t offset;   // in the file
  bool wanted;
};

// Which rows went past the cache; or why none of the lanes' rows can be written now (a negative errno).
struct stored_rows {
  std::uint32_t done;
  std::int32_t error;
};

// Stores rows of the lanes, in ascending order, that can go past the cache, by groups like `By`. All lanes of a warp call. The rows
// that are not done are to be written as pwrite does; one of them may have been stored, too.
template <class By>
GPUFS_DEVICE stored_rows store_rows(simt::warp warp, const file_mount& mount, file_number number, const row_to_write& mine,
                                    std::uint64_t nbytes) {
  const cache::page_cache<> pages(mount.cache);
  const cache::frames& frames = pages.pages();
  if (nbytes > frames.page_nbytes()) return {0, 0};  // whole pages have a way of their own
  struct written_slot {
    std::uint32_t slot, cache_id;
    std::int32_t error;
    bool may;
  };
  const auto at = by_leader(warp, [&]() -> written_slot {
    const file_view view = file_table(mount).view_to_write(number);
    // What nobody reads in (O_GWRONCE) would not be seen by who has the page later.
    if (view.error != 0 || !may_pass_host_by(view.kind)) return {0, 0, view.error, false};
    file_bytes& bytes = file_table(mount).slot(view.slot).bytes;
    const bool is_stored = simt::atomic_ref<std::uint64_t>(bytes.mapped_nbytes).load(std::memory_order_relaxed) != 0;
    if (!is_stored) return {0, 0, 0, false};
    const bool may = begin_changes(mount, view.slot);
    return {view.slot, view.cache_id, may ? 0 : -ETIMEDOUT, may};
  });
  if (!at.may) return {0, at.error};
  const auto is_cached = [&] {  // or about to be
    const std::uint64_t first = mine.offset >> frames.page_shift(), last = (mine.offset + nbytes - 1) >> frames.page_shift();
    return pages.has(cache::make_key(at.cache_id, first)) || (last != first && pages.has(cache::make_key(at.cache_id, last)));
  };
  source::piece to{};
  if (mine.wanted) to = find_to_write(mount, at.slot, mine.offset, static_cast<std::uint32_t>(nbytes));
  bool stored = mine.wanted && to.where == source::place::mapping && !is_cached();
  const std::uint32_t wanted = warp.ballot(stored);
  if (wanted == 0) {  // all are cached, or lie beyond the mapping
    if (warp.leader()) end_changes(mount, at.slot);
    warp.sync();
    return {0, 0};
  }
  // Meets the release with which the page left the table: what was written to it before is in the file before the row.
  simt::fence(std::memory_order_acquire, cache::cache_layout::scope);

  std::uint32_t cut = 0;
  constexpr unsigned side_by_side = simt::warp_lanes / By::lanes;
  for (unsigned next = 0; next < simt::warp_lanes && (wanted >> next) != 0; next += side_by_side) {
    const unsigned i = next + warp.rank() / By::lanes;
    const std::uint64_t from = warp.shfl(reinterpret_cast<std::uint64_t>(mine.from), i), there = warp.shfl(to.address, i);
    if ((wanted >> i & 1) == 0) continue;
    if (simt::copy_to_host(By{}, reinterpret_cast<std::byte*>(there), reinterpret_cast<const std::byte*>(from), nbytes) != 0) {
      cut |= 1u << i;
    }
  }
  // Meets live::find's, and that of who writes a whole page: either they see what we have stored, or we see that they hold the
  // page.
  simt::fence(std::memory_order_seq_cst, cache::cache_layout::scope);
  warp.sync();
  if (stored) stored = !is_cached();
  if (warp.any(cut != 0)) {
    for (unsigned distance = simt::warp_lanes / 2; distance != 0; distance /= 2) cut |= warp.shfl_xor(cut, distance);
  }
  const std::uint32_t done = warp.ballot(stored) & ~cut;
  const std::uint64_t last = warp.shfl(mine.offset, simt::highest_lane(wanted));
  if (warp.leader()) {
    file_slot& slot = file_table(mount).slot(at.slot);
    note_written_in_place(slot, last + nbytes);
    if (done != 0) {
      const std::uint64_t nrows = simt::count_lanes(done);
      count(mount.words->write_backs, nrows);
      count(mount.words->bytes_written_back, nrows * nbytes);
      count(file_table(mount).counters(at.slot).bytes_written, nrows * nbytes);
    }
    end_changes(mount, at.slot);
  }
  warp.sync();
  return {done, 0};
}

// Writes the rows of the lanes, in ascending order. All lanes of a warp call; one calls fail(lane, errno) for each that could not
// be written.
template <class By, class Fail>
GPUFS_DEVICE void write_rows(simt::warp warp, const file& to, const row_to_write& mine, std::uint64_t nbytes, Fail fail) {
  std::uint32_t left = warp.ballot(mine.wanted);
  if (left != 0 && to.error() == 0) {
    const stored_rows past = store_rows<By>(warp, *to.mount().get(), to.number(), mine, nbytes);
    // All of them: each by itself would wait for the same as long again.
    for (; past.error != 0 && left != 0; left &= left - 1) {
      if (warp.leader()) fail(simt::lowest_lane(left), past.error);
    }
    left &= ~past.done;
  }
  for (; left != 0; left &= left - 1) {
    const unsigned i = simt::lowest_lane(left);
    const auto* const src = reinterpret_cast<const std::byte*>(warp.shfl(reinterpret_cast<std::uint64_t>(mine.from), i));
    const std::int64_t got = pwrite(warp, to, src, nbytes, static_cast<std::int64_t>(warp.shfl(mine.offset, i)));
    if (got != static_cast<std::int64_t>(nbytes) && warp.leader()) fail(i, got < 0 ? static_cast<int>(got) : -EIO);
  }
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
