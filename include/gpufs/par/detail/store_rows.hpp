// SPDX-License-Identifier: Apache-2.0
// Rows of a batch that go past the cache into a file that the device writes in place: docs/design/batches.md, "What a scatter
// does". Who brings such a row's page into the cache meanwhile reads the row, or is seen afterwards.
#pragma once
#include "gpufs/file/write.hpp"
#include "gpufs/par/rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A row that a lane wants to write.
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

// Stores the lanes' rows, each to its address by a group like `by`. Returns the rows that this lane saw cut from their mapping.
template <class Part, class Group>
GPUFS_DEVICE std::uint32_t store_by(Part by, Group group, const std::byte* from, std::uint64_t address, std::uint32_t wanted,
                                    std::uint64_t nbytes) {
  constexpr unsigned side_by_side = Group::lanes / Part::lanes;
  std::uint32_t cut = 0;
  for (unsigned next = 0; next < Group::lanes && (wanted >> next) != 0; next += side_by_side) {
    const unsigned i = next + group.rank() / Part::lanes;
    const std::uint64_t here = group.shfl(reinterpret_cast<std::uint64_t>(from), i), there = group.shfl(address, i);
    if ((wanted >> i & 1) == 0) continue;
    if (simt::copy_to_host(by, reinterpret_cast<std::byte*>(there), reinterpret_cast<const std::byte*>(here), nbytes) != 0) {
      cut |= 1u << i;
    }
  }
  return cut;
}

// Stores rows of the lanes that can go past the cache, by groups like `By`. All lanes of a group within a warp call, and the rows
// of no two overlap. The rows that are not done are to be written as pwrite does; one of them may have been stored, too.
template <class By, class Group>
GPUFS_DEVICE stored_rows store_rows(Group group, const file_mount& mount, file_number number, const row_to_write& mine,
                                    std::uint64_t nbytes) {
  const cache::page_cache<> pages(mount.cache);
  const cache::frames& frames = pages.pages();
  if (nbytes > frames.page_nbytes()) return {0, 0};  // whole pages have a way of their own
  struct written_slot {
    std::uint32_t slot, cache_id;
    std::int32_t error;
    bool may;
  };
  const auto at = by_leader(group, [&]() -> written_slot {
    const file_view view = file_table(mount).view_to_write(number);
    // With O_GWRONCE nobody reads pages in, so a group that has the page later would not see the rows.
    if (view.error != 0 || !may_pass_host_by(view.kind)) return {0, 0, view.error, false};
    file_bytes& bytes = file_table(mount).slot(view.slot).bytes;
    const bool is_mapped = simt::atomic_ref<std::uint64_t>(bytes.mapped_nbytes).load(std::memory_order_relaxed) != 0;
    if (!is_mapped) return {0, 0, 0, false};
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
  bool passes_cache = mine.wanted && to.where == source::place::host_memory && !is_cached();
  const std::uint32_t wanted = group.ballot(passes_cache);
  if (wanted == 0) {  // all are cached, or lie beyond the mapping
    if (group.leader()) end_changes(mount, at.slot);
    group.sync();
    return {0, 0};
  }
  // Meets the release with which the page left the table: bytes written to the page before are in the file before the row.
  simt::fence(std::memory_order_acquire, cache::cache_layout::scope);

  std::uint32_t cut = 0;
  if constexpr (!std::is_same_v<By, by_size>) {
    cut = store_by(By{}, group, mine.from, to.address, wanted, nbytes);
  } else if (nbytes <= most_by_eight) {
    cut = store_by(up_to_eight<Group>{}, group, mine.from, to.address, wanted, nbytes);
  } else {
    cut = store_by(group, group, mine.from, to.address, wanted, nbytes);
  }
  // Meets the fences of live::find and begin_whole_page: either the group that brings the page in sees our rows, or we see that it
  // has the page.
  simt::fence(std::memory_order_seq_cst, simt::scope::device);
  group.sync();
  if (passes_cache) passes_cache = !is_cached();
  if (group.any(cut != 0)) {
    for (unsigned distance = Group::lanes / 2; distance != 0; distance /= 2) cut |= group.shfl_xor(cut, distance);
  }
  const std::uint32_t done = group.ballot(passes_cache) & ~cut;
  const std::uint64_t last = group.reduce_max((wanted >> group.rank() & 1) != 0 ? mine.offset : 0);
  if (group.leader()) {
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
  group.sync();
  return {done, 0};
}

// Writes a row as pwrite does: 0, or the errno of why not all of it. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD int write_row(Group group, file to, const std::byte* src, std::uint64_t nbytes, std::uint64_t offset) {
  for (std::uint64_t done = 0; done < nbytes;) {  // once more where it wrote a part: what is left says why
    const std::int64_t got = pwrite(group, to, src + done, nbytes - done, static_cast<std::int64_t>(offset + done));
    if (got <= 0) return got < 0 ? static_cast<int>(got) : -EIO;
    done += static_cast<std::uint64_t>(got);
  }
  return 0;
}

// Writes the rows of the lanes, as store_rows takes them. All lanes call; one calls fail(lane, errno) for each that could not be
// written.
template <class By, class Group, class Fail>
GPUFS_DEVICE void write_rows(Group group, const file& to, const row_to_write& mine, std::uint64_t nbytes, Fail fail) {
  std::uint32_t left = group.ballot(mine.wanted);
  if (left != 0 && to.error() == 0) {
    const stored_rows past = store_rows<By>(group, *to.mount().get(), to.number(), mine, nbytes);
    // Fails all of them at once: each further row would wait as long again.
    for (; past.error != 0 && left != 0; left &= left - 1) {
      if (group.leader()) fail(simt::lowest_lane(left), past.error);
    }
    left &= ~past.done;
  }
  for (; left != 0; left &= left - 1) {
    const unsigned i = simt::lowest_lane(left);
    const auto* const src = reinterpret_cast<const std::byte*>(group.shfl(reinterpret_cast<std::uint64_t>(mine.from), i));
    const int error = simt::call_cold(&write_row<Group>, group, to, src, nbytes, group.shfl(mine.offset, i));
    if (error != 0 && group.leader()) fail(i, error);
  }
}

// How a group within a warp writes some of a batch's rows. Rows: as row_reader's, sorted: of equal rows the last one is written.
// By: the groups that store a row each.
template <class By, class Rows>
struct row_writer {
  Rows part;
  file to;
  const std::byte* from;

  // Writes those of the rows at [first, first + at_once) that are below `end`. at_once: up to the group's lanes. All lanes call.
  template <class Group>
  GPUFS_DEVICE void write_some(Group group, std::uint64_t first, std::uint64_t end, std::uint32_t at_once) const {
    const auto mine = static_cast<std::uint32_t>(first) + group.rank();
    const bool is_mine = group.rank() < at_once && mine < end;
    const bool is_row = is_mine && part.is_row(part.row(mine));
    if (is_mine && !is_row) part.fail(mine, -EDOM);
    row_to_write row{};
    row.wanted = is_row && !part.is_repeated(mine);
    if (row.wanted) {
      row.from = from + part.in_memory(mine);
      row.offset = part.offset(part.row(mine));
    }
    write_rows<By>(group, to, row, part.layout.row_nbytes,
                   [&](unsigned lane, int error) { part.fail(static_cast<std::uint32_t>(first) + lane, error); });
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
