// SPDX-License-Identifier: Apache-2.0
// Arrays in files: `a[i]` reads and writes elements, as of an array in memory. After BaM's bam::array (ASPLOS'23, section 3.5),
// whose Listing 1 compiles with this type's name in the place of its own.
//
// An array is three words, equal in all lanes, and holds nothing: it is copied, captured and passed to kernels by value, threads
// share it, and no page waits for it to go. So each access is one of its own. A read that finds its page takes no lock and no pin
// (detail/unpinned.hpp); lanes of a full warp ask for one page by the same loads, and for one that is missing once, as all together
// bring it in. A write pins its page once for all lanes that write there, and notes the bytes as pwrite does (update.hpp). Who
// comes back to a page again and again has the pin kept for it instead: pointer() and reader() give a ptr, and the loops over an
// array (begin(), every()) go by one. What either costs is in docs/guide/pointers.md.
//
// What cannot be had reads as zeros, or is not written; the mount counts, logs and tells it as of pointers (ptr.hpp), set() and
// get() return it, and of a write that is lost the file's next fsync, flush or close does.
#pragma once
#include "gpufs/file/write.hpp"
#include "gpufs/pointer/detail/array_element.hpp"
#include "gpufs/pointer/detail/array_range.hpp"
#include "gpufs/pointer/map.hpp"
#include "gpufs/pointer/update.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {
// The open file of a mapping; one with -EBADF, if there is none any more.
GPUFS_DEVICE_COLD inline file file_of(mapping_name name) {
  if (!is_mapping(name)) return {};
  mapping_entry& from = *entry_of(name);
  const file_number number{simt::atomic_ref<std::int32_t>(from.number).load(std::memory_order_relaxed)};
  simt::fence_loads();  // the entry may be given to another mapping until its name is looked at
  return is_current(name) ? file(mount_ref(from.hit.mount), number) : file();
}
}  // namespace detail

template <class T>
class array {
  static_assert(std::is_object_v<T> && std::is_trivially_copyable_v<T>, "gpufs::array<T>: files hold trivially copyable objects");
  static_assert(!std::is_volatile_v<T>, "gpufs::array<T>: T must not be volatile");
  using plain = std::remove_cv_t<T>;
  static constexpr bool writable = !std::is_const_v<T>;
  static constexpr bool may_straddle = alignof(T) != sizeof(T) || sizeof(T) > least_page_nbytes;
  static constexpr std::uint32_t nbytes = sizeof(T);
  // Larger elements are copied by a loop, under a pin.
  static constexpr std::uint32_t most_in_line = 128;

 public:
  using element_type = T;
  using value_type = plain;
  using size_type = std::int64_t;
  using reference = std::conditional_t<writable, array_element<T>, plain>;

  GPUFS_HOST_DEVICE constexpr array() {}  // of no file: error() is -EFAULT
  GPUFS_HOST_DEVICE constexpr array(mapping_name from, std::uint64_t begin, std::int64_t count)
      : from_(from), begin_(begin), count_(count) {}
  // array<T> to array<const T>.
  template <class Writable>
  requires(!writable && std::is_same_v<Writable, plain>) GPUFS_HOST_DEVICE constexpr array(const array<Writable>& other)
      : array(other.mapped(), other.begin_offset(), other.size()) {}

  // 0, or why map_array gave none. (Why an access failed: get() and set() say it, and the mount.)
  GPUFS_DEVICE int error() const { return detail::is_mapping(from_) ? 0 : detail::check_name(from_); }
  // How many elements it has.
  GPUFS_HOST_DEVICE constexpr std::int64_t size() const { return count_; }
  GPUFS_HOST_DEVICE constexpr bool empty() const { return count_ == 0; }
  // The byte of the file at which it begins, and what it is a part of.
  GPUFS_HOST_DEVICE constexpr std::uint64_t begin_offset() const { return begin_; }
  GPUFS_HOST_DEVICE constexpr mapping_name mapped() const { return from_; }

  // Element i: of a const T its value, else what reads when it is converted, and writes when it is assigned to. Any lanes call, and
  // each with its own i; a full warp's that are together share the work. Waits as pread and pwrite may, and for a frame. An i that
  // is negative or too large is an access that fails (-ENXIO), also if its position would not fit into 64 bits.
  template <class Index>
  requires(std::is_convertible_v<Index, std::int64_t> && !std::is_floating_point_v<Index>) GPUFS_DEVICE reference operator[](
      Index index) const {
    const auto i = static_cast<std::int64_t>(index);
    if constexpr (writable) {
      return array_element<T>(*this, i);
    } else {
      return value(i);
    }
  }

  // Reads element i: 0; or zeros, and why: -ENXIO (there is no such element, or the file was cut), -EBADF (the file was closed),
  // what pread gives. It is recorded, as any access that fails.
  GPUFS_DEVICE int get(std::int64_t i, plain& into) const {
    const std::uint64_t at = position(i);
    bool there = false;
    if constexpr (nbytes <= most_in_line) {
      elements<std::uint64_t, 1> positions;
      positions.values[0] = at;
      const auto got = detail::read_unpinned<may_straddle, plain>(from_, within(), positions);
      into = got.values[0];
      there = got.read != 0;
      struct site;
      const bool together = simt::lanes_together<site>().mask() == ~0u;
      if (together ? simt::this_warp().all(there) : there) [[likely]]
        return 0;
    }
    // Lanes that have theirs help to bring in what others miss.
    plain value{};
    const int error = plain_access::access_elsewhere<false>(from_, no_handler{}, within(), at, &value, there ? 0 : nbytes, 0);
    if (!there) into = value;
    return error;
  }

  // Writes element i: 0; or nothing, and why: -ENXIO, -EBADF as of get; -EACCES (neither is the file open for writing, nor the
  // array private); -ENOMEM (no frame came free); what pwrite gives. All who read the page in this mount see it at once; the file
  // has it after flush, fsync or close, or earlier. Of lanes that are together and write one element, one's value is stored: the
  // highest's, but for elements that straddle pages, and where update.hpp says so of store_at. Elements of 4, 8 and 16 bytes,
  // aligned to their size, are stored as by store_at; reads of others meanwhile may find some of their bytes old.
  GPUFS_DEVICE int set(std::int64_t i, const plain& value) const requires writable {
    const std::uint64_t at = position(i);
    if constexpr (may_straddle) {
      const bool in_one = !detail::is_mapping(from_) || !within().have(at, nbytes) ||
                          detail::page_of<true>(detail::page_shift_of(from_), within(), at, nbytes) != detail::no_page;
      if (!in_one) {
        plain copy = value;
        return plain_access::access_elsewhere<true>(from_, no_handler{}, within(), at, &copy, nbytes, 0);
      }
    }
    using stored = detail::one_store<detail::stored_as<plain>>;
    return simt::call_cold(&detail::update_elsewhere<stored>, from_,
                           stored{within(), at, detail::same_bits<detail::stored_as<plain>>(value)})
        .error;
  }

  // A pointer to element i that keeps a reference: for who stays on a page, or writes much of it; and for all that pointers do
  // besides: atomics, fetch_add_at, gather of several elements. reader: to read only; it links to many pages at once, as
  // for_each_n asks for. Each lane has its own. Like all pointers they end, or unlink, before the file is closed.
  GPUFS_DEVICE ptr<T> pointer(std::int64_t i = 0) const { return pointer_of<T>(i); }
  GPUFS_DEVICE ptr<const plain> reader(std::int64_t i = 0) const { return pointer_of<const plain>(i); }

  // What a loop goes through, each lane its own way: `for (const float x : a)`, and from element `first` on each stride-th,
  // `for (const float x : a.every(stride, first))`. x is a value. The loop keeps its page referenced, and links to many where a
  // warp walks; for_each_n(n, stride, f, reader) is faster still. None, where first lies beyond the end or below 0, or stride
  // below 1.
  GPUFS_DEVICE array_range<plain> every(std::int64_t stride, std::int64_t first = 0) const {
    const bool none = stride < 1 || first < 0 || first >= count_;
    return {reader(none ? 0 : first), none ? 1 : stride, none ? 0 : (count_ - first - 1) / stride + 1};
  }
  GPUFS_DEVICE array_iterator<plain> begin() const { return every(1).begin(); }
  GPUFS_DEVICE array_end end() const { return {}; }

  // The open file; its error() is -EBADF once that is closed.
  GPUFS_DEVICE file opened() const { return detail::file_of(from_); }

 private:
  friend class array_element<T>;

  GPUFS_DEVICE plain value(std::int64_t i) const {
    plain value;
    get(i, value);
    return value;
  }
  GPUFS_DEVICE detail::bounds within() const { return {begin_, begin_ + static_cast<std::uint64_t>(count_) * nbytes}; }
  // Of an element that is not there: a position behind all files.
  GPUFS_DEVICE std::uint64_t position(std::int64_t i) const {
    constexpr std::uint64_t beyond = (std::uint64_t{1} << 53) / nbytes + 1;  // files end below 2^53, as pointers know
    const auto n = static_cast<std::uint64_t>(i);
    return begin_ + (n < beyond ? n : beyond) * nbytes;
  }
  template <class U>
  GPUFS_DEVICE ptr<U> pointer_of(std::int64_t i) const {
    ptr<U> p(from_, within(), no_handler{});
    p += i;
    return p;
  }

  mapping_name from_{};
  std::uint64_t begin_ = 0;
  std::int64_t count_ = 0;
};
static_assert(sizeof(array<float>) == 24 && std::is_trivially_copyable_v<array<float>>);

namespace detail {
template <class T>
GPUFS_HOST_DEVICE array<T> array_of(const made_mapping& made) {
  return {made.name, made.within.begin, static_cast<std::int64_t>((made.within.end - made.within.begin) / sizeof(T))};
}
}  // namespace detail

// The array of `count` elements from byte `offset` of the file on (default: the whole file), a multiple of T's alignment. All lanes
// of the group call with equal arguments. Nothing is brought in, nor asked of the host. The file must stay open while the array is
// used. A T that is not const may be of a file that is open for reading only; what is written then fails (-EACCES). With
// map_flags::private_changes writes go to copies in the cache, as of pointers. error() as of gpufs::map. Host code makes one of a
// host_file, by map_array of gpufs/map_array.hpp.
template <class T, simt::group Group>
GPUFS_DEVICE array<T> map_array(Group group, const file& opened, std::int64_t offset = 0, std::int64_t count = to_the_end,
                                map_flags flags = map_flags::none) {
  const simt::group_call call(group, "map_array(file, mount, offset, count, flags)", opened.number(), opened.entry(), offset, count,
                              flags);
  return detail::array_of<T>(detail::map_elements(group, opened, [&] {
    return detail::mapping_request{opened.number(), offset, count, sizeof(T), alignof(T), no_handler{}.form(), flags, false, false};
  }));
}

// Brings what was written to the array's file, by whomever and before the call, to the host, as fsync does, and by default as far
// as its page cache: 0 or what fsync gives; -EBADF: the file is not open for writing, or was closed. Writes through a pointer()
// come along when it has left its page. All lanes of the group call.
template <simt::group Group, class T>
GPUFS_DEVICE int flush(Group group, const array<T>& of, durability how = durability::page_cache) {
  return fsync(group, of.opened(), how);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
