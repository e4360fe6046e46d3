// SPDX-License-Identifier: Apache-2.0
// One written page on its way back: to the mapping of its file, or to the host. docs/design/writing.md
#pragma once
#include "gpufs/cache/detail/dirty.hpp"
#include "gpufs/file/file.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A slot whose pages are to be written back, and the file behind it.
struct written_file {
  std::uint32_t slot, handle;
};
GPUFS_DEVICE written_file written(const file_view& view) { return {view.slot, view.handle}; }

// Keeps a file's first error until a call returns it.
GPUFS_DEVICE void keep_error(file_slot& slot, int error) {
  std::int32_t none = 0;
  simt::atomic_ref<std::int32_t>(slot.write_error).compare_exchange(none, error, std::memory_order_relaxed);
}

GPUFS_DEVICE void raise_to(std::uint64_t& word, std::uint64_t value) {
  simt::atomic_ref<std::uint64_t> ref(word);
  std::uint64_t seen = ref.load(std::memory_order_relaxed);
  while (seen < value && !ref.compare_exchange(seen, value, std::memory_order_release)) {
  }
}

// After bytes up to `end` were stored to the mapping of a file; before the release by which others learn of it.
GPUFS_DEVICE void note_written_in_place(file_slot& slot, std::uint64_t end) {
  raise_to(slot.in_place_nbytes, end);
  // Meets sync_on_host's acquire: a lane that takes this 1 away sees our end, and the ends of all lanes that set it before.
  simt::atomic_ref<std::uint32_t>(slot.unsynced).fetch_or(1, std::memory_order_release);
}

// Of one page: an error of writing it, or how many bytes were written.
GPUFS_DEVICE void note_written(const file_mount& mount, file_slot& slot, int error, std::uint64_t nbytes) {
  if (error != 0) {
    keep_error(slot, error);
    count(mount.words->write_errors, 1);
  } else if (nbytes != 0) {
    count(mount.words->write_backs, 1);
    count(mount.words->bytes_written_back, nbytes);
  }
}

struct page_under_way {
  transport::ticket ticket;
  cache::frame_index frame;
  std::uint32_t nbytes;
};
struct started_page {
  page_under_way page;
  std::byte* store_at;  // in the file's mapping; null: it goes to the host, by the page's ticket
  int error;
  bool found;
};

// Where bytes of a page of a file that is open for writing go back to: its mapping, or the host. It changes from the one to the
// other only while no write is under way. One lane calls.
GPUFS_DEVICE source::piece find_to_write(const file_mount& mount, std::uint32_t slot, std::uint64_t offset, std::uint32_t nbytes) {
  const file_table files(mount);
  file_slot& file = files.slot(slot);
  const std::uint32_t word = simt::atomic_ref<std::uint32_t>(file.word).load(std::memory_order_relaxed);
  const source_kind kind = file_slots::kind_of(word & ~slot_apart);
  return source::find_to_write(kind, {0, 0, nullptr, &file.bytes, 0}, offset, nbytes);
}

// Where in the file a frame's page begins.
GPUFS_DEVICE std::uint64_t page_begin_of(const file_mount& mount, cache::frame_index f) {
  const cache::frames frames(mount.cache);
  return cache::page_number_of(frames.load_key(f)) << frames.page_shift();
}

// Which of its slot's lists the frame's page belongs to. The caller has the page pinned, or it is dirty.
GPUFS_DEVICE std::uint32_t list_of(const file_mount& mount, cache::frame_index f) {
  const cache::frames frames(mount.cache);
  return list_of_page(cache::page_number_of(frames.load_key(f)), frames.page_shift());
}

// Takes a page out of the list, whose lock we hold, to go with the n pages of the batch that are under way. One lane calls. It
// takes no page that is in the batch already and was written again: the host might do the two writes in any order. It waits for a
// request slot only for the first page, because other groups might wait for the pages under way.
GPUFS_DEVICE started_page take_dirty(const file_mount& mount, const written_file& file, cache::dirty_list& list,
                                     const page_under_way* batch, std::uint32_t n) {
  started_page got{};
  const cache::dirty_pages pages(mount.cache);
  const auto left = pages.leave(list, [&](cache::frame_index f) {
    for (std::uint32_t i = 0; i < n; ++i) {
      if (batch[i].frame == f) return true;
    }
    return false;
  });
  if (!left.found) return got;
  got.page.frame = left.frame;
  const source::piece to =
      find_to_write(mount, file.slot, page_begin_of(mount, left.frame), cache::frames(mount.cache).page_nbytes());
  if (to.where == source::place::host_memory) {
    got.store_at = reinterpret_cast<std::byte*>(to.address);
  } else {
    const simt::deadline until(n == 0 ? mount.io_timeout_ns : 0);
    got.page.ticket = mount_requests(mount).take_to_write(ring_hint(), until);
    if (got.page.ticket.index == transport::no_slot) {
      pages.put_back(list, left.frame);
      if (n != 0) return got;
      count(mount.words->io_timeouts, 1);
      got.error = -ETIMEDOUT;
      return got;
    }
  }
  pages.begin_write_back(got.page.frame);
  got.found = true;
  return got;
}

// The twin of a page that is being written back, if a group has it mapped for writing. The file gets the twin's bytes, not the
// page's: else a byte that is changed meanwhile, and later changed back, would equal its twin, look clean, and never be written.
struct held_twin {
  std::byte* data;  // or null
  bool locked;
};
// All lanes call, with the list's lock held.
template <class Group>
GPUFS_DEVICE held_twin hold_twin(Group group, const file_mount& mount, const written_file& file, cache::frame_index frame) {
  return by_leader(group, [&]() -> held_twin {
    held_twin mine{};
    // Meets begin_twins, which takes each list's lock after it has set this.
    if (simt::atomic_ref<std::uint32_t>(file_table(mount).slot(file.slot).twinned).load(std::memory_order_relaxed) == 0)
      return mine;
    cache::twin_state& state = cache::dirty_pages(mount.cache).twin(frame);
    mine.locked = cache::dirty_pages::lock_twin(state, simt::deadline(2 * mount.io_timeout_ns));  // else its holder has died
    if (mine.locked && cache::dirty_pages::is_mapped(state)) {
      mine.data = cache::frames(mount.cache).data(cache::frame_index{state.twin});
    }
    return mine;
  });
}
// One lane calls, when all have read the twin.
GPUFS_DEVICE void release_twin(const file_mount& mount, cache::frame_index frame, const held_twin& twin) {
  if (twin.locked) cache::dirty_pages::unlock_twin(cache::dirty_pages(mount.cache).twin(frame));
}

// Stores the written bytes of a page to the mapping of its file, at `to`. The list's lock keeps truncations away. All
// lanes call. Sync and close make the host see the bytes: the release of their request is cumulative over the list's
// unlock.
template <class Group>
GPUFS_DEVICE void store_page(Group group, const file_mount& mount, const written_file& file, cache::frame_index frame,
                             std::byte* to) {
  file_slot& slot = file_table(mount).slot(file.slot);
  const cache::frames frames(mount.cache);
  const cache::dirty_pages pages(mount.cache);
  const held_twin twin = hold_twin(group, mount, file, frame);
  const std::byte* from = twin.data != nullptr ? twin.data : frames.data(frame);
  const auto part = pages.look(group, frame);
  int error = 0;
  if (part.masked()) {
    pages.take(group, frame, part, [&](std::uint32_t w, std::uint32_t bits) {
      // This lane reads the bytes of its bits: meets mark's release.
      if (twin.data != nullptr) {
        pages.keep_twin(frame, twin.data, w, bits);
      } else {
        simt::fence(std::memory_order_acquire, cache::cache_layout::scope);
      }
      cache::dirty_pages::each_run(bits, [&](unsigned first, unsigned n) {
        const int failed = simt::copy_to_host(simt::this_thread(), to + w * 32 + first, from + w * 32 + first, n);
        if (failed != 0) error = failed;
      });
    });
    error = group.ballot(error != 0) != 0 ? -EIO : 0;
  } else if (part.nbytes != 0) {
    pages.take(group, frame, part, [&](std::uint32_t w, std::uint32_t bits) {
      if (twin.data != nullptr) pages.keep_twin(frame, twin.data, w, bits);
    });
    error = simt::copy_to_host(group, to + part.begin, from + part.begin, part.nbytes);
  }
  group.sync();
  if (!group.leader()) return;
  release_twin(mount, frame, twin);
  note_written_in_place(slot, page_begin_of(mount, frame) + part.begin + part.nbytes);
  note_written(mount, slot, error, part.nset);
  // Its release: a group that reads the page in again from the mapping sees what we stored.
  cache::frames::unpin_after_writes(frames.state_word(frame), 1);
  simt::atomic_ref<std::uint64_t>(mount.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
}

// Writes a request that the host write the page's bytes, and the bytes; the caller publishes it. All lanes call: how many bytes.
template <class Group>
GPUFS_DEVICE std::uint32_t write_request(Group group, const file_mount& mount, const written_file& file,
                                         const page_under_way& page) {
  const mount_requests rings(mount);
  const cache::frames frames(mount.cache);
  const cache::dirty_pages pages(mount.cache);
  auto* mask = reinterpret_cast<std::uint32_t*>(rings.behind_payload(page.ticket));
  const held_twin twin = hold_twin(group, mount, file, page.frame);
  const std::byte* from = twin.data != nullptr ? twin.data : frames.data(page.frame);
  const auto part = pages.look(group, page.frame);
  const bool masked = part.masked();
  pages.take(group, page.frame, part, [&](std::uint32_t w, std::uint32_t bits) {
    if (masked) mask[w] = bits;
    if (twin.data != nullptr) pages.keep_twin(page.frame, twin.data, w, bits);
  });
  simt::copy_changing(group, rings.payload(page.ticket) + part.begin, from + part.begin, part.nbytes);
  if (group.leader()) {
    release_twin(mount, page.frame, twin);
    const std::uint64_t at = page_begin_of(mount, page.frame) + part.begin;
    raise_to(file_table(mount).slot(file.slot).bytes.host_nbytes, at + part.nbytes);  // before the bytes can be in the file
    transport::request ask{};
    ask.op = transport::opcode::write;
    ask.handle = file.handle;
    ask.offset = static_cast<std::int64_t>(at);
    ask.skip = part.begin;
    ask.nbytes = part.nbytes;
    ask.flags = masked ? transport::write_masked : 0;
    ask.token = late_answers::token_of(page.frame, file.slot * lists_per_slot + list_of(mount, page.frame));
    rings.write(page.ticket, ask);
  }
  return part.nbytes;
}

// Sends the requests of a batch at once, so that the host joins pages that are neighbours. One lane calls.
GPUFS_DEVICE void send_requests(const file_mount& mount, const page_under_way* batch, std::uint32_t n) {
  // Meets the host's acquire of `sequence`: the fields, and the bytes of all lanes, which met in the copies.
  simt::fence(std::memory_order_release, simt::scope::system);
  for (std::uint32_t i = 0; i < n; ++i) mount_requests(mount).publish_after_fence(batch[i].ticket);
}

// Waits for the host's answer. One lane calls. False: no answer came in time. Then the page stays pinned and its list lost until a
// lane finds the late answer (transport::requests::take): the host may still write the bytes that it was given, and nobody must
// write newer bytes before that.
GPUFS_DEVICE bool finish_page(const file_mount& mount, const written_file& file, cache::dirty_list& list,
                              const page_under_way& page, const simt::deadline& until) {
  const mount_requests rings(mount);
  transport::reply answer;
  if (!rings.is_answered(page.ticket, answer, until)) {
    count(mount.words->io_timeouts, 1);
    keep_error(file_table(mount).slot(file.slot), -ETIMEDOUT);
    cache::dirty_pages::begin_late(list);
    rings.abandon(page.ticket);
    return false;
  }
  rings.give_back(page.ticket);
  const int error = answer.result < 0 ? static_cast<int>(answer.result) : 0;
  note_written(mount, file_table(mount).slot(file.slot), error, static_cast<std::uint64_t>(answer.result));
  cache::frames::unpin_after_writes(cache::frames(mount.cache).state_word(page.frame), 1);  // of its mask
  simt::atomic_ref<std::uint64_t>(mount.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
