// SPDX-License-Identifier: Apache-2.0
// What lexing takes and gives: a table as kernels have it, a text, its tokens, memory. For host code and kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/config.hpp"

namespace gpufs::par {

// A table in device memory (device_lex_table makes it of a lex_table, which has been checked).
struct lex_view {
  const std::uint64_t* maps;   // of each byte, as lex_table::packed_maps has them; nullptr: more than 16 states
  const std::uint16_t* steps;  // as lex_table::packed_steps has them
  const std::uint8_t* kinds;   // of each state; 0: no token is under way
  std::uint32_t nstates, start;
};
static_assert(sizeof(lex_view) == 32 && offsetof(lex_view, kinds) == 16 && offsetof(lex_view, nstates) == 24);

// Where a lexer is in a text. Before the first byte: {.state = table.start}.
struct lex_place {
  std::uint64_t offset = 0;  // of the next byte, from the text's beginning
  std::uint64_t begin = 0;   // where the token began that is under way, if the state is one of a token
  std::uint32_t state = 0;
};
static_assert(sizeof(lex_place) == 24 && offsetof(lex_place, begin) == 8 && offsetof(lex_place, state) == 16);

struct lex_text {
  const std::uint8_t* bytes;
  std::uint64_t nbytes;
  bool is_last;  // nothing comes after these
};

// Token i begins at byte offsets[i] of the text, and is of kind kinds[i]: lex_table::kinds()[kinds[i] - 1].
struct lex_tokens {
  std::uint64_t* offsets;
  std::uint8_t* kinds;
  std::uint64_t room;  // of each; as many as a text has bytes, and one, are always enough
};

struct lex_result {
  int error;
  std::uint64_t ntokens;
  lex_place after;  // if error is 0
};

// Memory for a call, whatever is in it and however it is aligned; used by turns as scan_space is.
struct lex_space {
  void* data;
  std::uint64_t nbytes;

  // Tables of more than 16 states: how long a piece is that a thread walks, and how many walks are combined to one.
  static constexpr std::uint64_t piece_nbytes = 256, npieces = 64;

  // For texts of nbytes bytes, a table, and a launch of so many blocks of so many threads. A group needs nbytes_for(nbytes,
  // nstates), however many threads it has.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_for(std::uint64_t nbytes, std::uint32_t nstates, unsigned nblocks = 1,
                                                              unsigned nthreads = 1024) {
    const std::uint64_t scans = scan_space::nbytes_for<std::uint8_t>(nbytes, nblocks, nthreads);
    const std::uint64_t walks = nstates > 16 ? nbytes_of_walks(nbytes, nstates) : 0;
    return 32 + nbytes + (scans < walks ? walks : scans);
  }
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_of_walks(std::uint64_t nbytes, std::uint32_t nstates) {
    std::uint64_t all = 0, n = nbytes;
    std::uint64_t a_piece = piece_nbytes;
    do {
      n = (n + a_piece - 1) / a_piece;
      all += n * (nstates + std::uint64_t{1});
      a_piece = npieces;
    } while (n > 1);
    return all;
  }
};
static_assert(sizeof(lex_space) == 16 && offsetof(lex_space, data) == 0 && offsetof(lex_space, nbytes) == 8);

}  // namespace gpufs::par
