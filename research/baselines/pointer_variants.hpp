// SPDX-License-Identifier: Apache-2.0
// Designs of ActivePointers (ISCA'16) that the library does not have, to be measured beside what it has: a software TLB for each
// block (sections III-E and IV-D), and the short layout of a pointer (section IV-B).
#pragma once
#include "bench/pointer_kernels.hpp"

namespace bench {
inline namespace GPUFS_MACHINE {

// A TLB in the block's shared memory, direct mapped, which a fault asks before the page table. An entry is one word, a page's
// number and the frame that it was found in, so that nothing is locked; the paper's has a lock. It also has the block's reference
// count of the page, which spares updates of the frame's, but makes an entry with a count that is not 0 hard to drop. Here an entry
// counts nothing and holds no pin: each use of it pins the frame, which fails where the frame has another page by now. So what a
// TLB saves here is the look-up in the page table, not the pin.
//
// It serves one mapping, whose name it has; pins of others go past it.
template <unsigned Entries>
struct tlb {
  static_assert((Entries & (Entries - 1)) == 0);
  static constexpr std::uint64_t none = ~0ull;  // no page has that number
  std::uint64_t name;
  std::uint64_t entries[Entries];

  GPUFS_DEVICE static tlb& of_block() { return gpufs::simt::shared<tlb>(); }

  // All threads of the block call before the first pin.
  GPUFS_DEVICE void clear(gpufs::mapping_name of) {
    const auto block = gpufs::this_block();
    block.sync();
    for (unsigned i = block.rank(); i < Entries; i += block.size()) entries[i] = none;
    if (block.leader()) name = static_cast<std::uint64_t>(of);
    block.sync();
  }
  GPUFS_DEVICE bool serves(gpufs::mapping_name of) const { return name == static_cast<std::uint64_t>(of); }

  // The frame that had the page when it was entered, or no_frame.
  GPUFS_DEVICE std::uint32_t frame_of(std::uint32_t page) {
    const std::uint64_t seen = entry(page).load(std::memory_order_relaxed);
    return seen >> 32 == page ? static_cast<std::uint32_t>(seen) : gpufs::cache::hash_table::no_frame;
  }
  GPUFS_DEVICE void enter(std::uint32_t page, std::uint32_t frame) {
    entry(page).store(std::uint64_t{page} << 32 | frame, std::memory_order_relaxed);
  }
  GPUFS_DEVICE void forget(std::uint32_t page) { entry(page).store(none, std::memory_order_relaxed); }

 private:
  GPUFS_DEVICE atomic_ref<std::uint64_t, gpufs::simt::scope::block> entry(std::uint32_t page) {
    return atomic_ref<std::uint64_t, gpufs::simt::scope::block>(entries[page & (Entries - 1)]);
  }
};

// detail::pin_hit, with the TLB asked first.
template <unsigned Entries, bool Wrote>
GPUFS_DEVICE_COLD std::uint64_t pin_by_tlb(gpufs::mapping_name name, std::uint32_t page, gpufs::detail::held_pages held) {
  namespace detail = gpufs::detail;
  constexpr std::uint32_t no_frame = gpufs::cache::hash_table::no_frame;
  struct site;
  auto& mine = tlb<Entries>::of_block();
  if (!mine.serves(name)) return detail::pin_hit<Wrote>(name, page, {page, page, page}, held);
  if (!detail::warp_access::possible(gpufs::simt::lanes_together<site>(), name)) return detail::pin_again;
  const detail::warp_access access(name);
  if (!access.is(name)) return detail::pin_again;
  const auto warp = gpufs::this_warp();
  const std::uint32_t id = access.cache_id();
  std::uint32_t frame = page == detail::no_page ? no_frame : mine.frame_of(page);
  const bool in_tlb = frame != no_frame;
  if (warp.any(!in_tlb && page != detail::no_page)) {
    const gpufs::cache::hash_table table(detail::entry_of(name)->hit.table);
    const std::uint32_t found = page == detail::no_page ? no_frame : table.first(gpufs::cache::make_key(id, page));
    if (!in_tlb) frame = found;
  }
  if (warp.any(held.span != 0)) access.unpin<Wrote>(access.frames_held(held));
  const std::uint64_t at = access.pin(frame, page);
  const bool pinned = detail::address_in(at) != 0;
  if (!in_tlb && pinned) mine.enter(page, frame);
  if (in_tlb && !pinned) mine.forget(page);  // the frame has another page: pin_rest looks it up
  return at;
}

// A pointer's access through the block's TLB.
template <unsigned Entries>
struct tlb_access : gpufs::plain_access {
  template <bool Wrote, gpufs::detail::walking>
  GPUFS_DEVICE static std::uint64_t pin_hit(gpufs::mapping_name from, std::uint32_t page, gpufs::detail::room,
                                            const gpufs::detail::held_pages& held) {
    return pin_by_tlb<Entries, Wrote>(from, page, held);
  }
};

// The short layout: one word has the position in the file and the frame that is linked, in 40 and 23 bits, and whether the pointer
// is linked. The address is made of it at each access. Arithmetic must see whether it leaves the page, as the word would not say
// afterwards which page the frame has; the pin is given back at the next access. gpufs::ptr is the long layout; it has an address
// and the bounds of the page, and its arithmetic only moves. As in the paper, an access in a linked page is not held against the
// mapping's bounds. Only what the benches need: T is read only and lies in one page.
template <class T, class Access = gpufs::plain_access>
class short_ptr {
  static_assert(sizeof(T) == alignof(T));
  static constexpr unsigned position_bits = 40;
  static constexpr std::uint64_t position_mask = (std::uint64_t{1} << position_bits) - 1, linked = std::uint64_t{1} << 63;

 public:
  // From an unlinked pointer; files of up to 1 TiB, in a cache of up to 8 Mi frames.
  GPUFS_DEVICE explicit short_ptr(const gpufs::ptr<const T>& from)
      : word_(static_cast<std::uint64_t>(from.offset())),
        frames_(from ? reinterpret_cast<std::uint64_t>(gpufs::detail::entry_of(from.mapped())->hit.frames.data) : 0),
        from_(from.mapped()),
        within_(from.within()) {}
  GPUFS_DEVICE short_ptr(const short_ptr& other)
      : word_(other.position()), frames_(other.frames_), from_(other.from_), within_(other.within_) {}
  short_ptr& operator=(const short_ptr&) = delete;
  GPUFS_DEVICE ~short_ptr() {
    if (held().span != 0) Access::template leave<false>(from_, held());
  }

  GPUFS_DEVICE T operator*() const { return read(0); }
  GPUFS_DEVICE T operator[](std::ptrdiff_t i) const { return read(bytes(i)); }
  GPUFS_DEVICE short_ptr& operator+=(std::ptrdiff_t n) {
    const std::uint64_t moved = ((word_ + bytes(n)) & position_mask) | (word_ & ~position_mask);
    word_ = (moved ^ word_) >> page_shift() == 0 ? moved : moved & ~linked;
    return *this;
  }
  GPUFS_DEVICE std::ptrdiff_t operator-(const short_ptr& other) const {
    return static_cast<std::ptrdiff_t>(position() - other.position()) / static_cast<std::ptrdiff_t>(sizeof(T));
  }

  // As gpufs::ptr's, of elements that all lie in the mapping.
  template <unsigned N>
  GPUFS_DEVICE gpufs::elements<T, N> read_tile(std::uint32_t stride) const {
    gpufs::elements<T, N> tile;
    const std::uint64_t step = bytes(stride);
    if (!reaches(0)) link();
    if (reaches((N - 1) * step)) {
      const std::uint64_t at = address(0);
      for (unsigned k = 0; k < N; ++k) tile.values[k] = gpufs::simt::load_device(reinterpret_cast<const T*>(at + k * step));
    } else {
      for (unsigned k = 0; k < N; ++k) tile.values[k] = elsewhere(k * step, 0);
    }
    return tile;
  }

 private:
  GPUFS_DEVICE static std::uint64_t bytes(std::ptrdiff_t n) { return static_cast<std::uint64_t>(n) * sizeof(T); }
  GPUFS_DEVICE std::uint32_t page_shift() const { return gpufs::detail::page_shift_of(from_); }
  GPUFS_DEVICE std::uint64_t position() const { return word_ & position_mask; }
  // The page that a pin is held on, also where the pointer has left it.
  GPUFS_DEVICE gpufs::detail::held_pages held() const {
    const std::uint64_t frame = (word_ & ~linked) >> position_bits;  // + 1
    if (frame == 0) return {};
    return {frames_ + ((frame - 1) << page_shift()), 1};
  }
  GPUFS_DEVICE bool reaches(std::uint64_t distance) const {
    return (word_ & linked) != 0 && ((word_ + distance) ^ word_) >> page_shift() == 0;
  }
  GPUFS_DEVICE std::uint64_t address(std::uint64_t distance) const {
    return held().address + ((word_ + distance) & ((std::uint64_t{1} << page_shift()) - 1));
  }

  // Links to the page that it points into: 0, or why not.
  GPUFS_DEVICE int link() const {
    const gpufs::detail::held_pages before = held();
    const std::uint64_t here = position();
    word_ = here;
    const std::uint32_t page = gpufs::detail::page_of<false>(page_shift(), within_, here, sizeof(T));
    std::uint64_t at = Access::template pin_hit<false, gpufs::detail::walking::as_seen>(from_, page, {page, page, page}, before);
    if (!gpufs::detail::is_done(at)) [[unlikely]]
      at = static_cast<std::uint64_t>(Access::template pin_rest<false>(from_, {}, page, gpufs::detail::whole_page, at, before));
    if (static_cast<std::int64_t>(at) <= 0) return static_cast<int>(at);
    at = gpufs::detail::address_in(at);
    word_ = linked | (((at - frames_) >> page_shift()) + 1) << position_bits | here;
    return 0;
  }
  GPUFS_DEVICE T elsewhere(std::uint64_t distance, int error) const {
    T value{};
    Access::template access_elsewhere<false>(from_, {}, within_, position() + distance, &value, sizeof(T), error);
    return value;
  }
  GPUFS_DEVICE T read(std::uint64_t distance) const {
    if (!reaches(distance)) [[unlikely]] {
      const int error = (word_ & linked) != 0 ? 0 : link();
      if (!reaches(distance)) return elsewhere(distance, error);
    }
    return gpufs::simt::load_device(reinterpret_cast<const T*>(address(distance)));
  }

  mutable std::uint64_t word_;
  std::uint64_t frames_;  // where the cache's frames begin
  gpufs::mapping_name from_;
  gpufs::detail::bounds within_;
};

// What hands the variants to the kernels, as mapped_file does gpufs::ptr. All threads of the block call at() together.
enum class layout { long_ptr, short_ptr };
template <layout Layout, class Access = gpufs::plain_access>
struct mapped_variant : mapped_file {
  template <class T>
  GPUFS_DEVICE auto at(std::uint64_t offset) const {
    const auto p = mapped_file::at<T>(offset);
    prepare(Access{}, p.mapped());
    if constexpr (Layout == layout::short_ptr) {
      return short_ptr<T, Access>(p);
    } else {
      return gpufs::ptr<const T, Access>(p.mapped(), p.within(), {});
    }
  }

 private:
  GPUFS_DEVICE static void prepare(gpufs::plain_access, gpufs::mapping_name) {}
  template <unsigned Entries>
  GPUFS_DEVICE static void prepare(tlb_access<Entries>, gpufs::mapping_name of) {
    tlb<Entries>::of_block().clear(of);
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace bench
