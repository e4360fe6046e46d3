// SPDX-License-Identifier: Apache-2.0
// What updates make of an element, of 4 or 8 bytes (stores: 16, too); and lanes of a warp that meet on one, whose updates are one
// operation.
#pragma once
#include <cstring>
#include <type_traits>

#include "gpufs/pointer/detail/linked_pages.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

enum class update_kind : std::uint8_t { add, add_real, min_signed, min_unsigned, max_signed, max_unsigned, exchange };

// Elements as words of their size.
template <class Word>
struct word_kinds;
template <>
struct word_kinds<std::uint32_t> {
  using signed_word = std::int32_t;
  using real = float;
};
template <>
struct word_kinds<std::uint64_t> {
  using signed_word = std::int64_t;
  using real = double;
};

// As std::bit_cast, which nvcc takes for a function of the host.
template <class To, class From>
GPUFS_DEVICE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// What `then` makes of what `first` has left.
template <class Word>
GPUFS_DEVICE Word update_after(update_kind kind, Word first, Word then) {
  using signed_word = typename word_kinds<Word>::signed_word;
  using real = typename word_kinds<Word>::real;
  switch (kind) {
    case update_kind::add:
      return first + then;
    case update_kind::add_real:
      return same_bits<Word>(same_bits<real>(first) + same_bits<real>(then));
    case update_kind::min_signed:
      return static_cast<signed_word>(then) < static_cast<signed_word>(first) ? then : first;
    case update_kind::min_unsigned:
      return then < first ? then : first;
    case update_kind::max_signed:
      return static_cast<signed_word>(first) < static_cast<signed_word>(then) ? then : first;
    case update_kind::max_unsigned:
      return first < then ? then : first;
    case update_kind::exchange:
      break;
  }
  return then;
}

// What was there.
template <class Word>
GPUFS_DEVICE Word update_at(update_kind kind, std::uint64_t address, Word value) {
  using signed_word = typename word_kinds<Word>::signed_word;
  using real = typename word_kinds<Word>::real;
  constexpr std::memory_order order = std::memory_order_relaxed;
  const simt::atomic_ref<Word> bits(*reinterpret_cast<Word*>(address));
  const simt::atomic_ref<signed_word> with_sign(*reinterpret_cast<signed_word*>(address));
  const auto signed_value = static_cast<signed_word>(value);
  switch (kind) {
    case update_kind::add:
      return bits.fetch_add(value, order);
    case update_kind::add_real: {
      const simt::atomic_ref<real> number(*reinterpret_cast<real*>(address));
      return same_bits<Word>(number.fetch_add(same_bits<real>(value), order));
    }
    case update_kind::min_signed:
      return static_cast<Word>(with_sign.fetch_min(signed_value, order));
    case update_kind::min_unsigned:
      return bits.fetch_min(value, order);
    case update_kind::max_signed:
      return static_cast<Word>(with_sign.fetch_max(signed_value, order));
    case update_kind::max_unsigned:
      return bits.fetch_max(value, order);
    case update_kind::exchange:
      break;
  }
  return bits.exchange(value, order);
}

// Lanes that update one element in one way: `all` of them together, and those before the caller, in their order.
template <class Word>
struct met {
  std::uint32_t lanes;  // the caller among them
  Word all, before;
  GPUFS_DEVICE bool leads() const { return simt::lane_id() == simt::lowest_lane(lanes); }
};
// The caller's lane alone, where more than four elements are updated by several lanes each. address 0: none. All lanes call.
template <class Word>
GPUFS_DEVICE met<Word> meet(simt::some_lanes lanes, std::uint64_t address, update_kind kind, Word value) {
  struct place {
    std::uint64_t address, kind;
    GPUFS_DEVICE bool operator==(const place& other) const { return address == other.address && kind == other.kind; }
  };
  const place at{address == 0 ? simt::lane_id() : address, static_cast<std::uint64_t>(kind)};
  met<Word> mine{sharing_lanes(lanes, at), value, value};
  const unsigned self = simt::lane_id();
  std::uint32_t shared = lanes.ballot_lanes(simt::count_lanes(mine.lanes) > 1);
  bool first = true;
  for (; shared != 0; shared &= shared - 1) {
    const unsigned lane = simt::lowest_lane(shared);
    const Word theirs = lanes.shfl_from_lane(value, lane);
    if ((mine.lanes >> lane & 1) == 0) continue;
    if (lane == self) mine.before = mine.all;  // of those before us, if there are any
    mine.all = first ? theirs : update_after(kind, mine.all, theirs);
    first = false;
  }
  return mine;
}

// What a lane wants updated.
template <class Word>
struct update {
  using answer = Word;
  bounds within;
  std::uint64_t position;  // aligned
  update_kind kind;
  Word value;

  // Each lane's element, at its address; 0: none. All lanes call; what the lane's element was before.
  GPUFS_DEVICE Word make(simt::some_lanes lanes, std::uint64_t address) const {
    const met<Word> with = meet(lanes, address, kind, value);
    Word before{};
    if (address != 0 && with.leads()) before = update_at(kind, address, with.all);
    before = lanes.shfl_from_lane(before, simt::lowest_lane(with.lanes));
    return with.leads() ? before : update_after(kind, before, with.before);
  }
};

GPUFS_DEVICE void store_word(std::uint64_t address, std::uint32_t value) {
  simt::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(address)).store(value, std::memory_order_relaxed);
}
GPUFS_DEVICE void store_word(std::uint64_t address, std::uint64_t value) {
  simt::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(address)).store(value, std::memory_order_relaxed);
}
GPUFS_DEVICE void store_word(std::uint64_t address, const simt::vec16& value) {
  simt::store_relaxed_16(reinterpret_cast<void*>(address), value);
}
// Of any other size or alignment: by plain stores, so that a lane that reads it meanwhile may find some old bytes and some new
// ones.
template <class T>
GPUFS_DEVICE void store_word(std::uint64_t address, const T& value) {
  *reinterpret_cast<T*>(address) = value;
}
// What an element is stored as.
template <class T>
using stored_as =
    std::conditional_t<alignof(T) == sizeof(T) && sizeof(T) == 4, std::uint32_t,
                       std::conditional_t<alignof(T) == sizeof(T) && sizeof(T) == 8, std::uint64_t,
                                          std::conditional_t<alignof(T) == sizeof(T) && sizeof(T) == 16, simt::vec16, T>>>;

// What a lane wants stored. Of lanes that meet, and are served together, the highest one stores; what match.any
// takes for many different elements is little beside their pins.
template <class Word>
struct one_store {
  struct answer {};
  bounds within;
  std::uint64_t position;
  Word value;

  GPUFS_DEVICE answer make(simt::some_lanes lanes, std::uint64_t address) const {
    const bool is_last = (lanes.match_any_lanes(address) >> simt::lane_id() >> 1) == 0;
    if (address != 0 && is_last) store_word(address, value);
    return {};
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
