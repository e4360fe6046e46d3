// SPDX-License-Identifier: Apache-2.0
// Mapping a part of a file: what gives an active pointer. After GPUfs's gmmap and ActivePointers' gvmmap (ISCA'16, section V).
#pragma once
#include "gpufs/cache/detail/page_drops.hpp"
#include "gpufs/pointer/ptr.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

enum class map_flags : std::uint32_t {
  none = 0,
  // As mmap's MAP_PRIVATE, with one copy a mount: writes are seen by all private mappings of this version of the file in this
  // mount, never by pread or other mappings, and never reach the file, which need not be open for writing. Changed pages stay in
  // the cache until gpufs::discard.
  private_changes = 1,
  // An access that fails stops the kernel; the mount's log says which. Default: it reads zeros, or writes nothing, and is logged. A
  // mapping that is refused is logged, too, and the first access through its pointer stops the kernel.
  stop_on_error = 2,
};
GPUFS_HOST_DEVICE constexpr map_flags operator|(map_flags a, map_flags b) {
  return static_cast<map_flags>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
GPUFS_HOST_DEVICE constexpr bool has(map_flags set, map_flags one) {
  return (static_cast<std::uint32_t>(set) & static_cast<std::uint32_t>(one)) != 0;
}

inline constexpr std::int64_t to_the_end = -1;  // count: as many elements as the file has from the offset on

namespace detail {

struct mapping_request {
  file_number number;
  std::int64_t offset, count;
  std::uint32_t nbytes, alignment;  // of an element
  std::uint32_t handler_form;
  map_flags flags;
  bool writes, handled;
};
struct made_mapping {
  mapping_name name;
  bounds within;
};

// The leader's part of gpufs::map; an error in the name. find: how the mapping is found.
template <class Find>
GPUFS_DEVICE made_mapping try_mapping(const file_mount& mount, const pointer_layout& pointers, const mapping_request& asked,
                                      Find find) {
  const auto none = [](int error) { return made_mapping{error_name(error, false), {}}; };
  if (static_cast<int>(asked.number) < 0) return none(static_cast<int>(asked.number));
  const file_view view = file_table(mount).view(asked.number);
  if (view.error != 0) return none(view.error);
  const bool changes = has(asked.flags, map_flags::private_changes);
  if (asked.writes && !changes && !file_table::may_write(asked.number)) return none(-EACCES);
  const std::uint32_t handler_form = asked.handler_form;
  if (asked.handled && (changes || handler_form == cache::file_form || handler_form >= cache::private_form)) {
    return none(-EINVAL);
  }
  if (asked.offset < 0 || asked.offset % asked.alignment != 0 || asked.count < to_the_end) return none(-EINVAL);
  if (asked.offset > view.nbytes) return none(-ENXIO);
  const std::int64_t most = (view.nbytes - asked.offset) / asked.nbytes;
  if (asked.count > most) return none(-ENXIO);
  const auto begin = static_cast<std::uint64_t>(asked.offset);
  const std::uint64_t end = begin + static_cast<std::uint64_t>(asked.count == to_the_end ? most : asked.count) * asked.nbytes;
  const std::uint32_t form = changes ? cache::private_form : handler_form;
  const mapping_key key{static_cast<std::int32_t>(asked.number), cache::id_in_form(view.cache_id, form), view.handle};
  return {(mapping_table(mount, pointers).*find)(key), {begin, end}};
}
GPUFS_DEVICE mapping_name with_flags(mapping_name name, map_flags flags) {
  return static_cast<mapping_name>(static_cast<std::uint64_t>(name) | (has(flags, map_flags::stop_on_error) ? mapping_stops : 0));
}
// Makes the mapping if none was found; the result is a mapping or an error. It is one function for pointers of all types, so that a
// kernel that maps several types contains the code once.
GPUFS_DEVICE_COLD inline made_mapping make_mapping(const mount_layout* mount, mapping_request asked, mapping_name found) {
  made_mapping made{found, {}};
  if (error_of(found) == 0) made = try_mapping(*mount, mount->pointers, asked, &mapping_table::find_or_add);
  if (is_mapping(made.name)) {
    made.name = with_flags(made.name, asked.flags);
  } else if (has(asked.flags, map_flags::stop_on_error)) {
    // Here, as a pointer without a mapping cannot tell the mount. The kernel goes on, since the caller may look at the error.
    const file_table files(*mount);
    const std::uint32_t handle = files.is_open(asked.number) ? files.view(asked.number).handle : 0;
    fault what{};
    what.offset = asked.offset;
    what.error = error_of(made.name);
    what.handle = handle;
    what.number = static_cast<std::int32_t>(asked.number);
    what.kind = fault_kind::mapping;
    record_fault(*mount, what);
    made.name = error_name(error_of(made.name), true);
  }
  return made;
}

// What gpufs::map and gpufs::map_array do. make: gives the leader its mapping_request. All lanes call.
template <class Group, class Make>
GPUFS_DEVICE made_mapping map_elements(Group group, const file& opened, Make make) {
  const made_mapping made = by_leader(group, [&] {
    const mapping_request asked = make();
    const mount_layout* whole = whole_of(opened.mount().get());
    if (whole == nullptr) return made_mapping{error_name(opened.error(), has(asked.flags, map_flags::stop_on_error)), {}};
    const made_mapping found = try_mapping(*whole, whole->pointers, asked, &mapping_table::find);
    if (is_mapping(found.name)) [[likely]]
      return made_mapping{with_flags(found.name, asked.flags), found.within};
    return simt::call_cold(&make_mapping, whole, asked, found.name);
  });
  simt::rejoin(group);
  return made;
}

template <class T, class Access, class Group>
GPUFS_DEVICE ptr<T, Access> map_with(Group group, const file& opened, std::int64_t offset, std::int64_t count, map_flags flags,
                                     const typename Access::handler& handler) {
  const simt::group_call call(group, "map(file, mount, offset, count, flags)", opened.number(), opened.entry(), offset, count,
                              flags);
  const made_mapping made = map_elements(group, opened, [&] {
    return mapping_request{opened.number(),
                           offset,
                           count,
                           sizeof(T),
                           alignof(T),
                           handler.form(),
                           flags,
                           !std::is_const_v<T>,
                           !std::is_same_v<typename Access::handler, no_handler>};
  });
  return ptr<T, Access>(made.name, made.within, handler);
}

}  // namespace detail

// Maps `count` elements of T from byte `offset` of the file on; nothing is brought in yet, and nothing is asked of the host. All
// lanes of the group call with equal arguments, and each gets a pointer of its own to the first element. The file must stay open
// while the pointers are used: afterwards, pages that are not in the cache give -EBADF. `offset` must be a multiple of T's
// alignment, not of the page size; elements may straddle pages. A handler works on each page that is brought in, and its pages are
// cached in its form.
//
// What is written through a ptr<T> is seen at once by all readers of the page in this mount. It goes to the file as what pwrite has
// written does: once the pointer has left the page (by its end, unlink, or an access to another page) with the next fsync or close,
// or earlier. It does not change the file's size: what lies beyond the end when the pointer leaves the page (the file was cut
// meanwhile) is lost, or is written when the file grows again before all have left the page. Each page that is written takes one
// frame more while pointers to it are linked. A write that fails, or an update whose reading fails, is recorded as any access, and
// the next fsync or close tells of it; so is what cannot be noted any more when the pointer leaves the page, but that stops no
// kernel. Not told so is what was the pointer's fault: of an access beyond the mapping (or to a page that the file has lost, as it
// was cut) the log and the count know, of one through a null or refused pointer nobody.
//
// The pointer's error() is 0, or -EBADF (not open, or for writing only); -EINVAL (an offset that is negative or not aligned, a
// count below -1, private with a handler); -ENXIO (the file ends before); -EACCES (T is not const, the mapping not private, and the
// file not open for writing); -ENFILE (too many open files have pointers, or forms of them: mount_options::max_mappings);
// -ETIMEDOUT (the group that had begun to enter the mapping came to no end).
template <class T, simt::group Group, class Handler = no_handler>
GPUFS_DEVICE ptr<T, handled_by<Handler>> map(Group group, const file& opened, std::int64_t offset = 0,
                                             std::int64_t count = to_the_end, map_flags flags = map_flags::none,
                                             const Handler& handler = {}) {
  return detail::map_with<T, handled_by<Handler>>(group, opened, offset, count, flags, handler);
}

// Drops what private mappings have changed in the pages of p's mapping, and unlinks p: later accesses find what the file has. All
// lanes of the group call. 0; -EINVAL when the mapping is not private; -EBUSY when a pointer was linked to some page (of
// several, where its warp walks), which keeps its changes (each pinned page is asked for 1 ms, as a look-up may pin it for a
// moment); or -EBADF when the file was closed, and its mapping given to another. Without this, changed pages stay in the cache as
// long as the mount.
template <simt::group Group, class T, class Access>
GPUFS_DEVICE int discard(Group group, ptr<T, Access>& p) {
  p.unlink();
  group.sync();
  bool busy = false;
  const detail::bounds within = p.within();
  const std::uint32_t id =
      p ? simt::atomic_ref<std::uint32_t>(detail::entry_of(p.mapped())->cache_id).load(std::memory_order_relaxed) : 0;
  simt::fence_loads();  // the entry may be given to another mapping until its name is looked at
  const bool stale = p && detail::check_name(p.mapped()) != 0;
  const bool is_file = p && !stale && !detail::is_private(id);
  if (p && !stale && !is_file && within.end > within.begin) {
    const file_mount& mount = *detail::entry_of(p.mapped())->hit.mount;  // of all of the table's entries
    const cache::page_drops pages(mount.cache);
    const std::uint32_t shift = mount.cache.frames.page_shift;
    const std::uint64_t last = (within.end - 1) >> shift;
    for (std::uint64_t n = (within.begin >> shift) + group.rank(); n <= last; n += group.size()) {
      busy |= !pages.drop_dirty(cache::make_key(id, n));
    }
  }
  if (group.any(stale)) return -EBADF;
  if (group.any(is_file)) return -EINVAL;
  return group.any(busy) ? -EBUSY : 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
