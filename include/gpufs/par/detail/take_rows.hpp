// SPDX-License-Identifier: Apache-2.0
// How a group within a warp reads some of a batch's rows: its lanes look for a row each, and then its parts copy what is at hand, a
// row each; the rest the group reads row by row, when it has no page pinned. docs/design/batches.md, "What a gather does"
#pragma once
#include "gpufs/par/detail/row_at_hand.hpp"
#include "gpufs/par/detail/row_parts.hpp"
#include "gpufs/par/rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

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

  // Reads the rows at [first, first + looked) below `end` that repeat none: cached ones at once; of the others, if they are large,
  // few at a time, so that reads lie close together. Parts * looked: up to the group's lanes. All lanes call; `of` is of `from`.
  template <class Group>
  GPUFS_DEVICE void read_some(Group group, const file_pages& of, std::uint64_t first, std::uint64_t end,
                              std::uint32_t looked) const {
    // The lanes from `looked` on look for the second parts.
    const bool is_second = Parts == 2 && group.rank() >= looked;
    const auto mine = static_cast<std::uint32_t>(first) + group.rank() - (is_second ? looked : 0);
    const bool is_mine = group.rank() < Parts * looked && mine < end && !(part.is_row(part.row(mine)) && part.repeats(mine));
    const std::uint32_t at_once = missed_at_once(part.layout.row_nbytes, looked);
    rows_done done{};
    std::uint32_t wanted = group.ballot(is_mine);
    wanted &= ~read_cached(group, of, static_cast<std::uint32_t>(first), looked, wanted, done);
    while (wanted != 0) {
      const std::uint32_t now = at_once == looked ? wanted : wanted & of_lanes(lowest(of_rows(wanted, looked), at_once), looked);
      read_missed(group, of, static_cast<std::uint32_t>(first), looked, now, done);
      wanted &= ~now;
    }
    if (group.leader() && done.nrows != 0) {
      count(of.hits().bytes_read, done.nrows * part.layout.row_nbytes);
      if (done.nhits != 0) count(of.hits().hits, done.nhits);
    }
  }

 private:
  struct rows_done {
    std::uint32_t nrows, nhits;
  };
  // What copies are of: a frame that may get another page meanwhile; device memory that stays as it is; a mapping.
  enum class bytes_of { frame, pinned, mapping };

  // Reads those of these lanes' rows that are in the cache, in the frames of their pages' choice: without a pin, as the bytes are
  // the pages' if the frames still have them afterwards (frames::unpinned). Returns whose. All lanes call.
  template <class Group>
  GPUFS_DEVICE std::uint32_t read_cached(Group group, const file_pages& of, std::uint32_t first, std::uint32_t looked,
                                         std::uint32_t lanes, rows_done& done) const {
    const bool is_second = Parts == 2 && group.rank() >= looked;
    const std::uint32_t mine = first + group.rank() - (is_second ? looked : 0);
    bool there = (lanes >> group.rank() & 1) != 0 && from.error() == 0 && part.is_row(part.row(mine));
    row_at_hand at{};
    row_span span{};
    cache::frames::unpinned seen{};
    if (there) {
      const open_entry entry = of.look();
      const cache::frames frames(cache::unpack(entry.frames));
      const std::uint64_t offset = part.offset(part.row(mine));
      span = span_of(frames.page_nbytes(), offset, is_second);
      there = is_in_file(entry.view, offset) && (Parts == 2 || span.nbytes == part.layout.row_nbytes);
      if (there && span.nbytes != 0) {
        const cache::page_key key = cache::make_key(entry.view.cache_id, (offset + span.begin) >> frames.page_shift());
        at.frame = frames.preferred(key);
        seen = frames.look(at.frame);
        there = cache::frames::has(seen, key);
        const auto in_page = static_cast<std::uint32_t>(offset + span.begin) & (frames.page_nbytes() - 1);
        at.address = reinterpret_cast<std::uint64_t>(frames.data(at.frame) + in_page);
      }
    }
    simt::fence_loads();
    lanes = whole_rows(lanes, group.ballot(there), looked);
    const std::uint32_t copied = lanes & group.ballot(span.nbytes != 0);
    if (copied == 0) return 0;
    copy_by(up_to_eight<Group>{}, group, first, at, span, looked, copied, bytes_of::frame);
    simt::fence_loads();
    group.sync();  // the lanes that read a row, and the one that has looked for it
    if ((copied >> group.rank() & 1) != 0) {
      const cache::frames frames(of.frames());
      const std::uint64_t now = frames.state(at.frame).load(std::memory_order_relaxed);
      there = cache::frames::has_stayed(seen, now);
      if ((now & cache::frame_state::referenced) == 0 && there) [[unlikely]]
        frames.note_use(at.frame);
    }
    lanes = whole_rows(lanes, group.ballot(there), looked);
    done.nhits += simt::count_lanes(copied & lanes);
    done.nrows += simt::count_lanes(of_rows(lanes, looked));
    return lanes;
  }
  // Those of the lanes' rows all of whose parts are there.
  GPUFS_DEVICE static std::uint32_t whole_rows(std::uint32_t lanes, std::uint32_t there, std::uint32_t looked) {
    return lanes & ~of_lanes(of_rows(lanes & ~there, looked), looked);
  }

  // Of a row at `offset`, the bytes in its first page or, if is_second, those behind.
  GPUFS_DEVICE row_span span_of(std::uint32_t page_nbytes, std::uint64_t offset, bool is_second) const {
    const auto row_nbytes = static_cast<std::uint32_t>(part.layout.row_nbytes);
    const std::uint32_t to_end = page_nbytes - (static_cast<std::uint32_t>(offset) & (page_nbytes - 1));
    const std::uint32_t head = row_nbytes < to_end ? row_nbytes : to_end;
    return is_second ? row_span{head, row_nbytes - head} : row_span{0, head};
  }
  GPUFS_DEVICE bool is_in_file(const file_view& view, std::uint64_t offset) const {
    const auto file_nbytes = static_cast<std::uint64_t>(view.nbytes), row_nbytes = part.layout.row_nbytes;
    return view.error == 0 && row_nbytes <= file_nbytes && offset <= file_nbytes - row_nbytes;
  }

  // Reads the rows of these lanes wherever they are. All lanes call.
  template <class Group>
  GPUFS_DEVICE void read_missed(Group group, const file_pages& of, std::uint32_t first, std::uint32_t looked, std::uint32_t lanes,
                                rows_done& done) const {
    using place = row_at_hand::place;
    const bool is_second = Parts == 2 && group.rank() >= looked;
    const std::uint32_t mine = first + group.rank() - (is_second ? looked : 0);
    const bool looks = (lanes >> group.rank() & 1) != 0 && from.error() == 0 && part.is_row(part.row(mine));
    row_at_hand at{};
    row_span span{0, static_cast<std::uint32_t>(part.layout.row_nbytes)};
    if constexpr (Parts == 2) {
      at = look_for_part(group, of, looks, mine, looked, span);
    } else if (looks) {
      const open_entry entry = of.look();
      const cache::frames frames(cache::unpack(entry.frames));
      at = look_for_row(of, entry.view, frames, part.offset(part.row(mine)), part.layout.row_nbytes, touched,
                        {part.is_repeated(mine), left.may_be()});
    }
    const std::uint32_t rows = of_rows(lanes, looked);
    const std::uint32_t filled = fill(group, of, at, mine, span);
    const std::uint32_t cut = copy(group, first, at, span, looked);
    if (at.where == place::frame) cache::frames(of.frames()).unpin(at.frame);
    const std::uint32_t hits = group.ballot(at.where == place::frame) & ~filled, asked = group.ballot(at.where == place::host);
    const bool is_looked_for = (lanes >> group.rank() & 1) != 0 && (Parts == 1 || span.nbytes != 0);
    if (asked != 0) left.add(mine, asked);
    const std::uint32_t seen = of_rows(group.ballot(at.seen), looked);
    std::uint32_t pulled = of_rows(group.ballot(at.where == place::host_memory), looked) & ~of_rows(cut, looked), lost = 0;
    std::uint32_t slow = of_rows(group.ballot(is_looked_for && at.where == place::nowhere) | cut, looked);
    if (Parts == 2) pulled &= ~slow;
    done.nhits += simt::count_lanes(Parts == 1 ? hits : hits & ~of_lanes(slow, looked));
    for (; slow != 0; slow &= slow - 1) {
      const std::uint32_t bit = slow & (0 - slow), i = first + simt::count_lanes(bit - 1);
      const row_read got = read(group, of, i, (seen & bit) != 0);
      if (got.error != 0) {
        lose_row(group, part, of, from, to, i, got.error);
        lost |= bit;
      }
      if (got.pulled) pulled |= bit;
      done.nhits += got.nhits;
    }
    // One look at the version for all that were pulled.
    if (pulled != 0) {
      group.sync();
      const int error = by_leader(group, [&] { return simt::call_cold(&end_of_version, of); });
      if (error != 0) lost |= pulled;
      for (; error != 0 && pulled != 0; pulled &= pulled - 1) {
        lose_row(group, part, of, from, to, first + simt::count_lanes((pulled & (0 - pulled)) - 1), error);
      }
    }
    done.nrows += simt::count_lanes(rows & ~asked & ~lost);
  }

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

  // The rows whose parts those lanes have, and the lanes that have parts of those rows.
  GPUFS_DEVICE static std::uint32_t of_rows(std::uint32_t lanes, std::uint32_t looked) {
    return Parts == 1 ? lanes : (lanes | lanes >> looked) & ((1u << looked) - 1);
  }
  GPUFS_DEVICE static std::uint32_t of_lanes(std::uint32_t rows, std::uint32_t looked) {
    return Parts == 1 ? rows : rows | rows << looked;
  }
  // The first n of these bits.
  GPUFS_DEVICE static std::uint32_t lowest(std::uint32_t bits, std::uint32_t n) {
    std::uint32_t others = bits;
    for (; n != 0; --n) others &= others - 1;
    return bits & ~others;
  }

  // Looks for the bytes of row `mine` that lie in its first page or, for the lanes from `looked` on, in the one behind. span: these
  // bytes; none where the row has no second part, or host threads gather it. All lanes call.
  template <class Group>
  GPUFS_DEVICE row_at_hand look_for_part(Group group, const file_pages& of, bool looks, std::uint32_t mine, std::uint32_t looked,
                                         row_span& span) const {
    const bool is_second = group.rank() >= looked;
    row_at_hand at{};
    open_entry entry{};
    std::uint64_t offset = 0;
    bool in_file = false, is_in_two = false;
    span = span_of(~0u, 0, is_second);
    if (looks) {
      entry = of.look();
      offset = part.offset(part.row(mine));
      const std::uint32_t page_nbytes = 1u << cache::unpack(entry.frames).page_shift;
      span = span_of(page_nbytes, offset, is_second);
      in_file = is_in_file(entry.view, offset);
      is_in_two = span_of(page_nbytes, offset, true).nbytes != 0;
    }
    const bool again = looks && part.is_repeated(mine);
    if (left.may_be()) {
      const bool asks =
          in_file && is_in_two && !is_second &&
          simt::call_cold(&is_gathered_by_host, of, offset, static_cast<std::uint32_t>(part.layout.row_nbytes), touched, again);
      const std::uint32_t asking = group.ballot(asks);
      if ((asking >> (group.rank() - (is_second ? looked : 0)) & 1) != 0) {
        span.nbytes = 0;
        if (!is_second) at.where = row_at_hand::place::host;
        return at;
      }
    }
    if (!in_file || span.nbytes == 0) return at;
    return look_for_row(of, entry.view, cache::frames(cache::unpack(entry.frames)), offset + span.begin, span.nbytes, touched,
                        {again, !is_in_two && left.may_be()});
  }

  // Copies the parts that the lanes have at hand, of rows from `first` on: from the device's memory by groups that keep it busiest.
  // Which of them were cut from their mapping meanwhile. All lanes call.
  template <class Group>
  GPUFS_DEVICE std::uint32_t copy(Group group, std::uint32_t first, const row_at_hand& at, const row_span& span,
                                  std::uint32_t looked) const {
    using place = row_at_hand::place;
    const std::uint32_t here = group.ballot(at.where == place::frame || at.where == place::device);
    copy_by(up_to_eight<Group>{}, group, first, at, span, looked, here, bytes_of::pinned);
    const std::uint32_t mapped = group.ballot(at.where == place::host_memory);
    std::uint32_t cut = 0;
    if constexpr (!std::is_same_v<By, by_size>) {
      cut = copy_by(By{}, group, first, at, span, looked, mapped, bytes_of::mapping);
    } else if (part.layout.row_nbytes <= most_by_eight) {
      cut = copy_by(up_to_eight<Group>{}, group, first, at, span, looked, mapped, bytes_of::mapping);
    } else {
      cut = copy_by(group, group, first, at, span, looked, mapped, bytes_of::mapping);
    }
    finish_reads(group);
    return cut;
  }
  template <class Part, class Group>
  GPUFS_DEVICE std::uint32_t copy_by(Part by, Group group, std::uint32_t first, const row_at_hand& at, const row_span& span,
                                     std::uint32_t looked, std::uint32_t wanted, bytes_of what) const {
    constexpr unsigned side_by_side = Group::lanes / Part::lanes;
    static_assert(side_by_side < simt::warp_lanes);
    std::uint32_t cut = 0;
    for (std::uint32_t rest = wanted; rest != 0;) {
      const unsigned next = simt::lowest_lane(rest) / side_by_side * side_by_side, i = next + group.rank() / Part::lanes;
      rest &= ~(((1u << side_by_side) - 1) << next);
      const std::uint64_t address = group.shfl(at.address, i);
      std::uint32_t begin = 0, row = i;
      std::uint64_t nbytes = part.layout.row_nbytes;
      if constexpr (Parts == 2) {
        begin = group.shfl(span.begin, i);
        nbytes = group.shfl(span.nbytes, i);
        row = i >= looked ? i - looked : i;
      }
      if ((wanted >> i & 1) == 0) continue;
      const auto* const there = reinterpret_cast<const std::byte*>(address);
      std::byte* const here = to + part.in_memory(first + row) + begin;
      if (what == bytes_of::frame) {
        simt::copy_changing(by, here, there, nbytes);
      } else if (what == bytes_of::pinned) {
        simt::copy_bytes(by, here, there, nbytes);
      } else if (simt::copy_from_host(by, here, there, nbytes) != 0) {
        cut |= 1u << i;
      }
    }
    if (!group.any(cut != 0)) return 0;
    for (unsigned distance = Group::lanes / 2; distance != 0; distance /= 2) cut |= group.shfl_xor(cut, distance);
    return cut;
  }

 protected:
  template <class Group>
  GPUFS_DEVICE row_read read(Group group, const file_pages& of, std::uint32_t i, bool seen) const {
    if (from.error() != 0) return {from.error(), false, 0};
    const std::uint64_t row = part.row(i);
    if (!part.is_row(row)) return {-EDOM, false, 0};
    return read_row(group, of, to + part.in_memory(i), part.layout.row_nbytes, part.offset(row), touched,
                    seen || part.is_repeated(i));
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
