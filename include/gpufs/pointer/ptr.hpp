// Active pointers: ptr<T> behaves like T*, and points into a file. After ActivePointers (ISCA'16), section III.
//
// A pointer is linked, and then holds one pin on one page and reads it with plain loads, or unlinked, and then holds a position
// only. Accessing an element of another page faults and links (link in fault.hpp). Moving out of the page by arithmetic, assignment
// and destruction unlink; so does accessing another page. Copies are unlinked; a moved-from pointer hands its link over.
//
// Any divergence is allowed: each lane uses its own pointer, and lanes that happen to fault together share the work. An access
// waits for a page to be brought in, as long as pread may. What cannot be had (beyond the mapping -ENXIO, no frame -ENOMEM, and
// what pread returns) reads as zeros, is not written, and is counted and logged by the mount; or stops the kernel
// (map_flags::stop_on_error).
#pragma once
#include <cstddef>
#include <iterator>
#include <type_traits>

#include "gpufs/pointer/fault.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What a pointer is compiled with. Handler: who works on pages that are brought in. Its static functions are the slow paths: bench/
// puts the paper's other designs in their place.
template <class Handler>
struct handled_by {
  using handler = Handler;

  // See detail::link, leave, access_elsewhere.
  template <bool Wrote>
  GPUFS_DEVICE static translation link(const mapping& from, const Handler& how, std::uint64_t position, std::uint32_t nbytes,
                                       std::uint64_t held) {
    return simt::call_cold(&detail::link<Handler, Wrote>, from, how, position, nbytes, held);
  }
  template <bool Wrote>
  GPUFS_DEVICE static void leave(const mapping& from, std::uint64_t held) {
    simt::call_cold(&detail::leave<Wrote>, from.mount, held);
  }
  template <bool Write>
  GPUFS_DEVICE static int access_elsewhere(const mapping& from, const Handler& how, std::uint64_t position, void* bytes,
                                           std::uint32_t nbytes) {
    return simt::call_cold(&detail::access_elsewhere<Handler, Write>, from, how, position, static_cast<std::byte*>(bytes), nbytes);
  }
};
using plain_access = handled_by<no_handler>;

template <class T, class Access = plain_access>
class ptr;

// What *p and p[i] of a writable pointer are: reads when converted, writes when assigned to. Lives no longer than its pointer.
template <class T, class Access>
class element {
 public:
  GPUFS_DEVICE_IN_TEMPLATES operator T() const { return owner_.read(position_); }
  GPUFS_DEVICE_IN_TEMPLATES const element& operator=(const T& value) const {
    owner_.write(position_, value);
    return *this;
  }
  GPUFS_DEVICE_IN_TEMPLATES const element& operator=(const element& other) const { return *this = static_cast<T>(other); }
  GPUFS_DEVICE const element& operator+=(const T& value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
  GPUFS_DEVICE const element& operator-=(const T& value) const { return *this = static_cast<T>(static_cast<T>(*this) - value); }
  GPUFS_DEVICE const element& operator*=(const T& value) const { return *this = static_cast<T>(static_cast<T>(*this) * value); }
  GPUFS_DEVICE const element& operator/=(const T& value) const { return *this = static_cast<T>(static_cast<T>(*this) / value); }

 private:
  friend class ptr<T, Access>;
  GPUFS_DEVICE element(const ptr<T, Access>& owner, std::uint64_t position) : owner_(owner), position_(position) {}

  const ptr<T, Access>& owner_;
  std::uint64_t position_;
};

// Dereferencing links and so changes the object even where it is const: threads that share a pointer (in global or shared memory)
// each copy it first. All zero bytes are a null pointer, so that arrays of pointers may start as zeroed memory.
template <class T, class Access>
class ptr {
  using plain = std::remove_cv_t<T>;
  using handler_type = typename Access::handler;
  static constexpr bool writable = !std::is_const_v<T>;
  static constexpr std::uint32_t nbytes = sizeof(T);
  static_assert(std::is_object_v<T> && std::is_trivially_copyable_v<T>, "gpufs::ptr<T>: files hold trivially copyable objects");
  static_assert(!std::is_volatile_v<T>, "gpufs::ptr<T>: T must not be volatile");
  static_assert(!writable || std::is_empty_v<handler_type>,
                "gpufs::ptr<T>: pages made by a fault handler are read-only: ptr<const T>");

 public:
  using element_type = T;
  using value_type = plain;
  using difference_type = std::ptrdiff_t;
  using reference = std::conditional_t<writable, element<T, Access>, plain>;
  using pointer = void;
  using iterator_category = std::random_access_iterator_tag;

  GPUFS_DEVICE constexpr ptr() {}  // null
  GPUFS_DEVICE constexpr ptr(std::nullptr_t) {}
  GPUFS_DEVICE ptr(const ptr& other) : from_(other.from_), handler_(other.handler_), position_(other.position_) {}
  GPUFS_DEVICE ptr(ptr&& other) noexcept : ptr(static_cast<const ptr&>(other)) { take_link(other); }
  // To read-only.
  GPUFS_DEVICE ptr(const ptr<plain, Access>& other) requires(!writable)
      : from_(other.from_), handler_(other.handler_), position_(other.position_) {}
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
    copy_position(other);
    take_link(other);
    return *this;
  }

  // Whether it points into a mapping. error(): 0, or why gpufs::map gave none.
  GPUFS_DEVICE explicit operator bool() const { return from_.mount != nullptr; }
  GPUFS_DEVICE int error() const { return from_.mount != nullptr ? 0 : from_.number; }
  // Whether it holds a pin just now.
  GPUFS_DEVICE bool linked() const { return at_.span != 0; }
  // The byte of the file that it points to.
  GPUFS_DEVICE std::int64_t offset() const { return static_cast<std::int64_t>(position_); }

  GPUFS_DEVICE_IN_TEMPLATES reference operator*() const { return refer(position_); }
  GPUFS_DEVICE_IN_TEMPLATES reference operator[](difference_type i) const { return refer(position_ + bytes(i)); }

  // What `->` goes through: a copy of the element.
  class arrow {
   public:
    GPUFS_DEVICE explicit arrow(const plain& value) : value_(value) {}
    GPUFS_DEVICE const plain* operator->() const { return &value_; }

   private:
    plain value_;
  };
  GPUFS_DEVICE arrow operator->() const { return arrow(read(position_)); }

  // Reads a V (uint4, say) at this position: by one load where V's alignment and the page allow, else piece by piece.
  template <class V>
  GPUFS_DEVICE V load(difference_type i = 0) const {
    static_assert(std::is_trivially_copyable_v<V> && sizeof(V) % sizeof(T) == 0,
                  "gpufs::ptr<T>::load<V>: V is a whole number of T");
    const std::uint64_t position = position_ + bytes(i);
    if (reach(position) && at_.last - position + nbytes >= sizeof(V) && (position + at_.delta) % alignof(V) == 0) [[likely]]
      return *reinterpret_cast<const V*>(position + at_.delta);
    V value{};
    Access::template access_elsewhere<false>(from_, handler_, position, &value, sizeof(V));
    return value;
  }

  GPUFS_DEVICE const mapping& mapped() const { return from_; }

  // Links to the element's page if it is not linked to it: 0, or the errno of why it is not to be had. An element that straddles
  // pages is never linked, and gives 0.
  GPUFS_DEVICE int fault_in() const {
    if (reach(position_)) return 0;
    plain value{};
    return Access::template access_elsewhere<false>(from_, handler_, position_, &value, nbytes);
  }
  // Gives the page up; the next access faults.
  GPUFS_DEVICE void unlink() const {
    if (!linked()) return;
    Access::template leave<writable>(from_, held());
    at_.span = 0;
    changes_ = {};
  }

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
  GPUFS_DEVICE plain exchange(plain value, std::memory_order order) const requires writable {
    return atomically([&](auto ref) { return ref.exchange(value, order); });
  }
  // True when the element was `expected` and is `desired` now; else `expected` is what was found.
  GPUFS_DEVICE bool compare_exchange(plain& expected, plain desired, std::memory_order order) const requires writable {
    bool done = false;
    expected = atomically([&](auto ref) {
      plain seen = expected;
      done = ref.compare_exchange(seen, desired, order);
      return seen;
    });
    return done;
  }

  GPUFS_DEVICE_IN_TEMPLATES ptr& operator+=(difference_type n) {
    const std::uint64_t before = position_;
    position_ += bytes(n);
    // Left the page; a pointer that was linked by [] may have been elsewhere before, and stays so.
    if (linked() && !at_.reaches(position_) && at_.reaches(before)) unlink();
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
    sum.position_ += bytes(n);
    return sum;
  }
  GPUFS_DEVICE_IN_TEMPLATES friend ptr operator+(difference_type n, const ptr& p) { return p + n; }
  GPUFS_DEVICE_IN_TEMPLATES friend ptr operator-(const ptr& p, difference_type n) { return p + -n; }
  // Of pointers into one mapping, in elements.
  GPUFS_DEVICE_IN_TEMPLATES friend difference_type operator-(const ptr& a, const ptr& b) {
    return static_cast<difference_type>(a.position_ - b.position_) / static_cast<difference_type>(nbytes);
  }
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator==(const ptr& a, const ptr& b) {
    return a.position_ == b.position_ && (a.from_.mount == nullptr) == (b.from_.mount == nullptr);
  }
  // By position. Not operator<=>: nvcc does not let device code compare a std::strong_ordering.
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator<(const ptr& a, const ptr& b) {
    return static_cast<std::int64_t>(a.position_) < static_cast<std::int64_t>(b.position_);
  }
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator>(const ptr& a, const ptr& b) { return b < a; }
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator<=(const ptr& a, const ptr& b) { return !(b < a); }
  GPUFS_DEVICE_IN_TEMPLATES friend bool operator>=(const ptr& a, const ptr& b) { return !(a < b); }

  // How gpufs::map makes one.
  GPUFS_DEVICE ptr(const mapping& from, const handler_type& handler) : from_(from), handler_(handler), position_(from.begin) {}

 private:
  template <class, class>
  friend class ptr;
  friend class element<plain, Access>;
  struct nothing {};
  struct change_mark {
    bool marked = false;  // the linked page is marked as changed
  };

  GPUFS_DEVICE static std::uint64_t bytes(difference_type n) { return static_cast<std::uint64_t>(n) * nbytes; }
  GPUFS_DEVICE std::uint64_t held() const { return at_.last + at_.delta; }  // an address in the linked page

  GPUFS_DEVICE void copy_position(const ptr& other) {
    from_ = other.from_;
    handler_ = other.handler_;
    position_ = other.position_;
  }
  GPUFS_DEVICE void take_link(ptr& other) {
    at_ = other.at_;
    changes_ = other.changes_;
    other.at_.span = 0;
    other.changes_ = {};
  }

  // Whether `position` can be accessed in place, now.
  GPUFS_DEVICE bool reach(std::uint64_t position) const {
    if (!at_.reaches(position)) [[unlikely]] {
      at_ = Access::template link<writable>(from_, handler_, position, nbytes, linked() ? held() : 0);
      changes_ = {};
    }
    return at_.span != 0;
  }
  GPUFS_DEVICE plain read(std::uint64_t position) const {
    if (reach(position)) [[likely]]
      return *reinterpret_cast<const plain*>(position + at_.delta);
    plain value{};
    Access::template access_elsewhere<false>(from_, handler_, position, &value, nbytes);
    return value;
  }
  GPUFS_DEVICE void write(std::uint64_t position, plain value) const {
    if (reach(position)) [[likely]] {
      mark();
      *reinterpret_cast<plain*>(position + at_.delta) = value;
    } else {
      Access::template access_elsewhere<true>(from_, handler_, position, &value, nbytes);
    }
  }
  GPUFS_DEVICE void mark() const {
    if (changes_.marked) return;
    simt::call_cold(&detail::mark_dirty, from_.mount, held());
    changes_.marked = true;
  }
  GPUFS_DEVICE reference refer(std::uint64_t position) const {
    if constexpr (writable) {
      return element<T, Access>(*this, position);
    } else {
      return read(position);
    }
  }
  template <class Do>
  GPUFS_DEVICE plain atomically(Do what) const {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "gpufs::ptr<T>: atomics are of 4 or 8 bytes");
    if (reach(position_)) [[likely]] {
      mark();
      return what(simt::atomic_ref<plain>(*reinterpret_cast<plain*>(position_ + at_.delta)));
    }
    plain none{};
    Access::template access_elsewhere<false>(from_, handler_, position_, &none, nbytes);
    return plain{};
  }

  mapping from_{};
  [[no_unique_address]] handler_type handler_{};
  std::uint64_t position_ = 0;
  mutable translation at_{};
  [[no_unique_address]] mutable std::conditional_t<writable, change_mark, nothing> changes_{};
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
