// SPDX-License-Identifier: Apache-2.0
// Reading one row of a batch, whose neighbours in the file other groups read at that moment: a row that is in the cache comes from
// there; one that is not goes from a registered mapping straight to where it is wanted, and its page gets a frame only where that
// costs no other page its own, or where the page is wanted again (docs/design/batches.md).
#pragma once
#include "gpufs/file/file.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Which pages batches have read past the cache: a word for each of as many as the cache has frames, by hash. It forgets a page when
// another one takes its word, so it knows those of about as many reads as the cache has frames.
class touched_pages {
 public:
  GPUFS_HOST_DEVICE touched_pages(std::uint32_t* words, std::uint32_t mask, std::uint32_t batch)
      : words_(words), mask_(mask), batch_(batch & 0xff) {}

  // Notes that this batch reads the page. Whether an earlier one did: rows of this one that share a page prove no second use of it.
  // One lane calls.
  GPUFS_DEVICE bool note(cache::page_key key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    const std::uint32_t tag = static_cast<std::uint32_t>(hash >> 24) << 8;
    const simt::atomic_ref<std::uint32_t> word(words_[hash & mask_]);
    const std::uint32_t before = word.load(std::memory_order_relaxed);
    if (before != (tag | batch_)) word.store(tag | batch_, std::memory_order_relaxed);
    return before != 0 && (before & ~0xffu) == tag && (before & 0xff) != batch_;
  }

 private:
  std::uint32_t* words_;
  std::uint32_t mask_;   // how many words there are, a power of two, - 1
  std::uint32_t batch_;  // 1 to 255, by turns
};

// A part of a row that lies in one page, and where it goes.
struct row_part {
  std::byte* to;
  std::uint64_t offset;  // in the file
  std::uint32_t nbytes;
};

// How the rest of a page is had that is not in the frame of its choice.
struct missed_row {
  enum class way : std::uint32_t { past_cache, cached, by_page };
  file_view view;
  way what;
  cache::frame_index frame;  // of cached: pinned
};

// One lane calls. `again`: the batch has the row more than once.
GPUFS_DEVICE_COLD inline missed_row find_missed_row(const file_pages* of, const row_part* part, touched_pages touched, bool again) {
  using way = missed_row::way;
  missed_row found{of->view(), way::by_page, {}};
  const file_view& view = found.view;
  // What may be newer in the cache than in the file, and what host threads read by pages anyway.
  if (view.error != 0 || !has_version(view.kind)) return found;
  const file_mount& mount = *of->mount();
  const cache::page_cache<> pages(*of->cache());
  const cache::page_key key = cache::make_key(view.cache_id, part->offset >> pages.pages().page_shift());
  if (pages.pin_cached(key, found.frame)) {
    const bool there = (pages.pages().state(found.frame).load(std::memory_order_acquire) & cache::frame_state::filling) == 0;
    if (there) {
      found.what = way::cached;
      return found;
    }
    pages.unpin(found.frame);
  } else {
    const bool seen = touched.note(key);
    const std::uint64_t choice = pages.pages().state(pages.pages().preferred(key)).load(std::memory_order_relaxed);
    if (seen || again || (choice & cache::frame_state::free) != 0) return found;
  }
  if (find_piece(mount, view, part->offset, part->nbytes).where != source::place::host) found.what = way::past_cache;
  return found;
}

// All lanes call. 0 or a negative errno.
template <class Group>
GPUFS_DEVICE_COLD int read_missed_row(Group group, file_pages of, row_part part, touched_pages touched, bool again) {
  using way = missed_row::way;
  const missed_row found = by_leader(group, [&] { return find_missed_row(&of, &part, touched, again); });
  if (found.view.error != 0) return found.view.error;
  if (found.what == way::past_cache) return fill_part(group, *of.mount(), found.view, part.offset, part.to, part.nbytes);
  if (found.what == way::cached) {
    const cache::frames frames(of.frames());
    const std::uint32_t in_page = static_cast<std::uint32_t>(part.offset) & (frames.page_nbytes() - 1);
    simt::copy_bytes(group, part.to, frames.data(found.frame) + in_page, part.nbytes);
    finish_reads(group);
    if (group.leader()) {
      simt::count_one(group, of.hits().hits);
      frames.unpin(found.frame);
    }
    return 0;
  }
  const open_entry entry = by_leader(group, [&] { return of.look(); });
  if (entry.view.error != 0) return entry.view.error;
  const std::uint64_t page = part.offset >> cache::unpack(entry.frames).page_shift;
  return read_pages_of(group, of, entry, {part.to, part.offset, part.offset + part.nbytes}, page, page, 1).error;
}

// Reads a row of nbytes at `offset` to `to`. All lanes call. 0 or a negative errno; -ENXIO: the file has no such bytes.
template <class Group>
GPUFS_DEVICE int read_row(Group group, const file_pages& of, std::byte* to, std::uint64_t nbytes, std::uint64_t offset,
                          const touched_pages& touched, bool again) {
  const open_entry entry = by_leader(group, [&] { return of.look(); });
  const file_view& view = entry.view;
  if (view.error != 0) return view.error;
  const auto file_nbytes = static_cast<std::uint64_t>(view.nbytes);
  if (nbytes > file_nbytes || offset > file_nbytes - nbytes) return -ENXIO;
  const cache::frames frames(cache::unpack(entry.frames));
  const std::uint32_t page_nbytes = frames.page_nbytes();
  for (std::uint64_t done = 0; done < nbytes;) {
    const std::uint64_t at = offset + done;
    const std::uint32_t in_page = static_cast<std::uint32_t>(at) & (page_nbytes - 1);
    const std::uint64_t left = nbytes - done;
    const std::uint32_t here = left < page_nbytes - in_page ? static_cast<std::uint32_t>(left) : page_nbytes - in_page;
    struct look_up {
      cache::frame_index frame;
      bool hit;
    };
    const auto got = by_leader(group, [&] {
      look_up found{};
      found.hit =
          cache::page_cache<>::pin_in_choice(frames, cache::make_key(view.cache_id, at >> frames.page_shift()), found.frame);
      if (found.hit) simt::count_one(group, of.hits().hits);
      return found;
    });
    if (got.hit) [[likely]] {
      simt::copy_bytes(group, to + done, frames.data(got.frame) + in_page, here);
      finish_reads(group);
      if (group.leader()) frames.unpin(got.frame);
    } else {
      const int error = simt::call_cold(&read_missed_row<Group>, group, of, row_part{to + done, at, here}, touched, again);
      if (error != 0) return error;
    }
    done += here;
  }
  if (group.leader()) count(of.hits().bytes_read, nbytes);
  return 0;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
