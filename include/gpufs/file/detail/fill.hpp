// SPDX-License-Identifier: Apache-2.0
// Bringing pages of files into frames: by pulling them, or by asking the host.
#pragma once
#include "gpufs/file/handles.hpp"
#include "gpufs/nvme/detail/read_file.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// Runs `work` in one lane and gives its result to all.
template <class Group, class Work>
GPUFS_DEVICE auto by_leader(Group group, Work work) {
  decltype(work()) result{};
  if (group.leader()) result = work();
  return group.broadcast(result);
}

// The pages of an open file, as the calls that read them take them: its entry, and the page cache. research/baselines/ has other
// classes in place of this one, for other caches.
class file_pages {
 public:
  using cache_type = cache::page_cache<>;
  static constexpr bool has_operations = true;

  // Of a file that is open, or was.
  GPUFS_DEVICE explicit file_pages(const file& opened) : first_(opened.entry()), number_(opened.number()) {}

  GPUFS_DEVICE const file_entry* entry() const { return first_; }
  GPUFS_DEVICE file_number number() const { return number_; }
  GPUFS_DEVICE const file_mount* mount() const { return file_slots::mount_of(home()); }
  GPUFS_DEVICE const cache::cache_layout* cache() const { return &home().cache; }
  GPUFS_DEVICE cache::frame_storage frames() const { return file_slots::frames_of(first_); }
  // The entry, in one go. One lane calls.
  GPUFS_DEVICE open_entry look() const { return file_slots::look(number_, first_); }
  // And the file's source.
  GPUFS_DEVICE open_entry look_with_source() const { return file_slots::look_with_source(number_, first_); }
  GPUFS_DEVICE file_view view() const { return file_slots::view_by(number_, first_); }
  GPUFS_DEVICE cache::page_cache<>::timeouts timeouts() const { return {home().fill_ns, home().frame_ns}; }
  GPUFS_DEVICE hit_counters& hits() const {
    const std::uint32_t slot = file_slots::index_of(number_);
    return file_slots::hits_of(&file_slots::block_of(first_, slot).hits[0][slot % block_slots]);
  }

 private:
  GPUFS_DEVICE const file_home& home() const { return file_slots::home_of(first_, file_slots::index_of(number_)); }

  const file_entry* first_;
  file_number number_;
};

// Spreads groups over request rings.
GPUFS_DEVICE std::uint32_t ring_hint() { return simt::block_rank() * 29 + simt::warp_rank() * 5 + simt::lane_id(); }

GPUFS_DEVICE void count(std::uint64_t& counter, std::uint64_t n) { simt::atomic_ref<std::uint64_t>(counter).add_relaxed(n); }

inline GPUFS_DEVICE_COLD void count_error(const file_mount* mount, std::uint32_t slot) {
  count(file_table(*mount).counters(slot).errors, 1);
}

inline GPUFS_DEVICE_COLD void count_unpin_error(const file_entry* entry, std::uint32_t slot) {
  count(file_slots::mount_of(file_slots::home_of(entry, slot))->words->unpin_errors, 1);
}

// A call on a file that did not open: its error. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD int refuse(Group group, file opened) {
  if (group.leader()) file_slots::count_bad_number(opened.mount().get());
  group.sync();
  return opened.error();
}

struct staged_answer {
  transport::ticket ticket;
  std::int32_t error;
  std::uint32_t nbytes;
  bool held;  // the ticket is ours, and must be given back
};

// Asks a host worker for nbytes of the file and waits. One lane calls.
inline GPUFS_DEVICE_COLD staged_answer ask_for_bytes(const file_mount* mount, std::uint32_t handle, std::uint64_t offset,
                                                     std::uint32_t nbytes) {
  const mount_requests rings(*mount);
  const simt::deadline until(mount->io_timeout_ns);
  staged_answer got{rings.take(ring_hint(), until), -ETIMEDOUT, 0, false};
  if (got.ticket.index != transport::no_slot) {
    transport::request ask{};
    ask.op = transport::opcode::read;
    ask.handle = handle;
    ask.offset = static_cast<std::int64_t>(offset);
    ask.nbytes = nbytes;
    transport::reply reply;
    if (rings.call(got.ticket, ask, reply, until) == 0) {
      got.held = true;
      got.error = reply.result < 0 ? static_cast<int>(reply.result) : 0;
      got.nbytes = static_cast<std::uint32_t>(reply.result);
    }
  }
  if (!got.held) count(mount->words->io_timeouts, 1);
  return got;
}

// Reads one page by a host worker through a staging slot: how many bytes there are, or a negative errno. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD int fill_staged(Group group, const file_mount* mount, std::uint32_t handle, std::uint64_t offset,
                                  std::byte* frame, std::uint32_t nbytes) {
  const staged_answer got = by_leader(group, [&] { return ask_for_bytes(mount, handle, offset, nbytes); });
  const mount_requests rings(*mount);
  int error = got.error;
  const std::uint32_t there = got.nbytes < nbytes ? got.nbytes : nbytes;
  if (error == 0) error = simt::copy_from_host(group, frame, rings.payload(got.ticket), there);
  group.sync();
  if (got.held && group.leader()) rings.give_back(got.ticket);
  return error != 0 ? error : static_cast<int>(there);
}

// Where the bytes of a part of a page are. One lane calls.
GPUFS_DEVICE source::piece find_piece(const file_mount& mount, const file_view& view, std::uint64_t offset, std::uint32_t nbytes) {
  return source::find(view.kind, file_table(mount).as_opened(view), offset, nbytes);
}

// Whether the file has a version, and the device can read the bytes of the page at this offset itself. Then they may be read past
// the cache, or come sector by sector. One lane calls.
GPUFS_DEVICE bool is_read_by_device(const file_mount& mount, const file_view& view, std::uint64_t offset) {
  using source::place;
  if (view.error != 0 || !has_version(view.kind)) return false;
  const place where = find_piece(mount, view, offset, 1).where;
  return where != place::host && where != place::nowhere;
}

// Reads bytes that lie in namespaces by these lanes of a warp, which all call: once in a kernel's code, whatever groups it has.
inline GPUFS_DEVICE_COLD int read_blocks_by(std::uint32_t lanes, std::byte* to, const nvme::file_layout* of, std::uint64_t offset,
                                            std::uint32_t nbytes, std::uint64_t timeout_ns) {
  return nvme::read_file(lanes, *of, offset, to, nbytes, timeout_ns);
}
// The same by any group; a group of one lane may read to memory of its own. All lanes call.
template <class Group>
GPUFS_DEVICE int read_blocks(Group group, std::byte* to, const nvme::file_layout* of, std::uint64_t offset, std::uint32_t nbytes,
                             std::uint64_t timeout_ns) {
  if constexpr (std::is_same_v<Group, simt::block>) {
    // A share for each warp, of whole commands.
    const std::uint64_t a_share = of->share_nbytes;
    const std::uint64_t first = offset / a_share, n = (offset + nbytes - 1) / a_share - first + 1;
    const std::uint64_t share = (n + group.nwarps() - 1) / group.nwarps();
    const std::uint64_t begin = (first + simt::warp_rank() * share) * a_share, end = begin + share * a_share;
    const std::uint64_t from = begin < offset ? offset : begin, up_to = end < offset + nbytes ? end : offset + nbytes;
    const int error = from >= up_to ? 0
                                    : simt::call_cold(&read_blocks_by, group.warp().mask(), to + (from - offset), of, from,
                                                      static_cast<std::uint32_t>(up_to - from), timeout_ns);
    return group.reduce_min(error);  // which is a barrier
  } else {
    return simt::call_cold(&read_blocks_by, group.mask(), to, of, offset, nbytes, timeout_ns);
  }
}

struct part_taken {
  int error;
  bool pulled;  // the device took the bytes from a version that may have ended: they count if is_stale says no afterwards
};

// Brings `wanted` bytes of the file, all in one page, to device memory; a group of one lane may also bring them to memory of that
// lane. Bytes beyond the end of the file read as zero. All lanes call.
template <class Group>
GPUFS_DEVICE part_taken take_part(Group group, const file_mount& mount, const file_view& view, std::uint64_t offset, std::byte* to,
                                  std::uint32_t wanted) {
  using source::place;
  const source::piece from = by_leader(group, [&] { return find_piece(mount, view, offset, wanted); });
  const auto* there = reinterpret_cast<const std::byte*>(from.address);
  std::uint32_t nbytes = from.nbytes;
  int error = 0;
  if (from.where == place::nowhere) return {0, false};
  if (from.where == place::device) simt::copy_bytes(group, to, there, nbytes);
  if (from.where == place::blocks) {
    const auto* const of = reinterpret_cast<const nvme::file_layout*>(from.address);
    error = read_blocks(group, to, of, offset, nbytes, mount.io_timeout_ns);
  }
  // If the copy from the mapping fails, the host says why (the file was cut, the disk fails), and so does its log.
  const bool by_host =
      from.where == place::host || (from.where == place::host_memory && simt::copy_from_host(group, to, there, nbytes) != 0);
  if (by_host) {
    const int got = fill_staged(group, &mount, view.handle, offset, to, nbytes);
    const bool is_short = got >= 0 && static_cast<std::uint32_t>(got) < nbytes;
    error = got < 0 ? got : is_short && has_version(view.kind) ? -ESTALE : 0;  // it was truncated
    if (is_short) nbytes = static_cast<std::uint32_t>(got);
  }
  zero_rest(group, to, nbytes, wanted);
  const bool by_us = !by_host && (from.where == place::host_memory || from.where == place::blocks);
  return {error, by_us && has_version(view.kind)};
}

// Does what take_part does, and fails with -ESTALE if the file's version has ended. 0 or a negative errno. All lanes call, after
// begin_fill if the bytes are for a page in the cache.
template <class Group>
GPUFS_DEVICE int fill_part(Group group, const file_mount& mount, const file_view& view, std::uint64_t offset, std::byte* to,
                           std::uint32_t wanted) {
  const part_taken taken = take_part(group, mount, view, offset, to, wanted);
  if (!taken.pulled) return taken.error;
  // Looks once for each page, because a call may pull many pages, and after the bytes were read: a reader that sees a byte that a
  // writer of this mount has written sees that the version ended before.
  group.sync();
  return by_leader(group, [&] { return file_table(mount).is_stale(view); }) ? -ESTALE : taken.error;
}

// Brings one page of the file into the frame. All lanes call.
template <class Group>
GPUFS_DEVICE int fill(Group group, const file_mount& mount, const file_view& view, std::uint64_t page_number, std::byte* frame) {
  const std::uint32_t page_shift = mount.cache.frames.page_shift;
  return fill_part(group, mount, view, page_number << page_shift, frame, 1u << page_shift);
}

// How many of the page's bytes the file has.
GPUFS_DEVICE std::uint32_t nbytes_of_page(const file_view& view, std::uint64_t page_number, const cache::frames& frames) {
  const std::uint64_t left = static_cast<std::uint64_t>(view.nbytes) - (page_number << frames.page_shift());
  return left < frames.page_nbytes() ? static_cast<std::uint32_t>(left) : frames.page_nbytes();
}

GPUFS_DEVICE void count_filled(call_counters& counters, std::uint32_t nbytes) {
  count(counters.faults, 1);
  count(counters.bytes_filled, nbytes);
}

// Ends a fill that we hold, and counts it. One lane calls, after the group's sync.
template <class Cache>
GPUFS_DEVICE void end_fill(const file_mount& mount, const Cache& pages, cache::page_key key, cache::frame_index frame,
                           std::uint32_t slot, int error) {
  pages.end_fill(key, frame, error);
  if (error != 0) return;
  count_filled(file_table(mount).counters(slot), pages.pages().page_nbytes());
}

// Fills the frame that we hold. All lanes call, with the whole view. 0, or the negative errno after which nothing is pinned.
template <class Group, class Cache>
GPUFS_DEVICE int fill_frame(Group group, const file_mount& mount, const Cache& pages, const file_view& view,
                            std::uint64_t page_number, cache::frame_index frame) {
  const cache::frames& frames = pages.pages();
  int error = view.error;
  if (error == 0) {
    error = fill_part(group, mount, view, page_number << frames.page_shift(), frames.data(frame), frames.page_nbytes());
  }
  group.sync();  // the bytes of all lanes happen before the leader's release in end_fill
  if (group.leader()) end_fill(mount, pages, cache::make_key(view.cache_id, page_number), frame, view.slot, error);
  group.sync();
  return error;
}

// The same, out of line. All lanes call; `view` is the leader's.
template <class Group>
GPUFS_DEVICE_COLD int fill_page(Group group, const file_mount* mount, file_view view, std::uint64_t page_number,
                                cache::frame_index frame) {
  return fill_frame(group, *mount, cache::page_cache<>(mount->cache), group.broadcast(view), page_number, frame);
}

// Enters the first page, which has come along with an open, into the cache, and gives its bytes back. All lanes call. When
// somebody else has or fills the page, or no frame is at hand, the bytes are dropped: an open waits for no frame.
template <class Group, class Cache>
GPUFS_DEVICE_COLD void enter_first_page(Group group, const file_mount* mount, const cache::cache_layout* cache,
                                        open_result opened) {
  const Cache pages(*cache);
  const mount_names all(*mount, 0);
  using role = typename Cache::role;
  const cache::page_key key = cache::make_key(opened.cache_id, 0);
  const std::uint32_t ring = simt::processor_id() * 29 + opened.slot;  // every first page has number 0
  const auto got = by_leader(group, [&] { return pages.acquire(key, ring, {0, 0}); });
  int error = 0;
  if (got.what == role::fill) {
    std::byte* frame = pages.pages().data(got.frame);
    error = simt::copy_from_host(group, frame, all.bytes_of(opened.kept), opened.nbytes);
    zero_rest(group, frame, opened.nbytes, pages.pages().page_nbytes());
    group.sync();  // the bytes of all lanes happen before the leader's releases: of the page, and of the kept bytes
  }
  if (!group.leader()) return;
  if (got.what == role::fill) end_fill(*mount, pages, key, got.frame, opened.slot, error);
  if (got.what != role::error && error == 0) pages.unpin(got.frame);
  all.give_back(opened.kept);
}

}  // namespace detail

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
