// SPDX-License-Identifier: Apache-2.0
#include "gpufs/par/lex_table.hpp"

#include <algorithm>
#include <utility>

#include "gpufs/mount.hpp"

namespace gpufs::par {
namespace {

class checker {
 public:
  checker(const lex_parts& of, const std::string& name) : of_(of), name_(name) {}

  void check() const {
    const std::size_t nstates = of_.states.size();
    if (nstates == 0 || nstates > lex_table::most_states)
      fail("it has " + std::to_string(nstates) + " states; a table has 1 to " + std::to_string(lex_table::most_states));
    if (of_.kinds.empty() || of_.kinds.size() > lex_table::most_kinds)
      fail("it has " + std::to_string(of_.kinds.size()) + " kinds of tokens; a table has 1 to " +
           std::to_string(lex_table::most_kinds));
    if (of_.kinds[0] != "error") fail("its first kind of token is '" + of_.kinds[0] + "', not 'error'");
    for (auto kind = of_.kinds.begin(); kind != of_.kinds.end(); ++kind) {
      if (std::find(of_.kinds.begin(), kind, *kind) != kind) fail("its kind '" + *kind + "' is there twice");
    }
    if (of_.kind_of.size() != nstates || of_.steps.size() != nstates)
      fail("it has " + std::to_string(nstates) + " states, but kinds of " + std::to_string(of_.kind_of.size()) + " and steps of " +
           std::to_string(of_.steps.size()));
    if (of_.start >= nstates) fail("its start is state " + std::to_string(of_.start) + " of " + std::to_string(nstates));
    for (std::size_t state = 0; state < nstates; ++state) {
      if (of_.kind_of[state] > of_.kinds.size())
        fail("state " + of_.states[state] + " has kind " + std::to_string(of_.kind_of[state]) + " of " +
             std::to_string(of_.kinds.size()));
    }
    if (of_.kind_of[of_.start] != 0) fail("its start, " + of_.states[of_.start] + ", is a state within a token");
    for (std::size_t state = 0; state < nstates; ++state) {
      for (unsigned byte = 0; byte < 256; ++byte) check(state, byte);
    }
  }

 private:
  void check(std::size_t state, unsigned byte) const {
    const lex_step& step = of_.steps[state][byte];
    const auto what = [&] { return "the step from state " + of_.states[state] + " by byte " + std::to_string(byte); };
    if (step.next >= of_.states.size())
      fail(what() + " leads to state " + std::to_string(step.next) + " of " + std::to_string(of_.states.size()));
    const bool from_token = of_.kind_of[state] != 0, to_token = of_.kind_of[step.next] != 0;
    const std::string& next = of_.states[step.next];
    if (step.begins && !to_token) fail(what() + " begins a token, but leads to " + next + ", where no token is under way");
    if (!step.begins && !from_token && to_token) fail(what() + " leads into a token (" + next + "), but begins none");
  }
  [[noreturn]] void fail(const std::string& why) const { throw error(name_ + ": " + why); }

  const lex_parts& of_;
  const std::string& name_;
};

}  // namespace

lex_table::lex_table(lex_parts parts, const std::string& name) : parts_(std::move(parts)) { checker(parts_, name).check(); }

std::vector<std::uint16_t> lex_table::packed_steps() const {
  std::vector<std::uint16_t> all;
  all.reserve(std::size_t{256} * nstates());
  for (unsigned state = 0; state < nstates(); ++state) {
    for (const lex_step& step : parts_.steps[state]) {
      const bool ends = step.begins || kind_of(step.next) == 0;
      all.push_back(static_cast<std::uint16_t>(step.next | (ends ? kind_of(state) : 0) << 8 | (step.begins ? 1u << 15 : 0)));
    }
  }
  return all;
}
std::vector<std::uint8_t> lex_table::packed_kinds() const { return {parts_.kind_of.begin(), parts_.kind_of.end()}; }
std::vector<std::uint64_t> lex_table::packed_maps() const {
  if (nstates() > 16) return {};
  std::vector<std::uint64_t> all(256);
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (unsigned state = 0; state < nstates(); ++state) {
      all[byte] |= std::uint64_t{step(state, static_cast<std::uint8_t>(byte)).next} << 4 * state;
    }
  }
  return all;
}

}  // namespace gpufs::par
