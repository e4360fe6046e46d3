// SPDX-License-Identifier: Apache-2.0
// How a text becomes marks, a byte each, by functions from state to state, and marks become tokens. docs/design/lexing.md
#pragma once
#include <cstdint>

#include "gpufs/par/compact.hpp"
#include "gpufs/par/detail/items.hpp"
#include "gpufs/par/lexing.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// A byte's mark: the kind of the token that ends before it, or 0, and whether one begins with it.
inline constexpr std::uint8_t begins_here = 0x80, kind_that_ended = 0x7f;

// Functions from state to state, of 16 states, 4 bits each: the left one is applied first.
struct compose_maps {
  using value = std::uint64_t;
  GPUFS_DEVICE value identity() const { return 0xfedcba9876543210; }
  GPUFS_DEVICE value operator()(value f, value g) const {
    value both = 0;
    GPUFS_UNROLL
    for (unsigned state = 0; state < 16; ++state) both |= (g >> 4 * of(f, state) & 15) << 4 * state;
    return both;
  }
  GPUFS_DEVICE static unsigned of(value f, unsigned state) { return static_cast<unsigned>(f >> 4 * state) & 15; }
};

// Writes the marks of `valid` bytes side by side, before the first of which the lexer is in `state`; returns the one after them.
GPUFS_DEVICE unsigned mark_bytes(const lex_view& table, const std::uint8_t* bytes, std::uint64_t valid, unsigned state,
                                 std::uint8_t* marks) {
  for (std::uint64_t k = 0; k < valid; ++k) {
    const unsigned step = table.steps[256 * state + bytes[k]];
    marks[k] = static_cast<std::uint8_t>(step >> 8);
    state = step & 0xff;
  }
  return state;
}

// A text's bytes as functions. Of a thread's 16 side by side 15 are composed one by one, so that few are by shuffles.
template <memory In>
struct mapped_bytes {
  using element = std::uint8_t;
  using value = std::uint64_t;
  static constexpr unsigned n = 16, nrows = 2;
  using items = array_items<const std::uint8_t, In, n>;
  items text;
  const std::uint64_t* maps;

  struct row {
    typename items::row bytes;
    const std::uint64_t* maps;
    unsigned valid;
    GPUFS_DEVICE value operator[](unsigned k) const { return k < valid ? maps[bytes[k]] : compose_maps{}.identity(); }
  };

  GPUFS_DEVICE void prefetch(std::uint64_t begin, std::uint64_t end) const { text.prefetch(begin, end); }
  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return text.is_wide(first); }
  GPUFS_DEVICE void load_row(std::uint64_t first, row& to) const {
    text.load_row(first, to.bytes);
    to.maps = maps;
    to.valid = n;
  }
  GPUFS_DEVICE void load_row(std::uint64_t first, unsigned valid, value, row& to) const {
    text.load_row(first, valid, 0, to.bytes);
    to.maps = maps;
    to.valid = valid;
  }
};

// Writes marks. Of the functions only the first is asked for, so the others are not composed.
template <memory In>
struct put_marks {
  static constexpr unsigned n = mapped_bytes<In>::n;
  lex_view table;
  unsigned start;  // the state before the text
  array_items<std::uint8_t, In, n> out;

  GPUFS_DEVICE bool is_wide(std::uint64_t first) const { return out.is_wide(first); }
  template <class Row>
  GPUFS_DEVICE void wide(std::uint64_t first, const Row& row, const std::uint64_t (&below)[n]) const {
    std::uint8_t marks[n];
    mark(n, row, below[0], marks);
    out.store_wide(first, marks);
  }
  template <class Row>
  GPUFS_DEVICE void some(std::uint64_t first, unsigned valid, const Row& row, const std::uint64_t (&below)[n]) const {
    std::uint8_t marks[n];
    mark(valid, row, below[0], marks);
    out.store_some(first, valid, marks);
  }

 private:
  template <class Row>
  GPUFS_DEVICE void mark(unsigned valid, const Row& row, std::uint64_t below, std::uint8_t (&marks)[n]) const {
    unsigned state = compose_maps::of(below, start);
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      marks[k] = 0;
      if (k < valid) state = mark_bytes(table, &row.bytes.items[k], 1, state, &marks[k]);
    }
  }
};

// Writes what marks say, which are counted by tokens that begin: so the tokens' places are known.
struct has_begin {
  GPUFS_DEVICE bool operator()(std::uint8_t mark) const { return (mark & begins_here) != 0; }
};
struct put_tokens {
  static constexpr unsigned n = scan_space::items_a_row(1);
  lex_tokens out;
  std::uint64_t offset;  // of the first byte
  std::uint64_t before;  // 1 if a token is under way there, else 0

  GPUFS_DEVICE static bool is_wide(std::uint64_t) { return true; }
  template <class Row>
  GPUFS_DEVICE void some(std::uint64_t first, unsigned, const Row& row, const std::uint64_t (&below)[n]) const {
    wide(first, row, below);  // the marks of bytes that are not there are 0
  }
  template <class Row>
  GPUFS_DEVICE void wide(std::uint64_t first, const Row& row, const std::uint64_t (&below)[n]) const {
    GPUFS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      const std::uint8_t mark = row.values[k];
      const std::uint64_t next = before + below[k];  // the number of the one that begins here, or behind
      if ((mark & kind_that_ended) != 0 && next - 1 < out.room) out.kinds[next - 1] = mark & kind_that_ended;
      if ((mark & begins_here) != 0 && next < out.room) out.offsets[next] = offset + first + k;
    }
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
