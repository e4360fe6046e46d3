// SPDX-License-Identifier: Apache-2.0
// What a pointer is made of: a position in a file, the pages that it is linked to, and accesses to elements there or elsewhere.
// ptr.hpp makes a T* of it.
#pragma once
#include <cstddef>

#include "gpufs/pointer/detail/access.hpp"
#include "gpufs/pointer/detail/unpinned.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

template <class T, class Access>
class page_link : protected kept_by_ptr<typename Access::handler, !std::is_const_v<T>> {
  using kept = kept_by_ptr<typename Access::handler, !std::is_const_v<T>>;
  static_assert(std::is_object_v<T> && std::is_trivially_copyable_v<T>, "gpufs::ptr<T>: files hold trivially copyable objects");
  static_assert(!std::is_volatile_v<T>, "gpufs::ptr<T>: T must not be volatile");
  static_assert(std::is_const_v<T> || std::is_same_v<typename Access::handler, no_handler>,
                "gpufs::ptr<T>: pages made by a fault handler are read-only: ptr<const T>");

 protected:
  template <class, class>
  friend class page_link;

  using kept::handler;
  using kept::how_written;
  using kept::set_handler;
  using kept::set_how_written;
  using plain = std::remove_cv_t<T>;
  using handler_type = typename Access::handler;
  static constexpr bool writable = !std::is_const_v<T>;
  static constexpr std::uint32_t nbytes = sizeof(T);
  // Mappings begin at multiples of the alignment.
  static constexpr bool may_straddle = alignof(T) != sizeof(T) || sizeof(T) > least_page_nbytes;
  // Whether a pointer may link several pages at once. Pointers that write may not, because they keep notes about writes to one page
  // only.
  static constexpr bool links_runs = !writable && !may_straddle;
  // Whether it may link a part of a page that is there in part.
  static constexpr bool links_parts = !writable && std::is_same_v<handler_type, no_handler>;

  GPUFS_DEVICE constexpr page_link() {}
  GPUFS_DEVICE page_link(mapping_name from, const bounds& within, const handler_type& how)
      : kept(how), address_(within.begin), from_(from), begin_(within.begin), end_(within.end & end_mask) {}

  GPUFS_DEVICE bool linked() const { return span_ != 0; }
  GPUFS_DEVICE bounds within() const { return {begin_, end_ & end_mask}; }
  GPUFS_DEVICE static std::uint64_t bytes(std::ptrdiff_t n) { return static_cast<std::uint64_t>(n) * nbytes; }
  GPUFS_DEVICE std::uint64_t position() const { return address_ + shift_; }
  // Whether the element `distance` bytes on lies in the linked pages. In this order, its address is computed on the way.
  GPUFS_DEVICE bool reaches(std::uint64_t distance) const { return distance + (address_ - first_) < span_; }

  template <class U>
  GPUFS_DEVICE void copy_position(const page_link<U, Access>& other) {
    address_ = other.address_;
    shift_ = other.shift_;
    from_ = other.from_;
    begin_ = other.begin_;
    end_ = other.end_;
    set_handler(other.handler());
  }
  GPUFS_DEVICE void take(page_link& other) {
    copy_position(other);
    first_ = other.first_;
    span_ = other.span_;
    set_how_written(other.how_written());
    other.span_ = 0;
    other.set_how_written(page_written::not_yet);
  }

  GPUFS_DEVICE void unlink() const {
    if (!linked()) return;
    const held_pages held{first_, span_};
    span_ = 0;
    end_stores();
    address_ = position();
    shift_ = 0;
    Access::template leave<writable>(from_, held);
  }

  // Where the pointer is, and what it may access. It is loaded before a call, and again after the call: a call keeps few registers,
  // and only faults need these.
  struct whereabouts {
    std::uint64_t here;
    bounds within;
    mapping_name from;
    std::uint32_t page_shift;

    // The page of an element.
    GPUFS_DEVICE std::uint32_t page_of(std::uint64_t position) const {
      return detail::page_of<may_straddle>(page_shift, within, position, nbytes);
    }
    // The sectors of its page that an element needs.
    GPUFS_DEVICE std::uint32_t sectors_of(std::uint32_t page, std::uint64_t position) const {
      if (!links_parts || page == no_page) return whole_page;
      const auto in_page = static_cast<std::uint32_t>(position) & ((1u << page_shift) - 1);
      return cache::sectors::of_bytes(page_shift, in_page, in_page + nbytes);
    }
    // The mapping's pages around an element's page, if the pointer may link several; a walk goes `walk` bytes on from there.
    GPUFS_DEVICE room around(std::uint32_t page, std::uint64_t position, std::uint64_t walk) const {
      if (!links_runs) return {page, page, page};
      const std::uint64_t last = within.end - nbytes;
      const auto page_at = [&](std::uint64_t at) { return static_cast<std::uint32_t>(at >> page_shift); };
      return {page_at(within.begin), page_at(last), page_at(last - position < walk ? last : position + walk)};
    }
  };
  GPUFS_DEVICE whereabouts look() const {
    const mapping_name from = from_;
    return {simt::only_here(address_) + shift_, within(), from, page_shift_of(from)};
  }

  // Links to the page of the element `distance` bytes on. Returns 1 if it is linked now; else 0 (the element does not lie in one
  // page), or a negative errno that is not recorded yet. walk: how many bytes a walk goes on from there (walking::surely).
  template <walking Walks = walking::as_seen>
  GPUFS_DEVICE int link(std::uint64_t distance, std::uint64_t walk = ~std::uint64_t{0}) const {
    const held_pages held{first_, span_};
    span_ = 0;  // a lane that is unwound meanwhile (CPU machine) does not give the page up twice
    end_stores();
    constexpr walking walks = links_runs ? Walks : walking::as_seen;
    std::uint64_t pinned = pin<walks>(distance, held, walk);
    if (!is_done(pinned)) [[unlikely]]
      pinned = static_cast<std::uint64_t>(pin_rest(distance, pinned, held));
    const auto at = static_cast<std::int64_t>(pinned);
    const whereabouts now = look();
    const std::uint64_t wanted = now.here + distance;
    if (at <= 0) [[unlikely]] {
      address_ = now.here;
      shift_ = 0;
      return at < 0 || now.within.have(wanted, nbytes) ? static_cast<int>(at) : -ENXIO;
    }
    // The elements of the pages, or of a page's sectors, that are within the bounds.
    const std::uint32_t shift = links_parts ? unit_shift(pinned, now.page_shift) : now.page_shift;
    const std::uint32_t before = before_of(pinned);
    const std::uint64_t begin = ((wanted >> shift) - before) << shift;
    const std::uint64_t end = begin + (std::uint64_t{count_of(pinned)} << shift);
    const std::uint64_t first = now.within.begin > begin ? now.within.begin : begin;
    const std::uint64_t last = (now.within.end < end ? now.within.end : end) - nbytes;
    const std::uint64_t address = address_in(pinned) - (std::uint64_t{before} << shift);
    first_ = address + (first - begin);
    span_ = static_cast<std::uint32_t>(last - first) + 1;
    address_ = address + (now.here - begin);
    shift_ = begin - address;
    return 1;
  }
  template <walking Walks>
  GPUFS_DEVICE std::uint64_t pin(std::uint64_t distance, const held_pages& held, std::uint64_t walk) const {
    const whereabouts now = look();
    const std::uint64_t position = now.here + distance;
    const std::uint32_t page = now.page_of(position);
    return Access::template pin_hit<writable, Walks>(now.from, page, now.around(page, position, walk), held);
  }
  // Does what pin_hit has left to do.
  GPUFS_DEVICE std::int64_t pin_rest(std::uint64_t distance, std::uint64_t pinned, const held_pages& held) const {
    const whereabouts now = look();
    const std::uint32_t page = now.page_of(now.here + distance);
    return Access::template pin_rest<writable>(now.from, handler(), page, now.sectors_of(page, now.here + distance), pinned, held);
  }
  GPUFS_DEVICE plain read(std::uint64_t distance) const {
    const bool here = reaches(distance);
    const plain value = simt::load_device_if(here, reinterpret_cast<const plain*>(address_ + distance));
    if (!here) [[unlikely]]
      return read_elsewhere(distance);
    return value;
  }
  GPUFS_DEVICE plain read_elsewhere(std::uint64_t distance) const {
    const int page = link(distance);
    if (page > 0) [[likely]]
      return simt::load_device(reinterpret_cast<const plain*>(address_ + distance));
    plain value{};
    read_apart(distance, page, value);
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
  GPUFS_DEVICE accessed at_distance(std::uint64_t distance) const { return {within(), position() + distance, nbytes}; }
  GPUFS_DEVICE void fail_write(std::uint64_t distance, int error) const {
    simt::call_cold(&detail::note_failed_write, from_, at_distance(distance), error);
    keep(error);
  }
  // Reads the elements of `got` that are not read yet. Its error says at first why the first of them is not linked, and then why
  // the first read failed, which is kept as the pointer's if `Keeps`. (The call works on other objects than those of the fast path:
  // taking the address of those would force them out of registers.)
  template <bool Keeps, unsigned N>
  GPUFS_DEVICE elements<plain, N> read_rest(const elements<plain, N>& got, const elements<std::uint64_t, N>& positions,
                                            std::uint32_t done, int& error) const {
    const elements<std::uint64_t, N> where(positions);
    elements<plain, N> elsewhere, all;
    error = Access::gather_elsewhere(from_, handler(), within(), where.values, elsewhere.values, nbytes, N, done, error);
    if constexpr (Keeps) keep(error);  // before the elements are loaded, whose registers it would need beside its own
    for (unsigned k = 0; k < N; ++k) all.values[k] = (done >> k & 1) != 0 ? got.values[k] : elsewhere.values[k];
    return all;
  }
  // Reads as read() does, for a caller that then writes a value made from it. Returns 0, or a negative errno if the read failed;
  // the failure is recorded.
  GPUFS_DEVICE int try_read(std::uint64_t distance, plain& value) const {
    if (reaches(distance)) [[likely]] {
      value = simt::load_device(reinterpret_cast<const plain*>(address_ + distance));
      return 0;
    }
    return try_read_elsewhere(distance, value);
  }
  GPUFS_DEVICE int try_read_elsewhere(std::uint64_t distance, plain& value) const {
    const int at = link(distance);
    if (at > 0) [[likely]] {
      value = simt::load_device(reinterpret_cast<const plain*>(address_ + distance));
      return 0;
    }
    plain apart{};  // as `value` is mostly in registers
    const int error = read_apart(distance, at, apart);
    value = apart;
    return error;
  }
  // Hits are apart from what follows a fault here and in try_read, so that what that needs takes no registers from a loop of hits.
  GPUFS_DEVICE void write(std::uint64_t distance, plain value) const {
    if (reaches(distance)) [[likely]] {
      if (may_change(distance)) *reinterpret_cast<plain*>(address_ + distance) = value;
    } else {
      write_elsewhere(distance, value);
    }
  }
  GPUFS_DEVICE void write_elsewhere(std::uint64_t distance, plain value) const {
    const int at = link(distance);
    if (at > 0) [[likely]] {
      if (may_change(distance)) *reinterpret_cast<plain*>(address_ + distance) = value;
    } else if constexpr (may_straddle) {
      keep(Access::template access_elsewhere<true>(from_, handler(), within(), position() + distance, &value, nbytes, at));
    } else {
      fail_write(distance, at);
    }
  }
  // Writes a value that was made from a read, where `error` is the error of that read. If `error` is not 0, it writes nothing, and
  // the next fsync or close of the file returns an error, unless the pointer was at fault (-ENXIO). If the file that was read was
  // closed meanwhile, this is no error of this file's number.
  GPUFS_DEVICE void write_unless(int error, std::uint64_t distance, plain value) const {
    if (error == 0) [[likely]] {
      write(distance, value);
    } else {
      simt::call_cold(&detail::keep_write_error, from_, error == -EBADF ? -EIO : error);
    }
  }
  // Whether the linked page may be changed; false: recorded.
  GPUFS_DEVICE bool may_change(std::uint64_t distance) const {
    if (how_written() != page_written::not_yet) [[likely]]
      return true;
    const std::uint32_t span = span_;
    span_ = 0;  // a lane that is unwound meanwhile (CPU machine) keeps its pin: it may count among those who write the page
    const begun_writing begun = simt::call_cold(&detail::begin_writing, from_, first_);
    span_ = span;
    set_how_written(begun.how);
    if (begun.error == 0) [[likely]]
      return true;
    if (begun.error == -ENOMEM) unlink();  // others wait for frames as we did
    fail_write(distance, begun.error);
    return false;
  }
  // Before the page at first_ is given up, with span_ 0 (as in may_change).
  GPUFS_DEVICE void end_stores() const {
    const page_written was = how_written();
    set_how_written(page_written::not_yet);
    if (was == page_written::to_mapped) [[unlikely]]
      keep(simt::call_cold(&detail::end_stores, from_, first_, at_distance(0)));
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

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
