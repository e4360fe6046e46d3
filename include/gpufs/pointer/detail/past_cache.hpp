// SPDX-License-Identifier: Apache-2.0
// Reads through pointers that get no frame: of the few bytes that are wanted, past the cache, from where a fill would bring the
// page. Slower than a hit by the bus's latency, and the host's where the file is staged; nothing is kept.
#pragma once
#include "gpufs/file/file.hpp"
#include "gpufs/pointer/detail/mapping.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// The handler of a pointer without one: pages are as the file has them.
struct no_handler {
  GPUFS_DEVICE static std::uint32_t form() { return cache::file_form; }
  template <class Group>
  GPUFS_DEVICE static int filled(Group, std::byte*, std::uint64_t, std::uint32_t) {
    return 0;
  }
};

namespace detail {

// Whether the error says that a page could not be pinned, although it can be read: no frame, or too many pins.
GPUFS_DEVICE bool is_unpinnable(int error) { return error == -ENOMEM || error == -EMFILE; }

// Pins a page that is in the cache, with these sectors of it at least. The view is of the file whose page it is; a page in another
// form is never there in part. All lanes call. what: as acquire_cached, but not part.
template <class Group>
GPUFS_DEVICE cache::page_cache<>::acquired pin_cached_part(Group group, const mount_layout& mount, const file_view& view,
                                                           cache::page_key key, std::uint32_t wanted) {
  using pages_type = cache::page_cache<>;
  auto got =
      by_leader(group, [&] { return simt::call_cold(&pages_type::acquire_cached, &mount.cache, key, 2 * mount.io_timeout_ns); });
  if (got.what != pages_type::role::part) return got;
  const int error = simt::call_cold(&bring_sectors<Group>, group, &mount, view, got.frame, wanted, 0).error;
  if (error != 0 && group.leader()) cache::frames(mount.cache).unpin(got.frame);
  return {got.frame, error == 0 ? pages_type::role::hit : pages_type::role::error, error};
}

// Fills a page in another form, of a file that is open for writing. If the file's own page is in the cache, its bytes are used,
// because they may not be written back yet; else the file's bytes. Asks for no frame, because others may wait for this page. All
// lanes call; `view` is the file's. 0 or a negative errno.
template <class Group>
GPUFS_DEVICE_COLD int fill_from_cache(Group group, const mount_layout* mount, file_view view, std::uint64_t page_number,
                                      std::byte* frame) {
  using pages_type = cache::page_cache<>;
  const cache::frames frames(mount->cache);
  const auto got =
      pin_cached_part(group, *mount, view, cache::make_key(view.cache_id, page_number), cache::sectors::all(frames.page_shift()));
  if (got.what == pages_type::role::error) return got.error != 0 ? got.error : fill(group, *mount, view, page_number, frame);
  simt::copy_changing(group, frame, frames.data(got.frame), frames.page_nbytes());
  group.sync();
  if (group.leader()) frames.unpin(got.frame);
  return 0;
}

// A part of a page: nbytes at `offset` of the file.
struct page_part {
  std::uint64_t offset;
  std::uint32_t nbytes;
};

// Copies a part of a page that is in the cache: 1, or 0: it is not there, or a negative errno. One lane calls, for itself.
GPUFS_DEVICE int read_cached(const mount_layout& mount, const file_view& view, std::uint32_t cache_id, const page_part& part,
                             std::byte* bytes) {
  const cache::frames frames(mount.cache);
  const cache::page_key key = cache::make_key(cache_id, part.offset >> frames.page_shift());
  const std::uint32_t in_page = static_cast<std::uint32_t>(part.offset) & (frames.page_nbytes() - 1);
  const auto got = pin_cached_part(simt::this_thread(), mount, view, key,
                                   cache::sectors::of_bytes(frames.page_shift(), in_page, in_page + part.nbytes));
  if (got.what == decltype(got.what)::error) return got.error;
  simt::copy_bytes(simt::this_thread(), bytes, frames.data(got.frame) + in_page, part.nbytes);
  frames.unpin(got.frame);
  return 1;
}

// Reads a part of a page without a handler. 0 or a negative errno. One lane calls, for itself. is_cached: as read_past_cache.
inline GPUFS_DEVICE_COLD int read_part(const mount_layout* mount, file_view view, std::uint32_t id, bool is_cached, page_part part,
                                       std::byte* bytes) {
  // Changed bytes of a page in the cache are nowhere else. A private page is a copy of the file's page.
  const bool may_change = !has_version(view.kind), is_private = id != view.cache_id;
  if (is_cached || may_change || is_private) {
    if (const int got = read_cached(*mount, view, id, part, bytes); got != 0) return got < 0 ? got : 0;
  }
  if (may_change && is_private) {
    if (const int got = read_cached(*mount, view, view.cache_id, part, bytes); got != 0) return got < 0 ? got : 0;
  }
  return fill_part(simt::this_thread(), *mount, view, part.offset, bytes, part.nbytes);
}

// A lane's hold of the mount's spare page. It ends with this object at the latest: the CPU machine may stop the lane in the
// handler, or while it waits for the host, and then an exception unwinds it. Otherwise give_back() ends it: a lane may be stopped
// in that call, too, and in a destructor it would be left behind.
class spare_page_hold {
 public:
  GPUFS_DEVICE explicit spare_page_hold(const mount_layout& mount) : lock_(mount.pointers.words->spare_lock) {}
  GPUFS_DEVICE ~spare_page_hold() {
    if (held_) give_back();
  }
  spare_page_hold(const spare_page_hold&) = delete;
  spare_page_hold& operator=(const spare_page_hold&) = delete;

  // False: nobody gave it back in time.
  GPUFS_DEVICE bool take(std::uint64_t timeout_ns) {
    const simt::deadline until(timeout_ns);
    simt::backoff pause;
    while (lock_.exchange(1, std::memory_order_acquire) != 0) {  // meets give_back's release
      if (until.expired()) return false;
      pause();
    }
    held_ = true;
    return true;
  }
  GPUFS_DEVICE void give_back() {
    lock_.store(0, std::memory_order_release);
    held_ = false;
  }

 private:
  simt::atomic_ref<std::uint32_t> lock_;
  bool held_ = false;
};

// Does what read_part does if a handler works on whole pages. It uses the mount's spare page, so only one lane reads at a time.
template <class Handler>
GPUFS_DEVICE_COLD int read_part_handled(const mount_layout* mount, file_view view, std::uint32_t id, Handler handler,
                                        page_part part, std::byte* bytes) {
  if (const int got = read_cached(*mount, view, id, part, bytes); got != 0) return got < 0 ? got : 0;
  spare_page_hold hold(*mount);
  if (!hold.take(4 * mount->io_timeout_ns)) return -ETIMEDOUT;
  const simt::some_lanes alone(1u << simt::lane_id());
  const std::uint32_t page_shift = mount->cache.frames.page_shift, page_nbytes = 1u << page_shift;
  const std::uint64_t page_number = part.offset >> page_shift, page_begin = page_number << page_shift;
  std::byte* page = mount->pointers.spare_page;
  int error = !has_version(view.kind) ? simt::call_cold(&fill_from_cache<simt::some_lanes>, alone, mount, view, page_number, page)
                                      : fill(alone, *mount, view, page_number, page);
  if (error == 0) {
    const std::uint64_t left = static_cast<std::uint64_t>(view.nbytes) - page_begin;
    error = handler.filled(alone, page, page_begin, left < page_nbytes ? static_cast<std::uint32_t>(left) : page_nbytes);
  }
  if (error == 0) simt::copy_bytes(alone, bytes, page + (part.offset - page_begin), part.nbytes);
  hold.give_back();
  return error;
}

// Reads nbytes of the mapping's file at `position` for a pointer that could not pin them: 0 or a negative errno. One lane calls,
// and `bytes` is its own. is_cached: they were in the cache.
template <class Handler>
GPUFS_DEVICE_COLD int read_past_cache(mapping_name name, Handler handler, bool is_cached, std::uint64_t position, std::byte* bytes,
                                      std::uint32_t nbytes) {
  mapping_entry& from = *entry_of(name);
  const mount_layout* mount = mount_of(from);  // of all of the table's entries
  const std::uint32_t id = simt::atomic_ref<std::uint32_t>(from.cache_id).load(std::memory_order_relaxed);
  const file_number number{simt::atomic_ref<std::int32_t>(from.number).load(std::memory_order_relaxed)};
  simt::fence_loads();  // the entry may be given to another file until it is looked at
  if (!is_current(name)) return -EBADF;
  const std::uint32_t page_nbytes = 1u << mount->cache.frames.page_shift;
  for (std::uint32_t done = 0; done < nbytes;) {
    const file_view view = file_table(*mount).view(number);
    if (view.error != 0) return view.error;
    if (id != cache::id_in_form(view.cache_id, id >> cache::form_shift))
      return -EBADF;  // the number has come round to another file
    const std::uint64_t at = position + done;
    const std::uint32_t in_page = static_cast<std::uint32_t>(at) & (page_nbytes - 1);
    if (at - in_page >= static_cast<std::uint64_t>(view.nbytes)) return -ENXIO;  // the file was cut
    const page_part part{at, nbytes - done < page_nbytes - in_page ? nbytes - done : page_nbytes - in_page};
    int error = 0;
    if constexpr (std::is_same_v<Handler, no_handler>) {
      error = simt::call_cold(&read_part, mount, view, id, is_cached, part, bytes + done);
    } else {
      error = simt::call_cold(&read_part_handled<Handler>, mount, view, id, handler, part, bytes + done);
    }
    if (error != 0) {
      count_error(mount, view.slot);
      return error;
    }
    done += part.nbytes;
  }
  count(mount->pointers.words->past_cache, 1);
  return 0;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
