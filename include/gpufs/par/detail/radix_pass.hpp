// SPDX-License-Identifier: Apache-2.0
// A radix sort from the least digit on (LSD), of digits of 4 bits: how keys become digits, and where the keys of a tile go.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpufs/par/detail/items.hpp"
#include "gpufs/par/detail/scan_by_grid.hpp"
#include "gpufs/par/scan.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

namespace detail {

inline constexpr unsigned digit_nbits = 4, ndigits = 1u << digit_nbits;

// How many keys a thread takes at a time, side by side.
GPUFS_HOST_DEVICE constexpr unsigned keys_a_thread(std::uint64_t key_nbytes) { return key_nbytes <= 4 ? 8 : 4; }

// A key's bits so that their order as an unsigned number is that of the keys.
template <sort_key Key>
GPUFS_DEVICE auto ordered_bits(Key key) {
  using bits = std::conditional_t<
      sizeof(Key) == 1, std::uint8_t,
      std::conditional_t<sizeof(Key) == 2, std::uint16_t, std::conditional_t<sizeof(Key) == 4, std::uint32_t, std::uint64_t>>>;
  bits all;
  std::memcpy(&all, &key, sizeof all);
  constexpr bits sign = static_cast<bits>(bits{1} << (8 * sizeof(Key) - 1));
  if constexpr (std::is_floating_point_v<Key>) {
    all = (all & sign) != 0 ? ~all : all | sign;
  } else if constexpr (std::is_signed_v<Key>) {
    all = static_cast<bits>(all ^ sign);
  }
  return all;
}
template <sort_key Key>
GPUFS_DEVICE unsigned digit_of(Key key, unsigned shift) {
  return static_cast<unsigned>(ordered_bits(key) >> shift) % ndigits;
}

// How many keys of a tile have each digit, 16 bits for each: a tile has 8,192 keys at most, so no sum goes over into the next one.
// (Satish, Harris, Garland, "Designing efficient sorting algorithms for manycore GPUs", IPDPS 2009, count in shared memory.)
struct digit_counts {
  std::uint64_t words[ndigits / 4];

  // All words by numbers that the compiler knows, and masks: it makes an address of a choice, for which they would have to lie on
  // the stack.
  GPUFS_DEVICE unsigned of(unsigned digit) const {
    std::uint64_t word = 0;
    GPUFS_UNROLL
    for (unsigned i = 0; i < ndigits / 4; ++i) word |= words[i] & -std::uint64_t{digit / 4 == i};
    return static_cast<unsigned>(word >> digit % 4 * 16) & 0xffff;
  }
  GPUFS_DEVICE void add(unsigned digit) {
    GPUFS_UNROLL
    for (unsigned i = 0; i < ndigits / 4; ++i) words[i] += std::uint64_t{digit / 4 == i} << digit % 4 * 16;
  }
};
static_assert(1024 * keys_a_thread(1) < 0xffff);

struct plus_counts {
  using value = digit_counts;
  GPUFS_DEVICE value identity() const { return {}; }
  GPUFS_DEVICE value operator()(const value& a, const value& b) const {
    value sum{};
    GPUFS_UNROLL
    for (unsigned i = 0; i < ndigits / 4; ++i) sum.words[i] = a.words[i] + b.words[i];
    return sum;
  }
};

// What moves with the keys: nothing, or values, to and fro between two arrays.
struct no_values {
  GPUFS_DEVICE void move(bool, std::uint64_t, std::uint64_t) const {}
};
template <class Value>
struct moved_values {
  Value *here, *there;
  GPUFS_DEVICE void move(bool back, std::uint64_t from, std::uint64_t to) const {
    (back ? here : there)[to] = (back ? there : here)[from];
  }
};

// Where the next key of each digit goes; by turns of the tiles, so that one is read while the next one is written.
struct digit_places {
  std::uint64_t of[2][ndigits];
};

// The part of a pass that a block has: keys from `begin` to `end`. All threads of the block make it and call.
template <sort_key Key>
class radix_pass {
  static constexpr unsigned n = keys_a_thread(sizeof(Key));

 public:
  GPUFS_DEVICE radix_pass(simt::block block, const Key* keys, std::uint64_t begin, std::uint64_t end, unsigned shift)
      : block_(block), keys_(keys), begin_(begin), end_(end), shift_(shift) {}

  // How many of these keys have the digit that is the caller's rank; 0 for ranks behind the last digit. The block adds up its
  // threads' counts once for as many tiles as 16 bits have room for.
  GPUFS_DEVICE std::uint64_t count() const {
    const auto most = static_cast<unsigned>(0xffff / tile());
    std::uint64_t mine = 0;
    digit_counts some{};
    unsigned ntiles = 0;
    for (std::uint64_t begin = begin_; begin < end_; begin += tile()) {
      const keys_of_thread here(*this, begin);
      GPUFS_UNROLL
      for (unsigned k = 0; k < n; ++k) {
        if (k < here.valid) some.add(digit_of(here.keys[k], shift_));
      }
      if (++ntiles < most && begin + tile() < end_) continue;
      const unsigned of_block = detail::scan(block_, some, plus_counts{}).all.of(block_.rank() % ndigits);
      if (block_.rank() < ndigits) mine += of_block;
      some = {};
      ntiles = 0;
    }
    return mine;
  }
  // Moves the keys in their order. place: where the first key goes that has the digit that is the caller's rank.
  template <class Values>
  GPUFS_DEVICE void move(std::uint64_t place, Key* to, const Values& values, bool back) const {
    auto& places = simt::shared<digit_places>();
    if (block_.rank() < ndigits) places.of[0][block_.rank()] = place;  // a tile's scan has barriers: before they are read
    unsigned turn = 0;
    for (std::uint64_t begin = begin_; begin < end_; begin += tile(), turn ^= 1) {
      const tile_of_keys here(*this, begin);
      GPUFS_UNROLL
      for (unsigned k = 0; k < n; ++k) {
        if (k < here.valid) {
          const unsigned digit = digit_of(here.keys[k], shift_);
          const std::uint64_t at = places.of[turn][digit] + here.counts.below.of(digit) + (here.before >> 4 * k & 15);
          to[at] = here.keys[k];
          values.move(back, here.first + k, at);
        }
      }
      if (block_.rank() < ndigits) {
        places.of[turn ^ 1][block_.rank()] = places.of[turn][block_.rank()] + here.counts.all.of(block_.rank());
      }
    }
  }

 private:
  struct keys_of_thread {
    std::uint64_t first;
    unsigned valid;
    Key keys[n];

    GPUFS_DEVICE keys_of_thread(const radix_pass& of, std::uint64_t begin) : first(begin + std::uint64_t{of.block_.rank()} * n) {
      valid = first >= of.end_ ? 0 : of.end_ - first < n ? static_cast<unsigned>(of.end_ - first) : n;
      array_items<const Key, memory::any, n>{of.keys_}.load(first, valid, keys);
    }
  };
  struct tile_of_keys : keys_of_thread {
    std::uint32_t before = 0;  // 4 bits a key: how many of the thread's own with the same digit come before
    scanned<digit_counts> counts;

    GPUFS_DEVICE tile_of_keys(const radix_pass& of, std::uint64_t begin) : keys_of_thread(of, begin) {
      digit_counts mine{};
      GPUFS_UNROLL
      for (unsigned k = 0; k < n; ++k) {
        if (k < this->valid) {
          const unsigned digit = digit_of(this->keys[k], of.shift_);
          before |= mine.of(digit) << 4 * k;
          mine.add(digit);
        }
      }
      counts = detail::scan(of.block_, mine, plus_counts{});
    }
  };
  GPUFS_DEVICE std::uint64_t tile() const { return std::uint64_t{block_.size()} * n; }

  simt::block block_;
  const Key* keys_;
  std::uint64_t begin_, end_;
  unsigned shift_;
};

// pass(shift, from, to, back) for each digit, from the least on. There is an even number of them: the last one comes back.
template <sort_key Key, class Pass>
GPUFS_DEVICE void each_digit(Key* keys, Key* space, Pass pass) {
  bool back = false;
  for (unsigned shift = 0; shift < 8 * sizeof(Key); shift += digit_nbits, back = !back) {
    pass(shift, back ? space : keys, back ? keys : space, back);
  }
}

template <sort_key Key, class Values>
GPUFS_DEVICE void sort_by_block(simt::block block, Key* keys, const Values& values, std::uint64_t n, Key* keys_space) {
  each_digit(keys, keys_space, [&](unsigned shift, const Key* from, Key* to, bool back) {
    block.sync();  // all have written their keys
    const radix_pass<Key> pass(block, from, 0, n, shift);
    const std::uint64_t mine = pass.count();
    pass.move(exclusive_scan(block, mine, plus<std::uint64_t>{}), to, values, back);
  });
}

template <sort_key Key, class Values>
GPUFS_DEVICE int sort_by_grid(simt::grid grid, Key* keys, const Values& values, std::uint64_t n, Key* keys_space,
                              const scan_space& space) {
  const simt::block block = grid.this_block();
  const std::uint64_t nblocks = simt::grid_size(), me = simt::block_rank();
  if (space.nbytes < scan_space::nbytes_to_sort(simt::grid_size())) return -EINVAL;
  auto* const counts = pieces_of_space(space).take<std::uint64_t>(ndigits * nblocks);  // by digit, then by block
  const std::uint64_t tile = std::uint64_t{block.size()} * keys_a_thread(sizeof(Key));
  const std::uint64_t share = ((n + tile - 1) / tile + nblocks - 1) / nblocks * tile;
  const std::uint64_t begin = me * share < n ? me * share : n, end = n - begin < share ? n : begin + share;
  each_digit(keys, keys_space, [&](unsigned shift, const Key* from, Key* to, bool back) {
    grid.sync();  // all have written their keys
    const radix_pass<Key> pass(block, from, begin, end, shift);
    const std::uint64_t mine = pass.count();
    if (block.rank() < ndigits) counts[block.rank() * nblocks + me] = mine;
    grid.sync();
    if (me == 0) exclusive_scan(block, counts, counts, ndigits * nblocks, plus<std::uint64_t>{});
    grid.sync();
    pass.move(block.rank() < ndigits ? counts[block.rank() * nblocks + me] : 0, to, values, back);
  });
  grid.sync();
  return 0;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
