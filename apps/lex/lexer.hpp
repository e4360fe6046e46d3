// SPDX-License-Identifier: Apache-2.0
// The tokens of files, piece by piece: the inside of `gpufs lex` and gpufs.lex() in Python. Each engine finds the same ones.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/input_file.hpp"
#include "gpufs/par/lex_table.hpp"

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

  std::uint64_t nbytes() const { return nbytes_; }  // of the file
  std::uint64_t ndone() const { return ndone_; }    // of its bytes have been lexed
  // Lexes a piece, and waits; `found` are the tokens that end in it, all that are left in the last one. Throws gpufs::error, whose
  // text has the path: the file is shorter now, or cannot be read.
  void next() {
    found_.offsets.clear();
    found_.kinds.clear();
    ndone_ += lex_piece(found_);
  }
  const found_tokens& found() const { return found_; }

 protected:
  explicit lexer(std::uint64_t nbytes) : nbytes_(nbytes) {}

 private:
  // Appends the tokens of the piece from ndone() on; returns how many bytes it has.
  virtual std::uint64_t lex_piece(found_tokens& to) = 0;

  std::uint64_t nbytes_, ndone_ = 0;
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
