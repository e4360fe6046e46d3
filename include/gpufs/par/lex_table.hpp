// SPDX-License-Identifier: Apache-2.0
// The tables of lexers: deterministic finite automata over bytes, with the tokens that they find. For host code, which checks a
// table before kernels go by it. docs/design/lexing.md
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpufs::par {

// What a table is made of. States and kinds of tokens have numbers; state i's row has a step for each byte.
struct lex_step {
  std::uint16_t next;   // the state after the byte
  bool begins = false;  // whether a token begins with the byte
};
struct lex_parts {
  std::vector<std::string> states;               // their names
  std::vector<std::string> kinds;                // kind k, from 1 on, is kinds[k - 1]; the first one is "error"
  std::vector<unsigned> kind_of;                 // of each state: what a token is that ends there; 0: no token is under way
  std::vector<std::array<lex_step, 256>> steps;  // of each state: a row
  unsigned start = 0;                            // the state before the first byte
};

// A table that is one, which never changes: so all that reads it may trust it. A token begins with the byte whose step begins it,
// and ends before the next byte whose step begins another or leads to a state of no token; its kind is that of the state after its
// last byte.
class lex_table {
 public:
  static constexpr unsigned most_states = 256, most_kinds = 127;
  static constexpr unsigned error_kind = 1;

  // Throws gpufs::error, whose text begins with `name` and says what makes the parts no table: no states or too many, a step or
  // a start that names no state, a start within a token, a kind that is not there, a step that begins no token but leads from none
  // into one, or begins one and leads to none.
  explicit lex_table(lex_parts parts, const std::string& name = "the table");

  // Of a text, as those in src/par/lex_tables.cpp. Throws gpufs::error, "NAME:LINE: what is wrong"; also for a byte that has
  // two steps in one state, as no DFA has.
  static lex_table parse(std::string_view text, const std::string& name);
  // One that is there: c, csv, json, or paper. Throws gpufs::error.
  static lex_table named(std::string_view name);
  // Its text; empty if there is none of that name.
  static std::optional<std::string_view> text_of(std::string_view name);
  static std::vector<std::string_view> names();

  unsigned nstates() const { return static_cast<unsigned>(parts_.states.size()); }
  unsigned start() const { return parts_.start; }
  const std::vector<std::string>& states() const { return parts_.states; }
  const std::vector<std::string>& kinds() const { return parts_.kinds; }
  unsigned kind_of(unsigned state) const { return parts_.kind_of[state]; }
  const lex_step& step(unsigned state, std::uint8_t byte) const { return parts_.steps[state][byte]; }

  // What kernels go by (lex.hpp): steps()[256 * state + byte] has the next state in its low 8 bits, above it the kind of the token
  // that ends before the byte, 0 if none does, and in bit 15 whether one begins with it.
  std::vector<std::uint16_t> packed_steps() const;
  std::vector<std::uint8_t> packed_kinds() const;
  // Of each byte the function from state to state, 4 bits a state; empty if the table has more than 16.
  std::vector<std::uint64_t> packed_maps() const;

 private:
  lex_parts parts_;
};

}  // namespace gpufs::par
