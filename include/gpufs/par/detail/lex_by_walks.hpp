// SPDX-License-Identifier: Apache-2.0
// Lexing by tables of any size, in which functions are arrays; and what the ways of lexing share. docs/design/lexing.md
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/par/detail/lex_by_maps.hpp"
#include "gpufs/par/detail/look_back.hpp"
#include "gpufs/par/detail/scan_by_grid.hpp"
#include "gpufs/par/lexing.hpp"
#include "gpufs/simt/grid.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

// Who lexes: its threads, where they meet, and how they scan.
template <class Group>
struct lexing_group {
  static constexpr memory in = memory::any;
  Group group;
  GPUFS_DEVICE std::uint64_t rank() const { return group.rank(); }
  GPUFS_DEVICE std::uint64_t size() const { return group.size(); }
  GPUFS_DEVICE void sync() const { group.sync(); }
  GPUFS_DEVICE static std::uint64_t needs(std::uint64_t nbytes, std::uint32_t nstates) {
    return lex_space::nbytes_for(nbytes, nstates);
  }
  template <class Items, scan_operator Op, class Put>
  GPUFS_DEVICE int scan(const Items& from, std::uint64_t n, const Op& op, const Put& put, const scan_space&,
                        typename Op::value& all) const {
    all = scan_by_group(group, from, n, op, put);
    return 0;
  }
};
struct lexing_grid {
  static constexpr memory in = memory::global;
  simt::grid grid;
  GPUFS_DEVICE static std::uint64_t rank() { return simt::grid::rank(); }
  GPUFS_DEVICE static std::uint64_t size() { return simt::grid::size(); }
  GPUFS_DEVICE void sync() const { grid.sync(); }
  GPUFS_DEVICE static std::uint64_t needs(std::uint64_t nbytes, std::uint32_t nstates) {
    return lex_space::nbytes_for(nbytes, nstates, simt::grid_size(), simt::block_size());
  }
  template <class Items, scan_operator Op, class Put>
  GPUFS_DEVICE int scan(const Items& from, std::uint64_t n, const Op& op, const Put& put, const scan_space& space,
                        typename Op::value& all) const {
    return scan_by_look_back(grid, from, n, op, look_back<Op>(space, tiles_of<Items>(n)), put, all);
  }
};

// The function of each piece of a text, as the states after it of all states before it, by a walk each; of npieces such functions
// the one that they are together, again by walks; and so on up to one for all of the text. Then down again: the state before each
// piece, of what is known now.
class lex_by_walks {
  // Of the pieces of one size: their functions, and the states before them.
  struct level {
    std::uint64_t n;
    std::uint8_t *functions, *states;
  };

 public:
  GPUFS_DEVICE lex_by_walks(const lex_view& table, const lex_text& text, void* space)
      : table_(table), text_(text), space_(static_cast<std::uint8_t*>(space)) {}

  // Writes the marks of all bytes, and returns the state after them. Meets in it.
  template <class Threads>
  GPUFS_DEVICE unsigned mark(const Threads& threads, unsigned state, std::uint8_t* marks) const {
    if (text_.nbytes == 0) return state;
    unsigned top = 0;
    for (;; ++top) {
      const level here = at(top);
      for (std::uint64_t i = threads.rank(); i < here.n * table_.nstates; i += threads.size()) {
        here.functions[i] = static_cast<std::uint8_t>(walk(top, i / table_.nstates, static_cast<unsigned>(i % table_.nstates)));
      }
      threads.sync();
      if (here.n == 1) break;
    }
    const level all = at(top);
    if (threads.rank() == 0) all.states[0] = static_cast<std::uint8_t>(state);
    threads.sync();
    for (unsigned depth = top; depth != 0; --depth) {
      const level here = at(depth), below = at(depth - 1);
      for (std::uint64_t piece = threads.rank(); piece < here.n; piece += threads.size()) {
        unsigned before = here.states[piece];
        for (std::uint64_t i = piece * lex_space::npieces; i < end_of(piece, lex_space::npieces, below.n); ++i) {
          below.states[i] = static_cast<std::uint8_t>(before);
          before = below.functions[i * table_.nstates + before];
        }
      }
      threads.sync();
    }
    const level first = at(0);
    for (std::uint64_t piece = threads.rank(); piece < first.n; piece += threads.size()) {
      const std::uint64_t begin = piece * lex_space::piece_nbytes;
      const std::uint64_t end = end_of(piece, lex_space::piece_nbytes, text_.nbytes);
      mark_bytes(table_, text_.bytes + begin, end - begin, first.states[piece], marks + begin);
    }
    return all.functions[state];
  }

 private:
  GPUFS_DEVICE static std::uint64_t end_of(std::uint64_t piece, std::uint64_t size, std::uint64_t n) {
    return n - piece * size < size ? n : (piece + 1) * size;
  }
  GPUFS_DEVICE level at(unsigned depth) const {
    level here{(text_.nbytes + lex_space::piece_nbytes - 1) / lex_space::piece_nbytes, space_, nullptr};
    for (unsigned i = 0; i < depth; ++i) {
      here.functions += here.n * (table_.nstates + std::uint64_t{1});
      here.n = (here.n + lex_space::npieces - 1) / lex_space::npieces;
    }
    here.states = here.functions + here.n * table_.nstates;
    return here;
  }
  // Where a walk ends that begins in the state before a piece.
  GPUFS_DEVICE unsigned walk(unsigned depth, std::uint64_t piece, unsigned state) const {
    if (depth == 0) {
      const std::uint64_t end = end_of(piece, lex_space::piece_nbytes, text_.nbytes);
      for (std::uint64_t i = piece * lex_space::piece_nbytes; i < end; ++i) {
        state = table_.steps[256 * state + text_.bytes[i]] & 0xff;
      }
    } else {
      const level below = at(depth - 1);
      const std::uint64_t end = end_of(piece, lex_space::npieces, below.n);
      for (std::uint64_t i = piece * lex_space::npieces; i < end; ++i) state = below.functions[i * table_.nstates + state];
    }
    return state;
  }

  lex_view table_;
  lex_text text_;
  std::uint8_t* space_;
};

// Marks all bytes, then numbers and writes the tokens.
template <class Threads>
GPUFS_DEVICE lex_result lex_by(const Threads& threads, const lex_view& table, const lex_place& at, const lex_text& text,
                               const lex_tokens& tokens, const lex_space& space) {
  constexpr memory in = Threads::in;
  // A text's marks alone are as long; asked first, as the formula wraps around for lengths that no memory has.
  const bool is_enough = text.nbytes <= space.nbytes && space.nbytes >= Threads::needs(text.nbytes, table.nstates);
  if (at.state >= table.nstates || !is_enough) return {-EINVAL, 0, at};
  pieces_of_space pieces(scan_space{space.data, space.nbytes});
  auto* const marks = pieces.take<std::uint8_t>(text.nbytes);
  auto* const rest = pieces.take<std::byte>(0);
  const scan_space for_scans{rest, space.nbytes - static_cast<std::uint64_t>(rest - static_cast<std::byte*>(space.data))};
  threads.sync();  // all have written the text, and those who used the space before are done

  lex_place after{.offset = at.offset + text.nbytes, .begin = at.begin, .state = at.state};
  if (table.maps != nullptr) {
    auto all = compose_maps{}.identity();
    const int error = threads.scan(mapped_bytes<in>{{text.bytes}, table.maps}, text.nbytes, compose_maps{},
                                   put_marks<in>{table, at.state, {marks}}, for_scans, all);
    if (error != 0) return {error, 0, at};
    after.state = compose_maps::of(all, at.state);
  } else {
    after.state = lex_by_walks(table, text, rest).mark(threads, at.state, marks);
  }
  threads.sync();  // the marks are there, and the space is free

  const std::uint64_t before = table.kinds[at.state] != 0 ? 1 : 0, goes_on = table.kinds[after.state] != 0 ? 1 : 0;
  std::uint64_t nbegun = 0;
  const int error = threads.scan(counted_items<std::uint8_t, has_begin, in>{{marks}, {}}, text.nbytes, plus<std::uint64_t>{},
                                 put_tokens{tokens, at.offset, before}, for_scans, nbegun);
  if (error != 0) return {error, 0, at};
  const std::uint64_t all = before + nbegun;
  if (all > tokens.room) return {-ENOSPC, all, at};
  const bool ends = text.is_last && goes_on != 0;
  if (threads.rank() == 0) {
    if (before != 0) tokens.offsets[0] = at.begin;
    if (ends) tokens.kinds[all - 1] = table.kinds[after.state];
  }
  threads.sync();
  if (goes_on != 0) after.begin = tokens.offsets[all - 1];
  if (text.is_last) after.state = table.start;
  return {0, ends ? all : all - goes_on, after};
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
