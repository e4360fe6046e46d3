// SPDX-License-Identifier: Apache-2.0
// How a group within a warp reads some of a batch's rows: its lanes look for a row each, and then its parts copy what is at hand, a
// row each; the rest the group reads row by row, when it has no page pinned. docs/design/batches.md, "What a gather does"
#pragma once
#include "gpufs/par/detail/read_row.hpp"
#include "gpufs/par/rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A row becomes zeros, and its error is noted. All lanes call.
template <class Group, class Rows>
GPUFS_DEVICE void lose_row(Group group, const Rows& part, const file_pages& of, const file& from, std::byte* to, std::uint32_t i,
                           int error) {
  std::byte* const here = to + part.in_memory(i);
  group.sync();  // what lanes have read of it
  for (std::uint64_t k = group.rank(); k < part.layout.row_nbytes; k += group.size()) here[k] = std::byte{0};
  if (!group.leader()) return;
  part.fail(i, error);
  if (part.is_row(part.row(i)) && from.error() == 0) simt::call_cold(&count_error, of.mount(), file_slots::index_of(from.number()));
}

// In the place of rows_for_host: host threads gather none.
struct no_rows_for_host {
  GPUFS_DEVICE static constexpr bool may_be() { return false; }
  GPUFS_DEVICE static void add(std::uint32_t, std::uint32_t) {}
};

// Rows: a batch, in the order in which it is read. Row i has the number row(i), and goes to in_memory(i); repeats(i): the row
// before it is the same; is_repeated(i): the row behind it is. Further is_row(number), offset(number), fail(i, errno), layout. By:
// the groups that copy a row each from a mapping. Other groups copy rows from the device's memory.
template <class By, class Rows, class Left>
struct row_reader {
  Rows part;
  file from;
  std::byte* to;
  touched_pages touched;
  Left left;

  // Reads the rows at [first, first + at_once) that are below `end` and repeat no other row. at_once: up to the group's lanes. All
  // lanes call; `of` are the pages of `from`.
  template <class Group>
  GPUFS_DEVICE void read_some(Group group, const file_pages& of, std::uint64_t first, std::uint64_t end,
                              std::uint32_t at_once) const {
    using place = row_at_hand::place;
    const auto mine = static_cast<std::uint32_t>(first) + group.rank();
    const bool is_mine = group.rank() < at_once && mine < end && !(part.is_row(part.row(mine)) && part.repeats(mine));
    row_at_hand at{};
    if (is_mine && from.error() == 0 && part.is_row(part.row(mine))) {
      const open_entry entry = of.look();
      const cache::frames frames(cache::unpack(entry.frames));
      at = look_for_row(of, entry.view, frames, part.offset(part.row(mine)), part.layout.row_nbytes, touched,
                        {part.is_repeated(mine), left.may_be()});
    }
    const std::uint32_t cut = copy(group, static_cast<std::uint32_t>(first), at, at_once);
    if (at.where == place::frame) cache::frames(of.frames()).unpin(at.frame);
    const std::uint32_t hits = group.ballot(at.where == place::frame), asked = group.ballot(at.where == place::host);
    const std::uint32_t wanted = group.ballot(is_mine) & ~asked;
    if (asked != 0) left.add(mine, asked);
    const std::uint32_t seen = group.ballot(at.seen);
    std::uint32_t pulled = group.ballot(at.where == place::mapping) & ~cut, lost = 0, nhits = simt::count_lanes(hits);
    std::uint32_t slow = group.ballot(is_mine && at.where == place::nowhere) | cut;
    for (; slow != 0; slow &= slow - 1) {
      const std::uint32_t bit = slow & (0 - slow), i = static_cast<std::uint32_t>(first) + simt::count_lanes(bit - 1);
      const row_read got = read(group, of, i, (seen & bit) != 0);
      if (got.error != 0) {
        lose_row(group, part, of, from, to, i, got.error);
        lost |= bit;
      }
      if (got.pulled) pulled |= bit;
      nhits += got.nhits;
    }
    // Looks once at the version, for all rows that were pulled.
    if (pulled != 0) {
      group.sync();
      const int error = by_leader(group, [&] { return simt::call_cold(&end_of_version, of); });
      if (error != 0) lost |= pulled;
      for (; error != 0 && pulled != 0; pulled &= pulled - 1) {
        lose_row(group, part, of, from, to, static_cast<std::uint32_t>(first) + simt::count_lanes((pulled & (0 - pulled)) - 1),
                 error);
      }
    }
    if (group.leader() && wanted != lost) {
      count(of.hits().bytes_read, simt::count_lanes(wanted & ~lost) * part.layout.row_nbytes);
      if (nhits != 0) count(of.hits().hits, nhits);
    }
  }

 private:
  // Copies the rows that the lanes have at hand, from `first` on. Groups of the size that keeps the device's memory busiest copy
  // from there. Returns which rows were cut from their mapping meanwhile. All lanes call.
  template <class Group>
  GPUFS_DEVICE std::uint32_t copy(Group group, std::uint32_t first, const row_at_hand& at, std::uint32_t at_once) const {
    using place = row_at_hand::place;
    const std::uint32_t here = group.ballot(at.where == place::frame || at.where == place::device);
    copy_by(up_to_eight<Group>{}, group, first, at, at_once, here, false);
    const std::uint32_t mapped = group.ballot(at.where == place::mapping);
    std::uint32_t cut = 0;
    if constexpr (!std::is_same_v<By, by_size>) {
      cut = copy_by(By{}, group, first, at, at_once, mapped, true);
    } else if (part.layout.row_nbytes <= most_by_eight) {
      cut = copy_by(up_to_eight<Group>{}, group, first, at, at_once, mapped, true);
    } else {
      cut = copy_by(group, group, first, at, at_once, mapped, true);
    }
    finish_reads(group);
    return cut;
  }
  template <class Part, class Group>
  GPUFS_DEVICE std::uint32_t copy_by(Part by, Group group, std::uint32_t first, const row_at_hand& at, std::uint32_t at_once,
                                     std::uint32_t wanted, bool from_mapping) const {
    constexpr unsigned side_by_side = Group::lanes / Part::lanes;
    std::uint32_t cut = 0;
    for (unsigned next = 0; next < at_once && (wanted >> next) != 0; next += side_by_side) {
      const unsigned i = next + group.rank() / Part::lanes;
      const std::uint64_t address = group.shfl(at.address, i);
      if ((wanted >> i & 1) == 0) continue;
      const auto* const there = reinterpret_cast<const std::byte*>(address);
      std::byte* const here = to + part.in_memory(first + i);
      if (!from_mapping) {
        simt::copy_bytes(by, here, there, part.layout.row_nbytes);
      } else if (simt::copy_from_host(by, here, there, part.layout.row_nbytes) != 0) {
        cut |= 1u << i;
      }
    }
    if (!group.any(cut != 0)) return 0;
    for (unsigned distance = Group::lanes / 2; distance != 0; distance /= 2) cut |= group.shfl_xor(cut, distance);
    return cut;
  }
  template <class Group>
  GPUFS_DEVICE row_read read(Group group, const file_pages& of, std::uint32_t i, bool seen) const {
    if (from.error() != 0) return {from.error(), false, 0};
    const std::uint64_t row = part.row(i);
    if (!part.is_row(row)) return {-EDOM, false, 0};
    return read_row(group, of, to + part.in_memory(i), part.layout.row_nbytes, part.offset(row), touched,
                    seen || part.is_repeated(i));
  }
};

// Of sorted rows, the first one that is equal to row i.
template <class Rows>
GPUFS_DEVICE std::uint32_t first_of_equal(const Rows& part, std::uint32_t i) {
  const std::uint64_t row = part.row(i);
  std::uint32_t low = 0, high = i;  // it is in [low, high]
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (part.row(middle) < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
