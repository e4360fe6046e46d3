// SPDX-License-Identifier: Apache-2.0
// Active pointers: ptr<T> behaves like T*, and points into a file. After ActivePointers (ISCA'16), section III.
//
// A pointer is linked, and then holds a pin on a page, or on several side by side (of one that is there in part it has a part), and
// reads them with plain loads, or unlinked, and then holds a position only. Accessing an element elsewhere faults, gives the pages
// up and links there (detail/fault.hpp); assignment and destruction unlink. Arithmetic only moves: a pointer that has left its page
// holds it until the next access, so that walking costs an addition. Copies are unlinked; a moved-from pointer hands its link over.
//
// Each lane uses its own pointer, and lanes that fault together share the work (on CUDA: the lanes of a full warp). An access
// waits for a page to be brought in, as long as pread may. What cannot be had (beyond the mapping -ENXIO, and what pread returns)
// reads as zeros, is not written, and is counted and logged by the mount, and the pointer's error() says so from then on; or it
// stops the kernel (map_flags::stop_on_error). A read that finds no frame is served past the cache; a write then fails with
// -ENOMEM.
#pragma once
#include <cstddef>
#include <iterator>
#include <type_traits>

#include "gpufs/pointer/detail/element.hpp"
#include "gpufs/pointer/detail/link.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {
struct walk;     // for_each.hpp
struct updates;  // update.hpp
}  // namespace detail

// Dereferencing links and so changes the object even where it is const: threads that share a pointer (in global or shared memory)
// each copy it first. All zero bytes are a null pointer, so that arrays of pointers may start as zeroed memory.
template <class T, class Access>
class ptr : private detail::page_link<T, Access> {
  using link_type = detail::page_link<T, Access>;
  using typename link_type::handler_type;
  using typename link_type::plain;
  static constexpr std::uint32_t nbytes = link_type::nbytes;
  static constexpr bool writable = link_type::writable;

 public:
  using element_type = T;
  using value_type = plain;
  using difference_type = std::ptrdiff_t;
  using reference = std::conditional_t<writable, element<T, Access>, plain>;
  using pointer = void;
  using iterator_category = std::random_access_iterator_tag;

  GPUFS_DEVICE constexpr ptr() {}  // null
  GPUFS_DEVICE constexpr ptr(std::nullptr_t) {}
  GPUFS_DEVICE ptr(const ptr& other) : link_type() { copy_position(other); }
  GPUFS_DEVICE ptr(ptr&& other) noexcept : link_type() { take(other); }
  // Converts ptr<T> to ptr<const T>. It is a template, so that a plain copy does not instantiate ptr<T>, which does not exist with
  // a handler.
  template <class Writable>
  requires(!writable && std::is_same_v<Writable, ptr<plain, Access>>) GPUFS_DEVICE ptr(const Writable& other) {
    copy_position(other);
  }
  GPUFS_DEVICE ~ptr() { unlink(); }

  GPUFS_DEVICE ptr& operator=(const ptr& other) {
    if (this == &other) return *this;
    unlink();
    copy_position(other);
    return *this;
  }
  GPUFS_DEVICE ptr& operator=(ptr&& other) noexcept {
    if (this == &other) return *this;
    unlink();
    take(other);
    return *this;
  }

  // Whether it points into a mapping.
  GPUFS_DEVICE explicit operator bool() const { return detail::is_mapping(from_); }
  // 0, or why gpufs::map gave none, or why the first access failed that did, through this pointer or one that it was copied from
  // afterwards. It stays so until the pointer is assigned to. (gather leaves it as it is.)
  GPUFS_DEVICE int error() const {
    const int refused = detail::error_of(from_);
    return refused != 0 ? refused : -static_cast<int>(end_ >> end_bits);
  }
  // Whether it holds a pin just now.
  using link_type::linked;
  // The byte of the file that it points to.
  GPUFS_DEVICE std::int64_t offset() const { return static_cast<std::int64_t>(position()); }
  // The part of the file that it may access, in bytes: detail::bounds.
  using link_type::within;
  GPUFS_DEVICE mapping_name mapped() const { return from_; }
  // How many elements there are from here to the end of the mapping.
  GPUFS_DEVICE difference_type left() const {
    return static_cast<difference_type>((end_ & end_mask) - position()) / static_cast<difference_type>(nbytes);
  }

  GPUFS_DEVICE_IN_TEMPLATES reference operator*() const { return refer(0); }
  GPUFS_DEVICE_IN_TEMPLATES reference operator[](difference_type i) const { return refer(bytes(i)); }

  // What `->` goes through: a copy of the element.
  class arrow {
   public:
    GPUFS_DEVICE explicit arrow(const plain& value) : value_(value) {}
    GPUFS_DEVICE const plain* operator->() const { return &value_; }

   private:
    plain value_;
  };
  GPUFS_DEVICE arrow operator->() const { return arrow(read(0)); }

  // Reads a V (uint4, say) at this position: by one load where V's alignment and the page allow, else piece by piece.
  template <class V>
  GPUFS_DEVICE V load(difference_type i = 0) const {
    static_assert(std::is_trivially_copyable_v<V> && sizeof(V) % sizeof(T) == 0,
                  "gpufs::ptr<T>::load<V>: V is a whole number of T");
    const std::uint64_t distance = bytes(i);
    const int at = reaches(distance) ? 1 : link(distance);
    if (at > 0 && reaches(distance + sizeof(V) - nbytes) && (address_ + distance) % alignof(V) == 0) [[likely]]
      return simt::load_device(reinterpret_cast<const V*>(address_ + distance));
    if (!reaches(distance + sizeof(V) - nbytes)) unlink();  // a lane that waits for another page holds none
    V value{};
    keep(Access::template access_elsewhere<false>(from_, handler(), within(), position() + distance, &value, sizeof(V),
                                                  at < 0 ? at : 0));
    return value;
  }

  // Reads N elements, `stride` elements apart, the first at this position. One check and N loads in flight where they lie in one
  // page, as in kernels that read in tiles; else one by one.
  template <unsigned N>
  GPUFS_DEVICE elements<plain, N> read_tile(std::uint32_t stride) const {
    const std::uint64_t end = bytes((N - 1) * static_cast<difference_type>(stride));
    const auto in_place = [&] {
      elements<plain, N> tile;
      const auto* first = reinterpret_cast<const plain*>(address_);
      for (unsigned k = 0; k < N; ++k) tile.values[k] = simt::load_device(first + k * stride);
      return tile;
    };
    // Apart from what follows a fault, so that what that needs takes no registers from a loop of hits.
    if (reaches(0) && reaches(end)) [[likely]]
      return in_place();
    const int at = reaches(0) ? 1 : link(0);
    if (at > 0 && reaches(end)) return in_place();
    unlink();
    const std::uint64_t begin = position();
    elements<std::uint64_t, N> positions;
    for (unsigned k = 0; k < N; ++k) positions.values[k] = begin + bytes(static_cast<difference_type>(k) * stride);
    int error = at < 0 ? at : 0;
    return link_type::template read_rest<true>(elements<plain, N>{}, positions, 0, error);
  }

  // Reads N elements, at[k] elements from here, wherever in the mapping they lie, and links to none: for accesses that come back to
  // no page, such as a gather by index. N look-ups are under way at once, without pins (detail/unpinned.hpp); what is not in the
  // cache is brought in as for any access, and then the pointer gives its own page up. One that is not linked is not changed, so
  // that threads may share it.
  template <unsigned N>
  GPUFS_DEVICE elements<plain, N> gather(const difference_type (&at)[N]) const {
    static_assert(N <= 32);
    const std::uint64_t here = position();
    elements<std::uint64_t, N> positions;
    for (unsigned k = 0; k < N; ++k) positions.values[k] = here + bytes(at[k]);
    const auto got = detail::read_unpinned<may_straddle, plain>(from_, within(), positions);
    struct site;
    const bool together = simt::lanes_together<site>().mask() == ~0u;
    const bool all = got.read == ~0u >> (32 - N);
    if (together ? simt::this_warp().all(all) : all) [[likely]]
      return got.values;
    unlink();  // a lane that waits for another page holds none
    int error = 0;
    return link_type::template read_rest<false>(got.values, positions, got.read, error);
  }

  // Links to the element's page if it is not linked to it: 0, or the errno of why it is not to be had, which is recorded as any
  // access's. An element that straddles pages is never linked, and gives 0. Not recorded is -ENOMEM, that there is no frame (or
  // -EMFILE, that the page has millions of pins): it can be read all the same, but not written.
  GPUFS_DEVICE int fault_in() const {
    if (reaches(0)) return 0;
    const int at = link(0);
    if (at > 0) return 0;
    if (detail::is_unpinnable(at)) return at;
    if (at < 0) {
      simt::call_cold(&detail::note_failed_read, from_, at_distance(0), at);
      return keep(at);
    }
    plain value{};
    return read_apart(0, 0, value);
  }
  // Gives the page up; the next access faults.
  using link_type::unlink;

  // Atomics on the file's element, of device scope; pages are in device memory. For T of 4 or 8 bytes, aligned. An access that
  // fails gives 0.
  GPUFS_DEVICE plain fetch_add(plain value, std::memory_order order) const requires(writable&& std::is_integral_v<plain>) {
    return atomically([&](auto ref) { return ref.fetch_add(value, order); });
  }
  GPUFS_DEVICE plain fetch_sub(plain value, std::memory_order order) const requires(writable&& std::is_integral_v<plain>) {
    return atomically([&](auto ref) { return ref.fetch_sub(value, order); });
  }
  GPUFS_DEVICE plain fetch_or(plain value, std::memory_order order) const requires(writable&& std::is_integral_v<plain>) {
    return atomically([&](auto ref) { return ref.fetch_or(value, order); });
  }
  GPUFS_DEVICE plain fetch_and(plain value, std::memory_order order) const requires(writable&& std::is_integral_v<plain>) {
    return atomically([&](auto ref) { return ref.fetch_and(value, order); });
  }
  GPUFS_DEVICE plain fetch_min(plain value, std::memory_order order) const requires(writable&& std::is_integral_v<plain>) {
    return atomically([&](auto ref) { return ref.fetch_min(value, order); });
  }
  GPUFS_DEVICE plain fetch_max(plain value, std::memory_order order) const requires(writable&& std::is_integral_v<plain>) {
    return atomically([&](auto ref) { return ref.fetch_max(value, order); });
  }
  GPUFS_DEVICE plain exchange(plain value, std::memory_order order) const requires writable {
    return atomically([&](auto ref) { return ref.exchange(value, order); });
  }
  // True when the element was `expected` and is `desired` now; else `expected` is what was found. An access that fails gives false
  // and leaves `expected`, and is recorded: a loop around it looks at error(), too, or does not end.
  GPUFS_DEVICE bool compare_exchange(plain& expected, plain desired, std::memory_order order) const requires writable {
    bool done = false;
    plain seen = expected;
    atomically([&](auto ref) {
      done = ref.compare_exchange(seen, desired, order);
      return seen;
    });
    expected = seen;
    return done;
  }

  GPUFS_DEVICE_IN_TEMPLATES ptr& operator+=(difference_type n) {
    address_ += bytes(n);
    return *this;
  }
  GPUFS_DEVICE_IN_TEMPLATES ptr& operator-=(difference_type n) { return *this += -n; }
  GPUFS_DEVICE_IN_TEMPLATES ptr& operator++() { return *this += 1; }
  GPUFS_DEVICE_IN_TEMPLATES ptr& operator--() { return *this += -1; }
  GPUFS_DEVICE_IN_TEMPLATES ptr operator++(int) {
    ptr before(static_cast<const ptr&>(*this));
    ++*this;
    return before;
  }
  GPUFS_DEVICE_IN_TEMPLATES ptr operator--(int) {
    ptr before(static_cast<const ptr&>(*this));
    --*this;
    return before;
  }
  GPUFS_DEVICE_IN_TEMPLATES friend ptr operator+(const ptr& p, difference_type n) {
    ptr sum(p);
    sum.address_ += bytes(n);
    return sum;
  }
  GPUFS_DEVICE_IN_TEMPLATES friend ptr operator+(difference_type n, const ptr& p) { return p + n; }
  GPUFS_DEVICE_IN_TEMPLATES friend ptr operator-(const ptr& p, difference_type n) { return p + -n; }
  // Of pointers into one mapping, in elements; so are <, > and so on.
  GPUFS_DEVICE_IN_TEMPLATES friend difference_type operator-(const ptr& a, const ptr& b) {
    return static_cast<difference_type>(a.position() - b.position()) / static_cast<difference_type>(nbytes);
  }
  // Whether they point to the same byte of the same open file, in the same form; their bounds and flags may differ. Pointers
  // that map refused compare as null ones.
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator==(const ptr& a, const ptr& b) {
    return a.position() == b.position() && detail::same_mapping(a.from_, b.from_);
  }
  // Four, as std::strong_ordering's operators are for the host only.
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator<(const ptr& a, const ptr& b) { return a.offset() < b.offset(); }
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator>(const ptr& a, const ptr& b) { return b < a; }
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator<=(const ptr& a, const ptr& b) { return !(b < a); }
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator>=(const ptr& a, const ptr& b) { return !(a < b); }

  // How gpufs::map makes one.
  GPUFS_DEVICE ptr(mapping_name from, const detail::bounds& where, const handler_type& how) : link_type(from, where, how) {}

 private:
  template <class, class>
  friend class ptr;
  friend class element<plain, Access>;
  friend struct detail::walk;
  friend struct detail::updates;

  using link_type::address_, link_type::at_distance, link_type::bytes, link_type::copy_position, link_type::end_,
      link_type::end_bits, link_type::end_mask, link_type::fail_write, link_type::first_, link_type::from_, link_type::handler,
      link_type::keep, link_type::link, link_type::may_change, link_type::may_straddle, link_type::position, link_type::reaches,
      link_type::read, link_type::read_apart, link_type::read_rest, link_type::span_, link_type::take, link_type::try_read,
      link_type::write, link_type::write_unless;
  GPUFS_DEVICE reference refer(std::uint64_t distance) const {
    if constexpr (writable) {
      return element<T, Access>(*this, distance);
    } else {
      return read(distance);
    }
  }
  template <class Do>
  GPUFS_DEVICE plain atomically(Do what) const {
    static_assert((sizeof(T) == 4 || sizeof(T) == 8) && alignof(T) == sizeof(T),
                  "gpufs::ptr<T>: atomics are of 4 or 8 bytes, aligned");
    const int at = reaches(0) ? 1 : link(0);
    if (at <= 0) [[unlikely]] {
      fail_write(0, at);
      return plain{};
    }
    if (!may_change(0)) return plain{};
    return what(simt::atomic_ref<plain>(*reinterpret_cast<plain*>(address_)));
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
