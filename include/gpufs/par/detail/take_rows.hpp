// SPDX-License-Identifier: Apache-2.0
// How a group within a warp reads some of a batch's rows: its lanes look for a row each, and then its parts copy what is at hand, a
// row each; the rest the group reads row by row, when it has no page pinned. docs/design/batches.md, "What a gather does"
#pragma once
#include "gpufs/par/detail/row_at_hand.hpp"
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

// The bytes of a row that a lane looks for.
struct row_span {
  std::uint32_t begin, nbytes;
};

// Rows: a batch, in the order in which it is read. Row i of that is number row(i), repeats(i) the one before it, is_repeated(i) by
// the one behind it, and goes to in_memory(i). is_row(number), offset(number), fail(i, errno), layout. By: the groups that copy a
// row each from a mapping; others from the device's memory. Parts: in how many pages a row may lie so that lanes look for it, one
// or two; a row in two pages has two lanes. The group reads all other rows one by one.
template <class By, class Rows, class Left, unsigned Parts = 1>
struct row_reader {
  static_assert(Parts == 1 || Parts == 2);
  Rows part;
  file from;
  std::byte* to;
  touched_pages touched;
  Left left;

  // Reads those of the rows at [first, first + at_once) that are below `end` and repeat none. Parts * at_once: up to the group's
  // lanes. All lanes call; `of` is of `from`.
  template <class Group>
  GPUFS_DEVICE void read_some(Group group, const file_pages& of, std::uint64_t first, std::uint64_t end,
                              std::uint32_t at_once) const {
    using place = row_at_hand::place;
    // The lanes from at_once on look for the second parts.
    const bool is_second = Parts == 2 && group.rank() >= at_once;
    const auto mine = static_cast<std::uint32_t>(first) + group.rank() - (is_second ? at_once : 0);
    const bool is_rows = group.rank() < Parts * at_once && mine < end && !(part.is_row(part.row(mine)) && part.repeats(mine));
    const bool is_mine = is_rows && !is_second;
    row_at_hand at{};
    row_span span{0, static_cast<std::uint32_t>(part.layout.row_nbytes)};
    if constexpr (Parts == 2) {
      at = look_for_part(group, of, is_rows && from.error() == 0 && part.is_row(part.row(mine)), mine, at_once, span);
    } else if (is_mine && from.error() == 0 && part.is_row(part.row(mine))) {
      const open_entry entry = of.look();
      const cache::frames frames(cache::unpack(entry.frames));
      at = look_for_row(of, entry.view, frames, part.offset(part.row(mine)), part.layout.row_nbytes, touched,
                        {part.is_repeated(mine), left.may_be()});
    }
    const std::uint32_t filled = fill(group, of, at, mine, span);
    const std::uint32_t cut = copy(group, static_cast<std::uint32_t>(first), at, span, at_once);
    if (at.where == place::frame) cache::frames(of.frames()).unpin(at.frame);
    const std::uint32_t hits = group.ballot(at.where == place::frame) & ~filled, asked = group.ballot(at.where == place::host);
    const std::uint32_t wanted = group.ballot(is_mine) & ~asked;
    const bool is_looked_for = is_rows && (Parts == 1 || span.nbytes != 0);
    if (asked != 0) left.add(mine, asked);
    const std::uint32_t seen = of_rows(group.ballot(at.seen), at_once);
    std::uint32_t pulled = of_rows(group.ballot(at.where == place::host_memory), at_once) & ~of_rows(cut, at_once), lost = 0;
    std::uint32_t slow = of_rows(group.ballot(is_looked_for && at.where == place::nowhere) | cut, at_once);
    if (Parts == 2) pulled &= ~slow;
    std::uint32_t nhits = simt::count_lanes(Parts == 1 ? hits : hits & ~(slow | slow << at_once));
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
    // One look at the version for all that were pulled.
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
  // Brings in the pages that lanes have got frames for, of the rows `mine`. Returns whose. All lanes call.
  template <class Group>
  GPUFS_DEVICE std::uint32_t fill(Group group, const file_pages& of, row_at_hand& at, std::uint32_t mine,
                                  const row_span& span) const {
    const std::uint32_t fills = group.ballot(at.where == row_at_hand::place::fill);
    if (fills == 0) return 0;
    const bool is_mine = (fills >> group.rank() & 1) != 0;
    const std::uint64_t offset = is_mine ? part.offset(part.row(mine)) + span.begin : 0;
    const std::uint32_t in_page = static_cast<std::uint32_t>(offset) & (cache::frames(of.frames()).page_nbytes() - 1);
    at = simt::call_cold(&fill_pages_of_rows<Group>, group, of, at, in_page);
    return fills;
  }

  // The rows whose parts those lanes have.
  GPUFS_DEVICE static std::uint32_t of_rows(std::uint32_t lanes, std::uint32_t at_once) {
    return Parts == 1 ? lanes : (lanes | lanes >> at_once) & ((1u << at_once) - 1);
  }

  // Looks for the bytes of row `mine` that lie in its first page or, for the lanes from at_once on, in the one behind. span: these
  // bytes; none where the row has no second part, or host threads gather it. All lanes call.
  template <class Group>
  GPUFS_DEVICE row_at_hand look_for_part(Group group, const file_pages& of, bool looks, std::uint32_t mine, std::uint32_t at_once,
                                         row_span& span) const {
    const bool is_second = group.rank() >= at_once;
    const auto row_nbytes = static_cast<std::uint32_t>(part.layout.row_nbytes);
    row_at_hand at{};
    open_entry entry{};
    std::uint64_t offset = 0;
    std::uint32_t head = row_nbytes;
    bool is_in_file = false;
    if (looks) {
      entry = of.look();
      offset = part.offset(part.row(mine));
      const std::uint32_t page_nbytes = 1u << cache::unpack(entry.frames).page_shift;
      const std::uint32_t to_end = page_nbytes - (static_cast<std::uint32_t>(offset) & (page_nbytes - 1));
      head = row_nbytes < to_end ? row_nbytes : to_end;
      const auto file_nbytes = static_cast<std::uint64_t>(entry.view.nbytes);
      is_in_file = entry.view.error == 0 && row_nbytes <= file_nbytes && offset <= file_nbytes - row_nbytes;
    }
    const bool again = looks && part.is_repeated(mine), is_in_two = head != row_nbytes;
    span = is_second ? row_span{head, row_nbytes - head} : row_span{0, head};
    if (left.may_be()) {
      const bool asks =
          is_in_file && is_in_two && !is_second && simt::call_cold(&is_gathered_by_host, of, offset, row_nbytes, touched, again);
      const std::uint32_t asking = group.ballot(asks);
      if ((asking >> (group.rank() - (is_second ? at_once : 0)) & 1) != 0) {
        span.nbytes = 0;
        if (!is_second) at.where = row_at_hand::place::host;
        return at;
      }
    }
    if (!is_in_file || span.nbytes == 0) return at;
    return look_for_row(of, entry.view, cache::frames(cache::unpack(entry.frames)), offset + span.begin, span.nbytes, touched,
                        {again, !is_in_two && left.may_be()});
  }

  // Copies the parts that the lanes have at hand, of rows from `first` on: from the device's memory by groups that keep it busiest.
  // Which of them were cut from their mapping meanwhile. All lanes call.
  template <class Group>
  GPUFS_DEVICE std::uint32_t copy(Group group, std::uint32_t first, const row_at_hand& at, const row_span& span,
                                  std::uint32_t at_once) const {
    using place = row_at_hand::place;
    const std::uint32_t here = group.ballot(at.where == place::frame || at.where == place::device);
    copy_by(up_to_eight<Group>{}, group, first, at, span, at_once, here, false);
    const std::uint32_t mapped = group.ballot(at.where == place::host_memory);
    std::uint32_t cut = 0;
    if constexpr (!std::is_same_v<By, by_size>) {
      cut = copy_by(By{}, group, first, at, span, at_once, mapped, true);
    } else if (part.layout.row_nbytes <= most_by_eight) {
      cut = copy_by(up_to_eight<Group>{}, group, first, at, span, at_once, mapped, true);
    } else {
      cut = copy_by(group, group, first, at, span, at_once, mapped, true);
    }
    finish_reads(group);
    return cut;
  }
  template <class Part, class Group>
  GPUFS_DEVICE std::uint32_t copy_by(Part by, Group group, std::uint32_t first, const row_at_hand& at, const row_span& span,
                                     std::uint32_t at_once, std::uint32_t wanted, bool from_mapping) const {
    constexpr unsigned side_by_side = Group::lanes / Part::lanes;
    std::uint32_t cut = 0;
    for (unsigned next = 0; next < Parts * at_once && (wanted >> next) != 0; next += side_by_side) {
      const unsigned i = next + group.rank() / Part::lanes;
      const std::uint64_t address = group.shfl(at.address, i);
      std::uint32_t begin = 0, row = i;
      std::uint64_t nbytes = part.layout.row_nbytes;
      if constexpr (Parts == 2) {
        begin = group.shfl(span.begin, i);
        nbytes = group.shfl(span.nbytes, i);
        row = i >= at_once ? i - at_once : i;
      }
      if ((wanted >> i & 1) == 0) continue;
      const auto* const there = reinterpret_cast<const std::byte*>(address);
      std::byte* const here = to + part.in_memory(first + row) + begin;
      if (!from_mapping) {
        simt::copy_bytes(by, here, there, nbytes);
      } else if (simt::copy_from_host(by, here, there, nbytes) != 0) {
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
