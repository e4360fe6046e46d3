// Bringing written pages back to their files: docs/writing.md. By groups of lanes of one warp; the warps of a block take different
// lists.
#pragma once
#include "gpufs/cache/dirty.hpp"
#include "gpufs/file/file.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A slot whose pages are to be written back, and the file behind it.
struct written_file {
  std::uint32_t slot, handle;
};
GPUFS_DEVICE written_file written(const file_view& view) { return {view.slot, view.handle}; }

inline constexpr std::uint32_t write_batch = 8;  // pages that a group has under way at once

// Keeps the first error of a file until somebody is told.
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

struct page_under_way {
  service::requests::ticket ticket;
  cache::frame_index frame;
  std::uint32_t nbytes;
};
struct started_page {
  page_under_way page;
  int error;
  bool found;
};

// Takes a page out of the list, whose lock we hold, to go with the n of the batch that are under way. One lane calls. Not one that
// is among these, having been written anew: the host might do the two in any order. Waits for a request slot only for the first, as
// others might wait for those under way.
GPUFS_DEVICE started_page take_dirty(const mount_layout& mount, cache::dirty_list& list, const page_under_way* batch,
                                     std::uint32_t n) {
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
  got.page.ticket = service::requests(mount).take(ring_hint(), simt::deadline(n == 0 ? mount.io_timeout_ns : 0));
  if (got.page.ticket.index == service::requests::no_slot) {
    pages.put_back(list, left.frame);
    got.error = n == 0 ? -ETIMEDOUT : 0;
    return got;
  }
  pages.begin_write_back(got.page.frame);
  got.found = true;
  return got;
}

// Sends the written bytes of a page to the host. All lanes call: how many.
template <class Group>
GPUFS_DEVICE std::uint32_t send_page(Group group, const mount_layout& mount, const written_file& file, const page_under_way& page) {
  const service::requests rings(mount);
  const cache::frames frames(mount.cache);
  auto* mask = reinterpret_cast<std::uint32_t*>(rings.behind_payload(page.ticket));
  const auto part = cache::dirty_pages(mount.cache).take(group, page.frame, mask);
  simt::copy_changing(group, rings.payload(page.ticket) + part.begin, frames.data(page.frame) + part.begin, part.nbytes);
  if (group.leader()) {
    const std::uint64_t number = cache::page_number_of(frames.load_key(page.frame));
    const std::uint64_t at = (number << mount.cache.frames.page_shift) + part.begin;
    raise_to(file_table(mount).slot(file.slot).host_nbytes, at + part.nbytes);  // before the bytes can be in the file
    service::request ask{};
    ask.op = service::opcode::write;
    ask.handle = file.handle;
    ask.offset = static_cast<std::int64_t>(at);
    ask.skip = part.begin;
    ask.nbytes = part.nbytes;
    ask.flags = part.masked ? service::write_masked : 0;
    rings.send(page.ticket, ask);  // its release: the bytes of all lanes, which met in the copy
  }
  return part.nbytes;
}

// Waits for the host's answer. One lane calls. False when there was none in time: then the page stays pinned, since the host may
// yet write what it was given, and nobody must write newer bytes before that.
GPUFS_DEVICE bool finish_page(const mount_layout& mount, const written_file& file, const page_under_way& page,
                              const simt::deadline& until) {
  const service::requests rings(mount);
  service::reply answer;
  int error = rings.wait(page.ticket, answer, until);
  if (error == 0) {
    rings.give_back(page.ticket);
    error = answer.result < 0 ? static_cast<int>(answer.result) : 0;
  } else {
    count(mount.words->io_timeouts, 1);
    keep_error(file_table(mount).slot(file.slot), error);
    return false;
  }
  if (error != 0) {
    keep_error(file_table(mount).slot(file.slot), error);
    count(mount.words->write_errors, 1);
  } else if (page.nbytes != 0) {
    count(mount.words->write_backs, 1);
    count(mount.words->bytes_written_back, static_cast<std::uint64_t>(answer.result));
  }
  cache::frames(mount.cache).unpin(page.frame);
  simt::atomic_ref<std::uint64_t>(mount.words->dirty_pages).fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// Writes back up to `most` pages of a list, if its lock is free within lock_ns. All lanes of a group within a warp call. 0, or
// -ETIMEDOUT when there was no lock or no request slot in time; what the host says goes to the slot's write_error.
template <class Group>
GPUFS_DEVICE_COLD int write_back_list(Group group, const mount_layout* mount, written_file file, std::uint32_t index,
                                      std::uint32_t most, std::uint64_t lock_ns) {
  cache::dirty_list& list = file_table(*mount).list(file.slot, index);
  const bool locked = by_leader(group, [&] {
    return cache::dirty_pages::try_lock(list) || (lock_ns != 0 && cache::dirty_pages::lock(list, simt::deadline(lock_ns)));
  });
  if (!locked) return lock_ns == 0 ? 0 : -ETIMEDOUT;
  int error = 0;
  for (std::uint32_t done = 0; done < most && error == 0;) {
    page_under_way batch[write_batch];
    std::uint32_t n = 0;
    while (n < write_batch && done < most) {
      const started_page next = by_leader(group, [&] { return take_dirty(*mount, list, batch, n); });
      if (!next.found) {
        error = next.error;
        break;
      }
      batch[n] = next.page;
      batch[n].nbytes = send_page(group, *mount, file, next.page);
      ++n;
      ++done;
    }
    if (n == 0) break;
    const bool answered = by_leader(group, [&] {
      const simt::deadline until(mount->io_timeout_ns);  // of all, as all were sent before
      bool all = true;
      for (std::uint32_t i = 0; i < n; ++i) all &= finish_page(*mount, file, batch[i], until);
      return all;
    });
    if (!answered) {
      if (group.leader()) cache::dirty_pages::lose(list);
      return -ETIMEDOUT;
    }
  }
  if (group.leader()) cache::dirty_pages::unlock(list);
  return error;
}

// Writes back the lists first, first + step, ...: when it returns 0, all that was written before it was called is in the host's
// page cache, or its loss noted in the slot. -ETIMEDOUT: a list was lost, now or before. Those lost before do not keep the others
// from being written. All lanes call.
template <class Group>
GPUFS_DEVICE int write_back_lists(Group group, const mount_layout* mount, const written_file& file, std::uint32_t first,
                                  std::uint32_t step) {
  enum class list_is { idle, busy, lost };
  int lost = 0, error = 0;
  for (std::uint32_t i = first; i < lists_per_slot && error == 0; i += step) {
    const auto now = by_leader(group, [&] {
      cache::dirty_list& list = file_table(*mount).list(file.slot, i);
      if (cache::dirty_pages::is_lost(list)) return list_is::lost;
      return cache::dirty_pages::is_idle(list) ? list_is::idle : list_is::busy;
    });
    if (now == list_is::lost) lost = -ETIMEDOUT;
    if (now != list_is::busy) continue;
    error = simt::call_cold(&write_back_list<Group>, group, mount, file, i, ~0u, 2 * mount->io_timeout_ns);
  }
  return error != 0 ? error : lost;
}
template <class Group>
GPUFS_DEVICE int write_back_all(Group group, const mount_layout* mount, const written_file& file) {
  return write_back_lists(group, mount, file, 0, 1);
}
GPUFS_DEVICE int write_back_all(simt::block group, const mount_layout* mount, const written_file& file) {
  group.sync();  // what other warps have written is listed
  const int error = write_back_lists(group.warp(), mount, file, simt::warp_rank(), group.nwarps());
  return group.any(error != 0) ? -ETIMEDOUT : 0;
}

// Writes all of the file back, and tells what went wrong with it since the last time somebody asked. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD int flush(Group group, const mount_layout* mount, written_file file) {
  const int error = write_back_all(group, mount, file);
  return by_leader(group, [&]() -> int {
    const int kept =
        simt::atomic_ref<std::int32_t>(file_table(*mount).slot(file.slot).write_error).exchange(0, std::memory_order_relaxed);
    return kept != 0 ? kept : error;
  });
}

// After a group has made pages dirty: while there are too many in the mount, writes some of this file back, or waits for those who
// do. Whoever leaves pages in a list whose lock is held must not trust the holder to find them: it may just have looked, and then
// nobody would clean them while all wait for a clean frame. What is out of the lists others are writing back. Gives up after
// the time in which a holder must have ended. All lanes of a group within a warp call.
template <class Group>
GPUFS_DEVICE void limit_dirty(Group group, const mount_layout* mount, const written_file& file, std::uint32_t start) {
  const auto too_many = [&] {
    return by_leader(group, [&] {
      return simt::atomic_ref<std::uint64_t>(mount->words->dirty_pages).load(std::memory_order_relaxed) > mount->dirty_limit;
    });
  };
  if (!too_many()) return;
  const simt::deadline until(2 * mount->io_timeout_ns);
  simt::backoff pause;
  for (bool listed = true; listed;) {
    listed = false;
    for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
      const std::uint32_t index = (start + i) % lists_per_slot;
      const bool idle = by_leader(group, [&] {
        cache::dirty_list& list = file_table(*mount).list(file.slot, index);
        return cache::dirty_pages::is_empty(list) || cache::dirty_pages::is_lost(list);
      });
      if (idle) continue;
      const int error = simt::call_cold(&write_back_list<Group>, group, mount, file, index, write_batch, 0);
      if (error != 0 || !too_many()) return;
      listed = true;
    }
    if (by_leader(group, [&] { return listed && until.expired(); })) return;
    if (listed) pause();
  }
}

GPUFS_DEVICE void limit_dirty(simt::block group, const mount_layout* mount, const written_file& file, std::uint32_t start) {
  if (simt::warp_rank() == 0) limit_dirty(group.warp(), mount, file, start);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
