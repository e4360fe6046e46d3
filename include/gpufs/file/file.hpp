// SPDX-License-Identifier: Apache-2.0
// Files, for a group of threads: pread, map_page, unmap_page, fstat. Opening and closing is in gpufs/file/open.hpp, writing in
// write.hpp.
//
// Every call names its group first (gpufs::this_thread(), this_warp(), this_tile<N>(), this_block()); all lanes of the group call,
// with equal arguments, and all get the same result. Results are counts or negative errnos, never both in one value. What a call
// reads from or writes to is one piece of memory for all lanes, global or shared (a local variable for this_thread() alone); what
// lanes have written there they sync before the call, and may reuse after it. (The CPU machine stops a launch whose lanes call
// otherwise, and says how.) Waits are bounded: mount_options::io_timeout for the host (-ETIMEDOUT), frame_timeout while every frame
// is pinned (-ENOMEM). After GPUfs (CACM'14), section 3, and SYSTOR'16, section 4.2 (calls for warps).
#pragma once
#include <sys/stat.h>

#include <type_traits>

#include "gpufs/cache/page_cache.hpp"
#include "gpufs/file/file_table.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

using simt::this_block;
using simt::this_thread;
using simt::this_tile;
using simt::this_warp;

// A mount as kernels see it: 8 bytes, passed by value, valid while the mount lives. One that was made of nothing names no mount;
// it may be given one, and used for nothing else.
class mount_ref {
 public:
  GPUFS_HOST_DEVICE mount_ref() : mount_(nullptr) {}
  GPUFS_HOST_DEVICE explicit mount_ref(const file_mount* mount) : mount_(mount) {}

  // In device memory.
  GPUFS_HOST_DEVICE const file_mount* get() const { return mount_; }

 private:
  const file_mount* mount_;
};
static_assert(sizeof(mount_ref) == 8 && std::is_trivially_copyable_v<mount_ref>);

// An open file, or why it is not open: 16 bytes. A view: copying it opens nothing; only the number needs to be kept. Calls on one
// that did not open give its error; one that was made of nothing has -EBADF.
class file {
 public:
  GPUFS_HOST_DEVICE file() : mount_(nullptr), number_(-EBADF) {}
  // The file with this number, as open() gave it. A number that no open can have given becomes -EBADF.
  GPUFS_DEVICE file(const mount_ref& mount, file_number number) : mount_(mount.get()), number_(static_cast<std::int32_t>(number)) {
    const std::uint32_t slot = file_slots::index_of(number);
    if (number_ < 0 && number_ > -4096) return;  // an error
    if (number_ >= 0 && mount_ != nullptr && file_slots(*mount_).is_made(slot)) {
      entry_ = file_slots(*mount_).entry(slot, 0);
    } else {
      number_ = -EBADF;
    }
  }

  GPUFS_HOST_DEVICE file_number number() const { return file_number{number_}; }
  // 0, or the negative errno of the open that made it.
  GPUFS_HOST_DEVICE int error() const { return number_ < 0 ? number_ : 0; }
  GPUFS_DEVICE mount_ref mount() const {
    return mount_ref(number_ < 0 ? mount_ : file_slots::home_of(entry_, file_slots::index_of(number())).mount);
  }
  // The first of the copies of its entry; null where error() is not 0.
  GPUFS_HOST_DEVICE const file_entry* entry() const { return number_ < 0 ? nullptr : entry_; }

 private:
  // Which of the two, the number says: the one while it is not negative, so that a hit needs nothing of the mount.
  union {
    const file_entry* entry_;
    const file_mount* mount_;
  };
  std::int32_t number_;
};
static_assert(sizeof(file) == 16 && std::is_trivially_copyable_v<file>);

class page;
namespace detail {
template <class Group, class Pages>
GPUFS_DEVICE page map_page_by(Group group, const Pages& of, std::int64_t offset);
}  // namespace detail

// A mapped page: it stays where it is until unmap_page. Plain loads through data() are allowed. Made by map_page.
class page {
 public:
  page() = default;

  GPUFS_DEVICE int error() const { return number_ < 0 ? number_ : 0; }
  // The byte at the offset asked for, and how many bytes follow it in this page and in the file.
  GPUFS_DEVICE const std::byte* data() const { return data_; }
  GPUFS_DEVICE std::uint32_t nbytes() const { return nbytes_; }

 private:
  template <class Group, class Pages>
  friend GPUFS_DEVICE page detail::map_page_by(Group group, const Pages& of, std::int64_t offset);
  template <class Group>
  friend GPUFS_DEVICE page map_page(Group group, const file& opened, std::int64_t offset);
  template <class Group>
  friend GPUFS_DEVICE int unmap_page(Group group, page& mapped);

  const std::byte* data_;
  std::uint64_t* state_;     // the frame's
  const file_entry* entry_;  // the file's, the first copy
  std::uint32_t nbytes_;
  std::int32_t number_;  // the file's, or a negative errno
};

struct file_status {
  std::int64_t nbytes;
  std::uint64_t inode;
  std::uint64_t mtime_ns;
  std::uint32_t mode;
  std::uint32_t cache_id;       // names this version of the file within the mount
  service::source_kind source;  // where its bytes come from
};

namespace detail {

// Runs `work` in one lane and gives its result to all.
template <class Group, class Work>
GPUFS_DEVICE auto by_leader(Group group, Work work) {
  decltype(work()) result{};
  if (group.leader()) result = work();
  return group.broadcast(result);
}

// The pages of an open file, as the calls that read them take them: its entry, and the page cache. In place of this class bench/
// has others, of other caches.
class file_pages {
 public:
  using cache_type = cache::page_cache<>;

  // Of a file that is open, or was.
  GPUFS_DEVICE explicit file_pages(const file& opened) : first_(opened.entry()), number_(opened.number()) {}

  GPUFS_DEVICE const file_entry* entry() const { return first_; }
  GPUFS_DEVICE file_number number() const { return number_; }
  GPUFS_DEVICE const file_mount* mount() const { return home().mount; }
  GPUFS_DEVICE const cache::cache_layout* cache() const { return &home().cache; }
  GPUFS_DEVICE cache::frame_storage frames() const { return file_slots::frames_of(first_); }
  // The entry, in one go. One lane calls.
  GPUFS_DEVICE open_entry look() const { return file_slots::look(number_, first_); }
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
  count(file_slots::home_of(entry, slot).mount->words->unpin_errors, 1);
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

// A page's bytes beyond the end of the file. All lanes call.
template <class Group>
GPUFS_DEVICE void zero_rest(Group group, std::byte* frame, std::uint32_t nbytes, std::uint32_t page_nbytes) {
  for (std::uint32_t i = nbytes + group.rank(); i < page_nbytes; i += group.size()) frame[i] = std::byte{0};
}

// Brings in a part of a page of a file that is open for writing: what the file has, up to the size that counts now. 0 or a negative
// errno. All lanes call, after begin_fill where it is a page for the cache.
template <class Group>
GPUFS_DEVICE_COLD int fill_live(Group group, const file_mount* mount, std::uint32_t slot, service::source_kind kind,
                                std::uint32_t handle, std::uint64_t offset, std::byte* to, std::uint32_t wanted) {
  struct part {
    std::uint64_t from;  // in the file's mapping, or 0
    std::uint32_t nbytes;
  };
  const part there = by_leader(group, [&]() -> part {
    if (kind == service::source_kind::unread) return {0, 0};
    // Meets ftruncate's: either we see its size, or it sees that the frame is filling, and waits for us.
    simt::fence(std::memory_order_seq_cst, simt::scope::device);
    const file_table files(*mount);
    const auto size = static_cast<std::uint64_t>(files.nbytes_now(slot));
    file_slot& file = files.slot(slot);
    const std::uint64_t host = simt::atomic_ref<std::uint64_t>(file.host_nbytes).load(std::memory_order_relaxed);
    const std::uint64_t mapped = simt::atomic_ref<std::uint64_t>(file.mapped_nbytes).load(std::memory_order_relaxed);
    const std::uint64_t end = size < host ? size : host;
    if (offset >= end) return {0, 0};
    const std::uint32_t nbytes = end - offset < wanted ? static_cast<std::uint32_t>(end - offset) : wanted;
    return {offset + nbytes <= mapped ? file.pull_base + offset : 0, nbytes};
  });
  int got = 0;
  const bool pulled =
      there.from != 0 && simt::copy_from_host(group, to, reinterpret_cast<const std::byte*>(there.from), there.nbytes) == 0;
  if (pulled) {
    got = static_cast<int>(there.nbytes);
  } else if (there.nbytes != 0) {
    got = fill_staged(group, mount, handle, offset, to, there.nbytes);
  }
  if (got < 0) return got;
  zero_rest(group, to, static_cast<std::uint32_t>(got), wanted);
  return 0;
}

// Brings `wanted` bytes of the file, which lie in one page, to device memory or, of one lane's group, to that lane's own; bytes
// beyond the end of the file read as zero. All lanes call.
template <class Group>
GPUFS_DEVICE int fill_part(Group group, const file_mount& mount, const file_view& view, std::uint64_t offset, std::byte* to,
                           std::uint32_t wanted) {
  const auto size = static_cast<std::uint64_t>(view.nbytes);
  const std::uint64_t left = offset < size ? size - offset : 0;
  const std::uint32_t nbytes = left < wanted ? static_cast<std::uint32_t>(left) : wanted;
  int error = 0;
  if (view.kind == service::source_kind::nil) return 0;
  if (view.kind >= service::source_kind::live) {
    return fill_live(group, &mount, view.slot, view.kind, view.handle, offset, to, wanted);
  }
  bool staged = nbytes != 0;
  const bool by_windows = view.kind == service::source_kind::windows;
  const bool pulled = view.kind == service::source_kind::pull ||
                      (by_windows && by_leader(group, [&] { return file_table(mount).is_registered(view, offset); }));
  if (pulled) {
    const auto* from = reinterpret_cast<const std::byte*>(view.pull_base) + offset;
    // A page of the mapping that cannot be had: the host says why (it was cut, the disk fails), and its log, too.
    staged = simt::copy_from_host(group, to, from, nbytes) != 0;
    // For each page, as a call may pull many; and afterwards: who sees a byte that a writer of this mount has written sees that the
    // version ended before.
    group.sync();
    if (by_leader(group, [&] { return file_table(mount).is_stale(view); })) {
      error = -ESTALE;
      staged = false;
    }
  }
  if (staged) {
    const int got = fill_staged(group, &mount, view.handle, offset, to, nbytes);
    error = got < 0 ? got : static_cast<std::uint32_t>(got) < nbytes ? -ESTALE : 0;  // it was truncated
  }
  zero_rest(group, to, nbytes, wanted);
  return error;
}

// Brings one page of the file into the frame. All lanes call.
template <class Group>
GPUFS_DEVICE int fill(Group group, const file_mount& mount, const file_view& view, std::uint64_t page_number, std::byte* frame) {
  const std::uint32_t page_shift = mount.cache.frames.page_shift;
  return fill_part(group, mount, view, page_number << page_shift, frame, 1u << page_shift);
}

// Ends a fill that we hold, and counts it. One lane calls, after the group's sync.
template <class Cache>
GPUFS_DEVICE void end_fill(const file_mount& mount, const Cache& pages, cache::page_key key, cache::frame_index frame,
                           std::uint32_t slot, int error) {
  pages.end_fill(key, frame, error);
  if (error != 0) return;
  call_counters& counters = file_table(mount).counters(slot);
  count(counters.faults, 1);
  count(counters.bytes_filled, pages.pages().page_nbytes());
}

// Fills the frame that we hold. All lanes call, with the whole view. 0, or the negative errno after which nothing is pinned.
template <class Group, class Cache>
GPUFS_DEVICE int fill_frame(Group group, const file_mount& mount, const Cache& pages, const file_view& view,
                            std::uint64_t page_number, cache::frame_index frame) {
  const int error = view.error != 0 ? view.error : fill(group, mount, view, page_number, pages.pages().data(frame));
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

// A miss, out of line, with few arguments: its registers would cost every hit occupancy. All lanes call; the frame, which is the
// leader's, says which page is wanted. 0, or the negative errno after which nothing is pinned.
template <class Group, class Cache>
GPUFS_DEVICE_COLD int fill_missed(Group group, const file_mount* mount, const cache::cache_layout* cache, file_number number,
                                  cache::frame_index frame) {
  struct missed {
    file_view view;
    cache::page_key key;
    cache::frame_index frame;
  };
  const Cache pages(*cache);
  const missed wanted = by_leader(group, [&]() -> missed {
    const cache::page_key key = pages.pages().load_key(frame);
    missed got{file_table(*mount).view(number), key, frame};
    got.view.cache_id = cache::cache_id_of(key);  // also of a number that was closed just now
    return got;
  });
  return fill_frame(group, *mount, pages, wanted.view, cache::page_number_of(wanted.key), wanted.frame);
}

// Enters the first page, which has come along with an open, into the cache, and gives the request slot back. All lanes call. When
// somebody else has or fills the page, or no frame is at hand, the bytes are dropped: an open waits for no frame.
template <class Group, class Cache>
GPUFS_DEVICE_COLD void enter_first_page(Group group, const file_mount* mount, const cache::cache_layout* cache,
                                        open_result opened) {
  const Cache pages(*cache);
  const mount_requests rings(*mount);
  using role = typename Cache::role;
  const cache::page_key key = cache::make_key(opened.cache_id, 0);
  const std::uint32_t ring = simt::processor_id() * 29 + opened.slot;  // every first page has number 0
  const auto got = by_leader(group, [&] { return pages.acquire(key, ring, {0, 0}); });
  int error = 0;
  if (got.what == role::fill) {
    std::byte* frame = pages.pages().data(got.frame);
    error = simt::copy_from_host(group, frame, rings.payload(opened.ticket), opened.nbytes);
    zero_rest(group, frame, opened.nbytes, pages.pages().page_nbytes());
    group.sync();  // the bytes of all lanes happen before the leader's releases: of the page, and of the request slot
  }
  if (!group.leader()) return;
  if (got.what == role::fill) end_fill(*mount, pages, key, got.frame, opened.slot, error);
  if (got.what != role::error && error == 0) pages.unpin(got.frame);
  rings.give_back(opened.ticket);
}

// Pins a page that is not in the frame of its choice, or makes room for it. One lane calls.
template <class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired acquire_elsewhere(Pages of, cache::page_key key) {
  using Cache = typename Pages::cache_type;
  const file_mount* mount = of.mount();
  const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(cache::page_number_of(key));
  const auto got = Cache(*of.cache()).acquire(key, ring, {2 * mount->io_timeout_ns, mount->frame_timeout_ns});
  if (got.what == Cache::role::hit) count(of.hits().hits, 1);
  if (got.what == Cache::role::waited) count(file_table(*mount).counters(file_slots::index_of(of.number())).waits, 1);
  return got;
}

// A group's leader looks the page up; one lane calls. `frames` are the mount's, from the entry; after a call out of line they are
// loaded anew, so that none of them need be kept meanwhile.
template <class Group, class Pages>
GPUFS_DEVICE typename Pages::cache_type::acquired acquire_page(Group group, const Pages& of, cache::frame_storage& frames,
                                                               const file_view& view, std::uint64_t page_number) {
  using Cache = typename Pages::cache_type;
  const cache::page_key key = cache::make_key(view.cache_id, page_number);
  cache::frame_index at{};
  if (Cache::pin_in_choice(cache::frames(frames), key, at)) [[likely]] {
    simt::count_one(group, of.hits().hits);
    return {at, Cache::role::hit, 0};
  }
  const auto got = simt::call_cold(&acquire_elsewhere<Pages>, of, key);
  frames = of.frames();
  return got;
}

// What is left to do after the leader's acquire_page, whose result all lanes have: fills the page when it is missing. All lanes
// call. 0: the page is pinned.
template <class Group, class Pages, class Acquired>
GPUFS_DEVICE int complete_page(Group group, const Pages& of, const Acquired& got) {
  if (got.what != decltype(got.what)::fill) [[likely]]
    return got.error;
  return simt::call_cold(&fill_missed<Group, typename Pages::cache_type>, group, of.mount(), of.cache(), of.number(), got.frame);
}

// All lanes have read. Each warp of a block waits for its own loads, since the fence of the leader's unpin waits for its warp's
// only.
template <class Group>
GPUFS_DEVICE void finish_reads(Group group) {
  if constexpr (std::is_same_v<Group, simt::block>) simt::fence(std::memory_order_acq_rel, simt::scope::block);
  group.sync();
}

// Checks a range as pread(2) does and clips it to the file: the bytes to read, 0 at or beyond the end, or a negative errno.
GPUFS_DEVICE std::int64_t clip(const file_view& view, const void* dst, std::size_t nbytes, std::int64_t offset) {
  constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
  if (offset < 0) return -EINVAL;
  if (nbytes > most || nbytes > most - static_cast<std::uint64_t>(offset)) return -EOVERFLOW;
  if (nbytes == 0 || offset >= view.nbytes) return 0;
  if (dst == nullptr) return -EFAULT;
  const auto left = static_cast<std::uint64_t>(view.nbytes - offset);
  return static_cast<std::int64_t>(nbytes < left ? nbytes : left);
}

// Reads the part of [offset, offset + total) that lies in one page. All lanes call.
template <class Group, class Pages>
GPUFS_DEVICE int read_in_page(Group group, const Pages& of, const open_entry& entry, std::byte* dst, std::int64_t offset,
                              std::uint64_t page_number, std::uint64_t total) {
  const file_view& view = entry.view;
  cache::frame_storage storage = cache::unpack(entry.frames);
  const cache::frames frames(storage);
  const std::uint32_t page_nbytes = frames.page_nbytes();
  const auto first = static_cast<std::uint64_t>(offset);
  const std::uint64_t page_begin = page_number * page_nbytes;
  const std::uint64_t begin = first > page_begin ? first : page_begin;
  const std::uint64_t end = first + total < page_begin + page_nbytes ? first + total : page_begin + page_nbytes;
  const auto got = by_leader(group, [&] { return acquire_page(group, of, storage, view, page_number); });
  const int error = complete_page(group, of, got);
  if (error != 0) return error;
  simt::copy_bytes(group, dst + (begin - first), frames.data(got.frame) + (begin - page_begin), end - begin);
  finish_reads(group);
  if (group.leader()) frames.unpin(got.frame);
  return 0;
}

// Bytes read before the page that failed, or the error when there are none.
GPUFS_DEVICE std::int64_t bytes_before(std::int64_t offset, std::uint64_t failed_page, std::uint32_t page_shift, int error) {
  const auto end = static_cast<std::int64_t>(failed_page << page_shift);
  return end > offset ? end - offset : error;
}

// Calls work(group, page) -> 0 or a negative errno for the pages first to last, until one fails: which, or error == 0.
struct page_failure {
  std::uint64_t page;
  int error;
};
template <class Group, class Work>
GPUFS_DEVICE page_failure each_page(Group group, std::uint64_t first, std::uint64_t last, Work work) {
  for (std::uint64_t p = first; p <= last; ++p) {
    const int error = work(group, p);
    if (error != 0) return {p, error};
  }
  return {0, 0};
}

// A block spreads the pages over its warps; the first page that failed decides.
template <class Work>
GPUFS_DEVICE page_failure each_page(simt::block group, std::uint64_t first, std::uint64_t last, Work work) {
  struct failure {
    std::uint64_t page_and_error;  // page number relative to the first << 16 | -error; all ones: none
  };
  auto& first_failure = simt::shared<failure>();
  simt::atomic_ref<std::uint64_t, simt::scope::block> word(first_failure.page_and_error);
  group.sync();  // the last call's readers are done
  if (group.leader()) word.store(~std::uint64_t{0}, std::memory_order_relaxed);
  group.sync();
  const auto warp = group.warp();
  for (std::uint64_t p = first + simt::warp_rank(); p <= last; p += group.nwarps()) {
    const int error = work(warp, p);
    if (error != 0) {
      if (warp.leader()) {
        const std::uint64_t mine = ((p - first) << 16) | static_cast<std::uint32_t>(-error);
        std::uint64_t seen = word.load(std::memory_order_relaxed);
        while (mine < seen && !word.compare_exchange(seen, mine, std::memory_order_relaxed)) {
        }
      }
      break;
    }
  }
  group.sync();
  const std::uint64_t failed = word.load(std::memory_order_relaxed);
  if (failed == ~std::uint64_t{0}) return {0, 0};
  return {first + (failed >> 16), -static_cast<int>(failed & 0xffff)};
}

template <class Group, class Pages>
GPUFS_DEVICE std::int64_t read_pages(Group group, const Pages& of, const open_entry& entry, std::byte* dst, std::uint64_t total,
                                     std::int64_t offset) {
  const std::uint32_t shift = cache::unpack(entry.frames).page_shift;
  const std::uint64_t first = static_cast<std::uint64_t>(offset) >> shift;
  const page_failure failed =
      each_page(group, first, (static_cast<std::uint64_t>(offset) + total - 1) >> shift,
                [&](auto part, std::uint64_t p) { return read_in_page(part, of, entry, dst, offset, p, total); });
  return failed.error == 0 ? static_cast<std::int64_t>(total) : failed.error;
}

// What pread does, of a file that is open, or was.
template <class Group, class Pages>
GPUFS_DEVICE std::int64_t pread_by(Group group, const Pages& of, void* dst, std::size_t nbytes, std::int64_t offset) {
  const open_entry entry = by_leader(group, [&] { return of.look(); });
  const file_view& view = entry.view;
  if (view.error != 0) return view.error;
  std::int64_t result = clip(view, dst, nbytes, offset);
  if (result > 0) result = read_pages(group, of, entry, static_cast<std::byte*>(dst), static_cast<std::uint64_t>(result), offset);
  if (group.leader()) {
    if (result < 0) [[unlikely]] {
      simt::call_cold(&count_error, of.mount(), view.slot);
    } else {
      count(of.hits().bytes_read, static_cast<std::uint64_t>(result));
    }
  }
  group.sync();
  return result;
}

// What map_page does, of a file that is open, or was. The leader finds the addresses, and all get those: what they are made of
// would cost registers while the page is read.
template <class Group, class Pages>
GPUFS_DEVICE page map_page_by(Group group, const Pages& of, std::int64_t offset) {
  constexpr std::int32_t to_be_filled = 1;
  struct answer {
    std::byte* data;
    std::uint64_t* state;
    std::uint32_t nbytes;  // from the offset to the end of the page or of the file
    std::int32_t error;
  };
  bool is_open = false;        // the leader's
  cache::frame_index frame{};  // as well
  const answer found = by_leader(group, [&]() -> answer {
    const open_entry entry = of.look();
    const file_view& view = entry.view;
    if (view.error != 0) return {nullptr, nullptr, 0, view.error};
    is_open = true;
    if (offset < 0) return {nullptr, nullptr, 0, -EINVAL};
    if (offset >= view.nbytes) return {nullptr, nullptr, 0, -ENXIO};
    cache::frame_storage storage = cache::unpack(entry.frames);
    const std::uint64_t page_number = static_cast<std::uint64_t>(offset) >> storage.page_shift;
    const std::int64_t left = view.nbytes - offset;
    const auto got = acquire_page(group, of, storage, view, page_number);
    frame = got.frame;
    const cache::frames frames(storage);
    const std::uint32_t in_page = static_cast<std::uint32_t>(offset) & (frames.page_nbytes() - 1);
    const std::uint32_t here = frames.page_nbytes() - in_page;
    return {frames.data(frame) + in_page, &frames.state_word(frame), left < here ? static_cast<std::uint32_t>(left) : here,
            got.what == decltype(got.what)::fill ? to_be_filled : got.error};
  });
  int error = found.error;
  if (error == to_be_filled) [[unlikely]]
    error = simt::call_cold(&fill_missed<Group, typename Pages::cache_type>, group, of.mount(), of.cache(), of.number(), frame);
  page result{};
  if (error == 0) [[likely]] {
    result.data_ = found.data;
    result.state_ = found.state;
    result.entry_ = of.entry();
    result.nbytes_ = found.nbytes;
    result.number_ = static_cast<std::int32_t>(of.number());
    return result;
  }
  result.number_ = error;
  if (is_open) simt::call_cold(&count_error, of.mount(), file_slots::index_of(of.number()));
  return result;
}

}  // namespace detail

// Reads up to nbytes at `offset` into dst (any device memory, any alignment). Bytes read: fewer only at the end of the file. If a
// page cannot be read the call fails with the error of the first such page, and what dst has then is undefined: -EBADF (not open,
// or not for reading; a file that did not open gives the error of its open), -EINVAL (offset < 0), -EOVERFLOW, -EFAULT, -EIO,
// -ESTALE (the file changed since it was opened, or is being written by this mount; docs/guide/writing.md, "Files and versions"),
// -ENOMEM, -EMFILE (a page of it has 2^23 pins, by map_page or pointers), -ETIMEDOUT.
template <class Group>
GPUFS_DEVICE std::int64_t pread(Group group, const file& opened, void* dst, std::size_t nbytes, std::int64_t offset) {
  const simt::group_call call(group, "pread(file, mount, dst, nbytes, offset)", opened.number(), opened.entry(),
                              simt::memory_of_all{dst, nbytes}, nbytes, offset);
  if (opened.error() != 0) [[unlikely]]
    return simt::call_cold(&detail::refuse<Group>, group, opened);
  return detail::pread_by(group, detail::file_pages(opened), dst, nbytes, offset);
}

// Maps the page that holds `offset`: it is pinned in the cache, and does not move, until unmap_page. The page's error() is 0
// or as pread's, and -ENXIO at or beyond the end of the file. A group that maps more pages than the cache has frames gets
// -ENOMEM after frame_timeout.
template <class Group>
GPUFS_DEVICE page map_page(Group group, const file& opened, std::int64_t offset) {
  const simt::group_call call(group, "map_page(file, mount, offset)", opened.number(), opened.entry(), offset);
  if (opened.error() != 0) [[unlikely]] {
    page none{};
    none.number_ = simt::call_cold(&detail::refuse<Group>, group, opened);
    return none;
  }
  return detail::map_page_by(group, detail::file_pages(opened), offset);
}

// Gives a mapped page back; its data() must not be used after. 0, or -EINVAL when the page is not mapped (any more). Unmapping a
// copy of a page that was unmapped is noticed unless somebody has its frame pinned just then: then their pin is taken.
template <class Group>
GPUFS_DEVICE int unmap_page(Group group, page& mapped) {
  const simt::group_call call(group, "unmap_page(page)", mapped.data_);
  if (mapped.number_ < 0 || mapped.data_ == nullptr) return -EINVAL;
  detail::finish_reads(group);
  const int error = detail::by_leader(group, [&] {
    if (!cache::frames::unpin_checked(*mapped.state_)) [[unlikely]] {
      simt::call_cold(&detail::count_unpin_error, mapped.entry_, file_slots::index_of(file_number{mapped.number_}));
      return -EINVAL;
    }
    return 0;
  });
  mapped.data_ = nullptr;
  return error;
}

// What was known of the file when it was opened, and the size of one that is open for writing as it is now: no host call. Each
// lane's *out is written. 0, or -EBADF, -EFAULT, or the error of a file that did not open.
template <class Group>
GPUFS_DEVICE int fstat(Group group, const file& opened, file_status* out) {
  const simt::group_call call(group, "fstat(file, mount)", opened.number(), opened.entry());
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  struct answer {
    file_status status;
    int error;
  };
  const answer got = detail::by_leader(group, [&]() -> answer {
    const file_table table(*opened.mount().get());
    const file_view view = table.view_of_any(opened.number());
    if (view.error != 0) return {{}, view.error};
    const file_slot& slot = table.slot(view.slot);
    return {{view.nbytes, slot.inode, slot.mtime_ns, slot.mode, slot.cache_id, view.kind}, 0};
  });
  if (got.error != 0) return got.error;
  if (out == nullptr) return -EFAULT;
  *out = got.status;
  return 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
