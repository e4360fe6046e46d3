// SPDX-License-Identifier: Apache-2.0
// The tokens of files, piece by piece: the inside of `gpufs lex` and gpufs.lex() in Python. Each engine finds the same ones.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/input_file.hpp"
#include "gpufs/mount.hpp"
#include "gpufs/par/lex_table.hpp"
#include "gpufs/par/lexing.hpp"

namespace gpufs::apps::lex {

// Tokens in their order: where each begins, and its kind.
struct found_tokens {
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint8_t> kinds;
};

// Of one regular file, which must not change meanwhile. One thread calls.
class lexer {
 public:
  virtual ~lexer() = default;
  lexer(const lexer&) = delete;
  lexer& operator=(const lexer&) = delete;

  std::uint64_t nbytes() const { return nbytes_; }              // of the file
  std::uint64_t ndone() const { return at_.offset; }            // of its bytes have been lexed
  std::uint64_t piece_nbytes() const { return piece_nbytes_; }  // that are lexed at once
  // Lexes a piece, and waits; `found` are the tokens that end in it, all that are left in the last one. Throws gpufs::error, whose
  // text has the path: the file is shorter now, or cannot be read.
  void next() {
    found_.offsets.clear();
    found_.kinds.clear();
    at_ = lex_piece(at_, found_);
  }
  const found_tokens& found() const { return found_; }

  // Where it is, behind all pieces that next() has lexed: from there another lexer of the same file and table goes on, by any
  // engine.
  const par::lex_place& so_far() const { return at_; }
  // Before the first next(). Throws gpufs::error: the file and the table have no such place.
  void go_on(const par::lex_place& from) {
    if (from.offset > nbytes_ || from.begin > from.offset || from.state >= nstates_) {
      throw gpufs::error("there is no place at byte " + std::to_string(from.offset) + ", in state " + std::to_string(from.state) +
                         ", of a token from byte " + std::to_string(from.begin) + " on");
    }
    at_ = from;
  }

 protected:
  lexer(std::uint64_t nbytes, std::uint64_t piece_nbytes, const par::lex_table& table)
      : nbytes_(nbytes), piece_nbytes_(std::min(piece_nbytes, nbytes)), nstates_(table.nstates()) {
    at_.state = table.start();
  }

 private:
  // Appends the tokens of the piece that begins there; returns the place behind it.
  virtual par::lex_place lex_piece(const par::lex_place& at, found_tokens& to) = 0;

  std::uint64_t nbytes_, piece_nbytes_;
  unsigned nstates_;
  par::lex_place at_;
  found_tokens found_;
};

// piece_nbytes: how many bytes are lexed at once, in memory that is a multiple of them; 0: the engine's own choice. Throw
// gpufs::error: the file does not open, or is no regular file.
struct lexer_options {
  std::uint64_t piece_nbytes = 0;
  int device = 0;
};
// By host threads; by kernels on the CPU machine, and on a GPU, through gpufs.
std::unique_ptr<lexer> make_lexer_cpu(const std::string& path, const par::lex_table& table, const lexer_options& options);
std::unique_ptr<lexer> make_lexer_simt(const std::string& path, const par::lex_table& table, const lexer_options& options);
std::unique_ptr<lexer> make_lexer_cuda(const std::string& path, const par::lex_table& table, const lexer_options& options);

}  // namespace gpufs::apps::lex
