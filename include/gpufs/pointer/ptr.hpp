// SPDX-License-Identifier: Apache-2.0
// Active pointers: ptr<T> behaves like T*, and points into a file. After ActivePointers (ISCA'16), section III.
//
// A pointer is linked, and then holds a pin on a page, or on several side by side, and reads them with plain loads, or unlinked,
// and then holds a position only. Accessing an element elsewhere faults, gives the pages up and links there (fault.hpp); assignment
// and destruction unlink. Arithmetic only moves: a pointer that has left its page holds it until the next access, so that walking
// costs an addition. Copies are unlinked; a moved-from pointer hands its link over.
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

#include "gpufs/pointer/unpinned.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What a pointer is compiled with: who works on pages that are brought in, and the slow paths.
template <class Handler>
struct handled_by {
  static_assert(std::is_trivially_copyable_v<Handler> && std::is_default_constructible_v<Handler> && sizeof(Handler) <= 64,
                "gpufs: a fault handler is trivially copyable, default constructible, and has at most 64 bytes");
  using handler = Handler;

  // See detail::pin_hit and pin_rest, leave, access_elsewhere. held: the pages that are to be given back.
  template <bool Wrote, detail::walking Walks>
  GPUFS_DEVICE static std::uint64_t pin_hit(mapping_name from, std::uint32_t page, detail::room around,
                                            const detail::held_pages& held) {
    return detail::pin_hit<Wrote, Walks>(from, page, around, held);
  }
  template <bool Wrote>
  GPUFS_DEVICE static std::int64_t pin_rest(mapping_name from, const Handler& how, std::uint32_t page, std::uint64_t pinned,
                                            const detail::held_pages& held) {
    return simt::call_cold(&detail::pin_rest<Handler, Wrote>, from, how, page, pinned, held);
  }
  template <bool Wrote>
  GPUFS_DEVICE static void leave(mapping_name from, const detail::held_pages& held) {
    simt::call_cold(&detail::leave<Wrote>, from, held);
  }
  template <bool Write>
  GPUFS_DEVICE static int access_elsewhere(mapping_name from, const Handler& how, const detail::bounds& within,
                                           std::uint64_t position, void* bytes, std::uint32_t nbytes, int error) {
    return simt::call_cold(&detail::access_elsewhere<Handler, Write>, from, how, within, position, static_cast<std::byte*>(bytes),
                           nbytes, error);
  }
  GPUFS_DEVICE static int gather_elsewhere(mapping_name from, const Handler& how, const detail::bounds& within,
                                           const std::uint64_t* positions, void* bytes, std::uint32_t nbytes, std::uint32_t count,
                                           std::uint32_t done, int error) {
    return simt::call_cold(&detail::gather_elsewhere<Handler>, from, how, within, positions, static_cast<std::byte*>(bytes), nbytes,
                           count, done, error);
  }
};
using plain_access = handled_by<no_handler>;

namespace detail {

// What some pointers keep beside their position: a handler, or what the linked page is to their writes; none keeps both. A
// base, as [[no_unique_address]] members make nvcc 13.0 step wrongly through arrays of such objects.
template <class Handler, bool Writable>
class kept_by_ptr {
 protected:
  GPUFS_DEVICE constexpr kept_by_ptr() {}
  GPUFS_DEVICE explicit kept_by_ptr(const Handler& how) : handler_(how) {}
  GPUFS_DEVICE const Handler& handler() const { return handler_; }
  GPUFS_DEVICE void set_handler(const Handler& how) { handler_ = how; }
  GPUFS_DEVICE static constexpr page_mark mark() { return page_mark::none; }
  GPUFS_DEVICE static void set_mark(page_mark) {}

 private:
  Handler handler_{};
};
template <>
class kept_by_ptr<no_handler, false> {
 protected:
  GPUFS_DEVICE constexpr kept_by_ptr() {}
  GPUFS_DEVICE explicit kept_by_ptr(no_handler) {}
  GPUFS_DEVICE static no_handler handler() { return {}; }
  GPUFS_DEVICE static void set_handler(no_handler) {}
  GPUFS_DEVICE static constexpr page_mark mark() { return page_mark::none; }
  GPUFS_DEVICE static void set_mark(page_mark) {}
};
template <>
class kept_by_ptr<no_handler, true> : protected kept_by_ptr<no_handler, false> {
 protected:
  using kept_by_ptr<no_handler, false>::kept_by_ptr;
  GPUFS_DEVICE page_mark mark() const { return mark_; }
  GPUFS_DEVICE void set_mark(page_mark is) const { mark_ = is; }

 private:
  mutable page_mark mark_ = page_mark::none;
};

struct walk;  // for_each.hpp

}  // namespace detail

template <class T, class Access = plain_access>
class ptr;

// What *p and p[i] of a writable pointer are: reads when converted, writes when assigned to. Lives no longer than its pointer.
template <class T, class Access>
class element {
 public:
  GPUFS_DEVICE_IN_TEMPLATES operator T() const { return owner_.read(distance_); }
  GPUFS_DEVICE_IN_TEMPLATES const element& operator=(const T& value) const {
    owner_.write(distance_, value);
    return *this;
  }
  // Where reading fails, nothing is written, and that is told as a failed write.
  GPUFS_DEVICE_IN_TEMPLATES const element& operator=(const element& other) const {
    T value{};
    const int error = other.owner_.try_read(other.distance_, value);
    owner_.write_unless(error == 0 ? 0 : other.why_not_read(error), distance_, value);
    owner_.keep(error);
    return *this;
  }
  GPUFS_DEVICE const element& operator+=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now + value); });
  }
  GPUFS_DEVICE const element& operator-=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now - value); });
  }
  GPUFS_DEVICE const element& operator*=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now * value); });
  }
  GPUFS_DEVICE const element& operator/=(const T& value) const {
    return change([&](const T& now) { return static_cast<T>(now / value); });
  }

 private:
  friend class ptr<T, Access>;
  GPUFS_DEVICE element(const ptr<T, Access>& owner, std::uint64_t distance) : owner_(owner), distance_(distance) {}
  // The error of a failed read, as the file that would have been written is to report it: -ENXIO only where this pointer was out of
  // its bounds; -EIO where its file has lost the page.
  GPUFS_DEVICE int why_not_read(int error) const {
    if (!owner_) return -ENXIO;
    return error == -ENXIO && owner_.within().have(owner_.position() + distance_, sizeof(T)) ? -EIO : error;
  }
  template <class Do>
  GPUFS_DEVICE const element& change(Do what) const {
    T value{};
    const int error = owner_.try_read(distance_, value);
    owner_.write_unless(error, distance_, error == 0 ? what(value) : value);
    return *this;
  }

  const ptr<T, Access>& owner_;
  std::uint64_t distance_;  // bytes from where the owner points
};

// Dereferencing links and so changes the object even where it is const: threads that share a pointer (in global or shared memory)
// each copy it first. All zero bytes are a null pointer, so that arrays of pointers may start as zeroed memory.
template <class T, class Access>
class ptr : private detail::kept_by_ptr<typename Access::handler, !std::is_const_v<T>> {
  using kept = detail::kept_by_ptr<typename Access::handler, !std::is_const_v<T>>;
  using kept::handler;
  using kept::mark;
  using kept::set_handler;
  using kept::set_mark;
  using plain = std::remove_cv_t<T>;
  using handler_type = typename Access::handler;
  static constexpr bool writable = !std::is_const_v<T>;
  static constexpr std::uint32_t nbytes = sizeof(T);
  // Mappings begin at multiples of the alignment.
  static constexpr bool may_straddle = alignof(T) != sizeof(T) || sizeof(T) > least_page_nbytes;
  // Whether several pages may be linked at once: what is noted of writes is of one page.
  static constexpr bool links_runs = !writable && !may_straddle;
  static_assert(std::is_object_v<T> && std::is_trivially_copyable_v<T>, "gpufs::ptr<T>: files hold trivially copyable objects");
  static_assert(!std::is_volatile_v<T>, "gpufs::ptr<T>: T must not be volatile");
  static_assert(!writable || std::is_same_v<handler_type, no_handler>,
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
  GPUFS_DEVICE ptr(const ptr& other) : kept() { copy_position(other); }
  GPUFS_DEVICE ptr(ptr&& other) noexcept : kept() { take(other); }
  // From ptr<T> to ptr<const T>. A template, so that a copy does not ask what a ptr<T> is, which with a handler there is none of.
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
  GPUFS_DEVICE bool linked() const { return span_ != 0; }
  // The byte of the file that it points to.
  GPUFS_DEVICE std::int64_t offset() const { return static_cast<std::int64_t>(position()); }
  // The part of the file that it may access, in bytes.
  GPUFS_DEVICE detail::bounds within() const { return {begin_, end_ & end_mask}; }
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
    const std::int64_t at = reaches(distance) ? 1 : link(distance);
    if (at > 0 && reaches(distance + sizeof(V) - nbytes) && (address_ + distance) % alignof(V) == 0) [[likely]]
      return simt::load_device(reinterpret_cast<const V*>(address_ + distance));
    if (!reaches(distance + sizeof(V) - nbytes)) unlink();  // who waits for another page holds none
    V value{};
    keep(Access::template access_elsewhere<false>(from_, handler(), within(), position() + distance, &value, sizeof(V),
                                                  static_cast<int>(at < 0 ? at : 0)));
    return value;
  }

  // Reads N elements, `stride` elements apart, the first at this position. One check and N loads in flight where they lie in one
  // page, as in kernels that read in tiles; else one by one.
  template <unsigned N>
  GPUFS_DEVICE elements<plain, N> read_tile(std::uint32_t stride) const {
    const std::uint64_t end = bytes((N - 1) * static_cast<difference_type>(stride));
    elements<plain, N> tile;
    const std::int64_t at = reaches(0) ? 1 : link(0);
    if (at > 0 && reaches(end)) [[likely]] {
      const auto* first = reinterpret_cast<const plain*>(address_);
      for (unsigned k = 0; k < N; ++k) tile.values[k] = simt::load_device(first + k * stride);
      return tile;
    }
    unlink();
    const std::uint64_t begin = position();
    elements<std::uint64_t, N> positions;
    for (unsigned k = 0; k < N; ++k) positions.values[k] = begin + bytes(static_cast<difference_type>(k) * stride);
    int error = static_cast<int>(at < 0 ? at : 0);
    const elements<plain, N> rest = read_rest(elements<plain, N>{}, positions, 0, error);
    keep(error);
    return rest;
  }

  // Reads N elements, at[k] elements from here, wherever in the mapping they lie, and links to none: for accesses that come back to
  // no page, such as a gather by index. N look-ups are under way at once, without pins (unpinned.hpp); what is not in the cache is
  // brought in as for any access, and then the pointer gives its own page up. One that is not linked is not changed, so that
  // threads may share it.
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
    unlink();  // who waits for another page holds none
    int error = 0;
    return read_rest(got.values, positions, got.read, error);
  }

  // Links to the element's page if it is not linked to it: 0, or the errno of why it is not to be had, which is recorded as any
  // access's. An element that straddles pages is never linked, and gives 0. Not recorded is -ENOMEM, that there is no frame (or
  // -EMFILE, that the page has millions of pins): it can be read all the same, but not written.
  GPUFS_DEVICE int fault_in() const {
    if (reaches(0)) return 0;
    const std::int64_t at = link(0);
    if (at > 0) return 0;
    if (detail::is_unpinnable(static_cast<int>(at))) return static_cast<int>(at);
    if (at < 0) {
      simt::call_cold(&detail::note_failed_read, from_, at_distance(0), static_cast<int>(at));
      return keep(static_cast<int>(at));
    }
    plain value{};
    return read_apart(0, 0, value);
  }
  // Gives the page up; the next access faults.
  GPUFS_DEVICE void unlink() const {
    if (!linked()) return;
    const detail::held_pages held{first_, span_};
    span_ = 0;
    end_stores();
    address_ = position();
    shift_ = 0;
    Access::template leave<writable>(from_, held);
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
  // Whether they point to the same byte of the same open file, seen in the same view; their bounds and flags may differ. Pointers
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
  GPUFS_DEVICE ptr(mapping_name from, const detail::bounds& within, const handler_type& how)
      : kept(how), address_(within.begin), from_(from), begin_(within.begin), end_(within.end & end_mask) {}

 private:
  template <class, class>
  friend class ptr;
  friend class element<plain, Access>;
  friend struct detail::walk;

  GPUFS_DEVICE static std::uint64_t bytes(difference_type n) { return static_cast<std::uint64_t>(n) * nbytes; }
  GPUFS_DEVICE std::uint64_t position() const { return address_ + shift_; }
  // Whether the element that many bytes on lies in what is linked. In this order, the address is computed beside it.
  GPUFS_DEVICE bool reaches(std::uint64_t distance) const { return distance + (address_ - first_) < span_; }

  template <class Other>
  GPUFS_DEVICE void copy_position(const Other& other) {
    address_ = other.address_;
    shift_ = other.shift_;
    from_ = other.from_;
    begin_ = other.begin_;
    end_ = other.end_;
    set_handler(other.handler());
  }
  GPUFS_DEVICE void take(ptr& other) {
    copy_position(other);
    first_ = other.first_;
    span_ = other.span_;
    set_mark(other.mark());
    other.span_ = 0;
    other.set_mark(detail::page_mark::none);
  }

  // Where the pointer is and what it may access. Looked at before a call and where it is wanted after it, as registers that a call
  // keeps are few, and these are wanted in faults only.
  struct whereabouts {
    std::uint64_t here;
    detail::bounds within;
    mapping_name from;
    std::uint32_t page_shift;

    // The page of an element.
    GPUFS_DEVICE std::uint32_t page_of(std::uint64_t position) const {
      return detail::page_of<may_straddle>(page_shift, within, position, nbytes);
    }
    // The pages of the mapping around an element's page, where several may be linked at once, in a walk that goes so many bytes on.
    GPUFS_DEVICE detail::room around(std::uint32_t page, std::uint64_t position, std::uint64_t walk) const {
      if (!links_runs) return {page, page, page};
      const std::uint64_t last = within.end - nbytes;
      const auto page_at = [&](std::uint64_t at) { return static_cast<std::uint32_t>(at >> page_shift); };
      return {page_at(within.begin), page_at(last), page_at(last - position < walk ? last : position + walk)};
    }
  };
  GPUFS_DEVICE whereabouts look() const {
    const mapping_name from = from_;
    return {simt::only_here(address_) + shift_, within(), from, detail::page_shift_of(from)};
  }

  // Links to the page of the element that many bytes on: > 0; or is not linked then: 0: the element does not lie in one page, or a
  // negative errno, not recorded yet. walk: how many bytes a walk goes on from there (walking::surely).
  template <detail::walking Walks = detail::walking::as_seen>
  GPUFS_DEVICE std::int64_t link(std::uint64_t distance, std::uint64_t walk = ~std::uint64_t{0}) const {
    const detail::held_pages held{first_, span_};
    span_ = 0;  // a lane that is unwound meanwhile (CPU machine) does not give the page up twice
    end_stores();
    constexpr detail::walking walks = links_runs ? Walks : detail::walking::as_seen;
    auto at = static_cast<std::int64_t>(pin<walks>(distance, held, walk));
    std::uint32_t npages = 1, before = 0;
    if (detail::is_done(static_cast<std::uint64_t>(at))) [[likely]] {
      npages = detail::count_of(static_cast<std::uint64_t>(at));
      before = detail::before_of(static_cast<std::uint64_t>(at));
      at = static_cast<std::int64_t>(detail::address_in(static_cast<std::uint64_t>(at)));
    } else {
      at = pin_rest(distance, static_cast<std::uint64_t>(at), held);
    }
    const whereabouts now = look();
    const std::uint64_t wanted = now.here + distance;
    if (at <= 0) [[unlikely]] {
      address_ = now.here;
      shift_ = 0;
      return at < 0 || now.within.have(wanted, nbytes) ? at : -ENXIO;
    }
    // The elements of the pages that are within the bounds.
    const std::uint64_t begin = ((wanted >> now.page_shift) - before) << now.page_shift;
    const std::uint64_t end = begin + (std::uint64_t{npages} << now.page_shift);
    const std::uint64_t first = now.within.begin > begin ? now.within.begin : begin;
    const std::uint64_t last = (now.within.end < end ? now.within.end : end) - nbytes;
    const std::uint64_t page_address = static_cast<std::uint64_t>(at) - (std::uint64_t{before} << now.page_shift);
    first_ = page_address + (first - begin);
    span_ = static_cast<std::uint32_t>(last - first) + 1;
    address_ = page_address + (now.here - begin);
    shift_ = begin - page_address;
    return at;
  }
  template <detail::walking Walks>
  GPUFS_DEVICE std::uint64_t pin(std::uint64_t distance, const detail::held_pages& held, std::uint64_t walk) const {
    const whereabouts now = look();
    const std::uint64_t position = now.here + distance;
    const std::uint32_t page = now.page_of(position);
    return Access::template pin_hit<writable, Walks>(now.from, page, now.around(page, position, walk), held);
  }
  // What pin_hit has left.
  GPUFS_DEVICE std::int64_t pin_rest(std::uint64_t distance, std::uint64_t pinned, const detail::held_pages& held) const {
    const whereabouts now = look();
    const std::uint32_t page = now.page_of(now.here + distance);
    return Access::template pin_rest<writable>(now.from, handler(), page, pinned, held);
  }
  GPUFS_DEVICE plain read(std::uint64_t distance) const {
    const bool here = reaches(distance);
    const plain value = simt::load_device_if(here, reinterpret_cast<const plain*>(address_ + distance));
    if (!here) [[unlikely]]
      return read_elsewhere(distance);
    return value;
  }
  GPUFS_DEVICE plain read_elsewhere(std::uint64_t distance) const {
    const std::int64_t page = link(distance);
    if (page > 0) [[likely]]
      return simt::load_device(reinterpret_cast<const plain*>(address_ + distance));
    plain value{};
    read_apart(distance, static_cast<int>(page), value);
    return value;
  }
  // Reads an element that is not linked; error: why not, or 0. 0, or the negative errno of why it could not be read.
  GPUFS_DEVICE int read_apart(std::uint64_t distance, int error, plain& value) const {
    return keep(Access::template access_elsewhere<false>(from_, handler(), within(), position() + distance, &value, nbytes, error));
  }
  // Of accesses that failed, error() tells the first.
  GPUFS_DEVICE int keep(int error) const {
    if (error != 0) [[unlikely]] {
      const std::uint64_t end = end_;
      const auto code = static_cast<std::uint64_t>(-error);
      if (end >> end_bits == 0) end_ = end | (code >> (64 - end_bits) == 0 ? code : EIO) << end_bits;  // a handler's may be any
    }
    return error;
  }
  GPUFS_DEVICE detail::accessed at_distance(std::uint64_t distance) const { return {within(), position() + distance, nbytes}; }
  GPUFS_DEVICE void fail_write(std::uint64_t distance, int error) const {
    simt::call_cold(&detail::note_failed_write, from_, at_distance(distance), error);
    keep(error);
  }
  // What is not done of `got`; error: why the first is not linked, then of the first that failed. (Other objects than those that
  // are mostly in registers have their addresses taken.)
  template <unsigned N>
  GPUFS_DEVICE elements<plain, N> read_rest(const elements<plain, N>& got, const elements<std::uint64_t, N>& positions,
                                            std::uint32_t done, int& error) const {
    const elements<std::uint64_t, N> where(positions);
    elements<plain, N> elsewhere, all;
    error = Access::gather_elsewhere(from_, handler(), within(), where.values, elsewhere.values, nbytes, N, done, error);
    for (unsigned k = 0; k < N; ++k) all.values[k] = (done >> k & 1) != 0 ? got.values[k] : elsewhere.values[k];
    return all;
  }
  // As read, for who writes what comes of it: 0, or the negative errno of why it failed, which is recorded.
  GPUFS_DEVICE int try_read(std::uint64_t distance, plain& value) const {
    const std::int64_t at = reaches(distance) ? 1 : link(distance);
    if (at > 0) [[likely]] {
      value = simt::load_device(reinterpret_cast<const plain*>(address_ + distance));
      return 0;
    }
    plain apart{};  // as `value` is mostly in registers
    const int error = read_apart(distance, static_cast<int>(at), apart);
    value = apart;
    return error;
  }
  GPUFS_DEVICE void write(std::uint64_t distance, plain value) const {
    const std::int64_t at = reaches(distance) ? 1 : link(distance);
    if (at > 0) [[likely]] {
      if (may_change(distance)) *reinterpret_cast<plain*>(address_ + distance) = value;
    } else if constexpr (may_straddle) {
      keep(Access::template access_elsewhere<true>(from_, handler(), within(), position() + distance, &value, nbytes,
                                                   static_cast<int>(at)));
    } else {
      fail_write(distance, static_cast<int>(at));
    }
  }
  // What is written comes of a read that gave this error, or 0: then nothing is written, and the file's next fsync or close tells
  // of it, unless that was the pointer's fault (-ENXIO). A source that is closed meanwhile is no error of this file's number.
  GPUFS_DEVICE void write_unless(int error, std::uint64_t distance, plain value) const {
    if (error == 0) [[likely]] {
      write(distance, value);
    } else {
      simt::call_cold(&detail::keep_write_error, from_, error == -EBADF ? -EIO : error);
    }
  }
  // Whether the linked page may be changed; false: recorded.
  GPUFS_DEVICE bool may_change(std::uint64_t distance) const {
    if (mark() != detail::page_mark::none) [[likely]]
      return true;
    const std::uint32_t span = span_;
    span_ = 0;  // a lane that is unwound meanwhile (CPU machine) keeps its pin: it may count among those who write the page
    const detail::begun_writing begun = simt::call_cold(&detail::begin_writing, from_, first_);
    span_ = span;
    set_mark(begun.mark);
    if (begun.error == 0) [[likely]]
      return true;
    if (begun.error == -ENOMEM) unlink();  // others wait for frames as we did
    fail_write(distance, begun.error);
    return false;
  }
  // Before the page at first_ is given up, with span_ 0 (as in may_change).
  GPUFS_DEVICE void end_stores() const {
    const detail::page_mark was = mark();
    set_mark(detail::page_mark::none);
    if (was == detail::page_mark::stored) [[unlikely]]
      keep(simt::call_cold(&detail::end_stores, from_, first_, at_distance(0)));
  }
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
    const std::int64_t at = reaches(0) ? 1 : link(0);
    if (at <= 0) [[unlikely]] {
      fail_write(0, static_cast<int>(at));
      return plain{};
    }
    if (!may_change(0)) return plain{};
    return what(simt::atomic_ref<plain>(*reinterpret_cast<plain*>(address_)));
  }

  // What an access in place needs: three of these. Its address and, while it is not linked, any two numbers whose sum is its
  // position.
  mutable std::uint64_t address_ = 0;
  mutable std::uint64_t first_ = 0;                 // the address of the first linked element within the bounds
  mutable std::uint32_t span_ = 0;                  // addresses that its elements may have; 0: not linked
  mutable simt::rarely_used<std::uint64_t> shift_;  // position - address
  simt::rarely_used<mapping_name> from_;
  simt::rarely_used<std::uint64_t> begin_;
  // In the high bits the errno of the first access that failed: files end below 2^53, at 2^32 pages of 2 MiB.
  mutable simt::rarely_used<std::uint64_t> end_;
  static constexpr unsigned end_bits = 53;
  static constexpr std::uint64_t end_mask = (std::uint64_t{1} << end_bits) - 1;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
