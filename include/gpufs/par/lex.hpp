// SPDX-License-Identifier: Apache-2.0
// Lexing a regular language in kernels, by a group or by all blocks of a cooperative launch: a text's tokens, as places and kinds.
// (Hillis and Steele, "Data parallel algorithms", CACM 1986: "Parsing a regular language".) docs/design/lexing.md
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "gpufs/par/detail/lex_by_maps.hpp"
#include "gpufs/par/detail/lex_by_walks.hpp"
#include "gpufs/par/lex_table.hpp"
#include "gpufs/par/lexing.hpp"
#include "gpufs/simt/device_array.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// A table in a device's memory, for kernels; the host owns it.
class device_lex_table {
 public:
  // Throws as simt::device_array does.
  explicit device_lex_table(const lex_table& table, simt::platform& device = simt::this_platform())
      : device_lex_table(table.packed_maps(), table.packed_steps(), table.packed_kinds(), table.start(), device) {}

  // Valid while this lives.
  lex_view view() const {
    const auto nstates = static_cast<std::uint32_t>(kinds_.size());
    return {maps_.size() == 0 ? nullptr : maps_.get(), steps_.get(), kinds_.get(), nstates, start_};
  }

 private:
  device_lex_table(const std::vector<std::uint64_t>& maps, const std::vector<std::uint16_t>& steps,
                   const std::vector<std::uint8_t>& kinds, unsigned start, simt::platform& device)
      : maps_(std::span(maps), device), steps_(std::span(steps), device), kinds_(std::span(kinds), device), start_(start) {}

  simt::device_array<std::uint64_t> maps_;
  simt::device_array<std::uint16_t> steps_;
  simt::device_array<std::uint8_t> kinds_;
  std::uint32_t start_;
};

// A text's tokens, in their order. All threads of the group, or of the grid, call with equal arguments and get equal results. Texts
// that are not in one piece of memory are lexed piece by piece: at is the place before a piece, and what a call returns the place
// after it. A token that goes over the end of a piece is told of by the call that sees it end; with text.is_last the last one ends
// where the text does, and the next one is at the start. Each byte is of a token or between tokens, as the table says; a byte that
// it has no place for is a token of kind lex_table::error_kind, and so is one that ends before it is complete.
//
// text, tokens and space: memory that all threads reach, of a grid global memory, none of which overlaps another. What the calling
// threads have written before is seen; a thread that reads the tokens of others syncs the group after the call, and of a grid all
// see them. space: at least lex_space::nbytes_for(...) bytes.
//
// error: 0; -EINVAL: the space is too small, or at.state is none of the table, and nothing is done; -ENOSPC: there are more tokens
// than `room`: ntokens of them, with one that goes on, and the tokens' memory holds none of use; -ETIMEDOUT: as scan.hpp has it.
template <simt::group Group>
GPUFS_DEVICE lex_result lex(Group group, const lex_view& table, const lex_place& at, const lex_text& text, const lex_tokens& tokens,
                            const lex_space& space) {
  const simt::group_call call(group, "par::lex(bytes, nbytes, is_last, state, offsets, kinds, room, space)",
                              simt::memory_of_all{text.bytes, text.nbytes}, text.nbytes, text.is_last, at.state,
                              simt::memory_of_all{tokens.offsets, tokens.room}, simt::memory_of_all{tokens.kinds, tokens.room},
                              tokens.room, simt::memory_of_all{space.data, space.nbytes});
  return detail::lex_by(detail::lexing_group<Group>{group}, table, at, text, tokens, space);
}
GPUFS_DEVICE lex_result lex(simt::grid grid, const lex_view& table, const lex_place& at, const lex_text& text,
                            const lex_tokens& tokens, const lex_space& space) {
  const simt::group_call call(grid.this_block(), "par::lex(bytes, nbytes, is_last, state, offsets, kinds, room, space)",
                              simt::memory_of_all{text.bytes, text.nbytes}, text.nbytes, text.is_last, at.state,
                              simt::memory_of_all{tokens.offsets, tokens.room}, simt::memory_of_all{tokens.kinds, tokens.room},
                              tokens.room, simt::memory_of_all{space.data, space.nbytes});
  return detail::lex_by(detail::lexing_grid{grid}, table, at, text, tokens, space);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
