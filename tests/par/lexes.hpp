// SPDX-License-Identifier: Apache-2.0
// What tests of lexers share: automata and texts drawn at random, and what an automaton says of a text.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpufs/par/lex_table.hpp"

namespace gpufs::test {

struct token {
  std::uint64_t offset;
  unsigned kind;
  friend bool operator==(const token&, const token&) = default;
  friend std::ostream& operator<<(std::ostream& to, const token& t) { return to << t.offset << ":" << t.kind; }
};
using text_bytes = std::vector<std::uint8_t>;

// What a table says of a text, byte by byte.
inline std::vector<token> tokens_of(const par::lex_table& table, std::span<const std::uint8_t> text) {
  std::vector<token> all;
  unsigned state = table.start();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const par::lex_step& step = table.step(state, text[i]);
    if (step.begins || table.kind_of(step.next) == 0) {
      if (table.kind_of(state) != 0) all.back().kind = table.kind_of(state);
    }
    if (step.begins) all.push_back({i, 0});
    state = step.next;
  }
  if (table.kind_of(state) != 0) all.back().kind = table.kind_of(state);
  return all;
}

// Automata whose bytes lead anywhere, or of which each byte permutes the states, so that no byte makes what was before forgotten.
inline par::lex_table drawn_table(std::mt19937_64& draw, unsigned nstates, bool permutes) {
  par::lex_parts parts;
  const unsigned nkinds = 1 + static_cast<unsigned>(draw() % 5);
  for (unsigned kind = 0; kind < nkinds; ++kind) parts.kinds.push_back(kind == 0 ? "error" : std::to_string(kind));
  parts.start = static_cast<unsigned>(draw() % nstates);
  for (unsigned state = 0; state < nstates; ++state) {
    parts.states.push_back(std::to_string(state));
    parts.kind_of.push_back(state == parts.start ? 0 : static_cast<unsigned>(draw() % (nkinds + 1)));
  }
  parts.steps.resize(nstates);
  std::vector<std::uint16_t> order(nstates);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::shuffle(order.begin(), order.end(), draw);
    for (unsigned state = 0; state < nstates; ++state) {
      const auto next = static_cast<std::uint16_t>(permutes ? order[state] : draw() % nstates);
      const bool to_token = parts.kind_of[next] != 0, from_token = parts.kind_of[state] != 0;
      parts.steps[state][byte] = {next, to_token && (!from_token || draw() % 2 == 0)};
    }
  }
  return par::lex_table(std::move(parts));
}
inline text_bytes drawn_text(std::mt19937_64& draw, std::uint64_t n) {
  text_bytes text(n);
  const std::uint64_t nbytes = draw() % 2 == 0 ? 256 : 3;
  for (std::uint8_t& byte : text) byte = static_cast<std::uint8_t>(draw() % nbytes);
  return text;
}

}  // namespace gpufs::test
