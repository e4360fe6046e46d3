// SPDX-License-Identifier: Apache-2.0
// Tables of lexers as text.
#include <algorithm>
#include <bitset>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "gpufs/mount.hpp"
#include "gpufs/par/lex_table.hpp"

namespace gpufs::par {
namespace {

using bytes = std::bitset<256>;

// A line below a state: the bytes, and what becomes of them.
struct rule {
  std::size_t line;
  bytes of;
  bool is_else = false, begins = false, as = false;  // as: go as the state `to` has it
  std::string to;
};
struct state_text {
  std::size_t line;
  std::string name, kind;
  std::vector<rule> rules;
};

class parser {
 public:
  parser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  lex_table parse() {
    read();
    if (states_.empty()) fail(line_, "there is no state");
    if (start_.empty()) fail(line_, "no line 'start NAME' says which state is the first");
    for (const state_text& state : states_) {
      parts_.states.push_back(state.name);
      parts_.kind_of.push_back(state.kind == "-" ? 0 : kind_number(state));
    }
    parts_.start = number_of(start_, start_line_);
    if (parts_.kind_of[parts_.start] != 0) fail(start_line_, "the start, " + start_ + ", is a state within a token");
    // What the start does not list is an error of one byte, after which all goes on as from the start.
    const auto error = static_cast<unsigned>(states_.size());
    done_.resize(states_.size());
    parts_.steps.resize(states_.size());
    for (unsigned i = 0; i < states_.size(); ++i) resolve(i, error);
    if (needs_error_ && states_.size() == lex_table::most_states) {
      fail(states_[parts_.start].line, "a table has " + std::to_string(lex_table::most_states) +
                                           " states at most, one of them for bytes that the start does not list");
    }
    if (needs_error_) {
      parts_.states.emplace_back("error");
      parts_.kind_of.push_back(lex_table::error_kind);
      parts_.steps.push_back(parts_.steps[parts_.start]);
    }
    return lex_table(std::move(parts_), name_);
  }

 private:
  static constexpr std::string_view blanks = " \t\r";

  void read() {
    std::size_t at = 0;
    while (at <= text_.size()) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      ++line_;
      read_line(text_.substr(at, end - at));
      at = end + 1;
    }
  }
  void read_line(std::string_view line) {
    std::vector<std::string_view> words;
    for (std::size_t at = line.find_first_not_of(blanks); at != std::string_view::npos;) {
      const std::size_t end = std::min(line.find_first_of(blanks, at), line.size());
      words.push_back(line.substr(at, end - at));
      at = line.find_first_not_of(blanks, end);
    }
    if (words.empty()) return;
    if (blanks.find(line[0]) != std::string_view::npos) return read_rule(words);
    if (words[0][0] == '#') return;
    if (words[0] == "kinds") {
      if (!parts_.kinds.empty()) fail(line_, "there is a second line 'kinds'");
      for (std::size_t i = 1; i < words.size(); ++i) {
        if (std::ranges::find(parts_.kinds, words[i]) != parts_.kinds.end())
          fail(line_, "the kind '" + std::string(words[i]) + "' is there twice");
        parts_.kinds.emplace_back(words[i]);
      }
      if (parts_.kinds.size() > lex_table::most_kinds)
        fail(line_, "a table has " + std::to_string(lex_table::most_kinds) + " kinds of tokens at most");
      if (parts_.kinds.empty() || parts_.kinds[0] != "error") fail(line_, "the first kind is not 'error': write 'kinds error ...'");
      return;
    }
    if (words[0] == "start" && words.size() == 2) {
      if (!start_.empty()) fail(line_, "there is a second line 'start'");
      start_ = words[1];
      start_line_ = line_;
      return;
    }
    if (words[0] == "state" && words.size() == 3) {
      for (const state_text& other : states_) {
        if (other.name == words[1]) fail(line_, "state " + other.name + " is there already, in line " + std::to_string(other.line));
      }
      if (words[1] == "error") fail(line_, "'error' is the state of bytes that the start does not list: choose another name");
      if (states_.size() == lex_table::most_states)  // also so that rows which name each other are no deep stack
        fail(line_, "a table has " + std::to_string(lex_table::most_states) + " states at most");
      states_.push_back({line_, std::string(words[1]), std::string(words[2]), {}});
      return;
    }
    fail(line_,
         "this is no line of a table: write 'kinds error NAME...', 'start NAME', 'state NAME KIND', or below a state "
         "'BYTES... -> NAME', 'BYTES... -> begin NAME', 'BYTES... as NAME'");
  }
  void read_rule(const std::vector<std::string_view>& words) {
    if (states_.empty()) fail(line_, "there is no state above this line");
    rule one{.line = line_, .of = {}, .to = {}};
    std::size_t i = 0;
    for (; i < words.size() && words[i] != "->" && words[i] != "as"; ++i) {
      if (words[i] == "else") {
        one.is_else = true;
      } else {
        one.of |= set_of(words[i]);
      }
    }
    if (i == words.size()) fail(line_, "neither '->' nor 'as' says what becomes of these bytes");
    one.as = words[i++] == "as";
    if (i + 1 < words.size() && words[i] == "begin" && !one.as) {
      one.begins = true;
      ++i;
    }
    if (i + 1 != words.size()) fail(line_, "behind '->' or 'as' there is one state's name, or 'begin' and one");
    if (one.is_else == one.of.any()) fail(line_, "a line has bytes, or 'else' alone");
    one.to = words[i];
    for (const rule& other : states_.back().rules) {
      if (one.is_else && other.is_else) fail(line_, "state " + states_.back().name + " has a second 'else'");
      if (const bytes both = other.of & one.of; both.any()) {
        fail(line_, "state " + states_.back().name + " has two steps by " + text_of(both) + ", the other in line " +
                        std::to_string(other.line) + ": so it is no DFA");
      }
    }
    states_.back().rules.push_back(std::move(one));
  }

  // "a", "a-z", "\n", "\x80-\xff".
  bytes set_of(std::string_view word) const {
    std::size_t at = 0;
    const unsigned first = byte_of(word, at);
    unsigned last = first;
    if (at + 1 < word.size() && word[at] == '-') last = byte_of(word, ++at);
    if (at != word.size() || last < first)
      fail(line_, "'" + std::string(word) + "' is no byte (a, \\n, \\s, \\xff) and no range of them (a-z)");
    bytes set;
    for (unsigned byte = first; byte <= last; ++byte) set.set(byte);
    return set;
  }
  unsigned byte_of(std::string_view word, std::size_t& at) const {
    const auto literal = static_cast<unsigned char>(word[at++]);
    if (literal != '\\' || at == word.size()) return literal;
    const char escape = word[at++];
    switch (escape) {
      case 's':
        return ' ';
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'v':
        return '\v';
      case 'f':
        return '\f';
      case 'x': {
        const std::string digits(word.substr(at, 2));
        if (digits.size() != 2 || !std::isxdigit(static_cast<unsigned char>(digits[0])) ||
            !std::isxdigit(static_cast<unsigned char>(digits[1])))
          fail(line_, "behind \\x there are two hexadecimal digits");
        at += 2;
        return static_cast<unsigned>(std::stoul(digits, nullptr, 16));
      }
      default:
        if (std::isalnum(static_cast<unsigned char>(escape)) != 0)
          fail(line_, std::string("there is no escape \\") + escape + "; there are \\s (blank), \\t \\n \\r \\v \\f and \\xHH");
        return static_cast<unsigned char>(escape);
    }
  }
  static std::string text_of(const bytes& set) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (!set[byte]) continue;
      if (std::isgraph(static_cast<int>(byte)) != 0) return std::string("'") + static_cast<char>(byte) + "'";
      return "byte " + std::to_string(byte);
    }
    return {};
  }

  unsigned kind_number(const state_text& of) const {
    for (unsigned i = 0; i < parts_.kinds.size(); ++i) {
      if (parts_.kinds[i] == of.kind) return i + 1;
    }
    fail(of.line, "there is no kind '" + of.kind + "' in the line 'kinds', nor is it '-'");
  }
  unsigned number_of(const std::string& state, std::size_t line) const {
    for (unsigned i = 0; i < states_.size(); ++i) {
      if (states_[i].name == state) return i;
    }
    fail(line, "there is no state " + state);
  }

  enum class progress : std::uint8_t { none, begun, done };
  // Fills the state's row, after those of states that it goes as.
  void resolve(unsigned state, unsigned error) {
    if (done_[state] == progress::done) return;
    if (done_[state] == progress::begun) fail(states_[state].line, "state " + states_[state].name + " goes as itself");
    done_[state] = progress::begun;
    std::array<lex_step, 256> row;
    row.fill({static_cast<std::uint16_t>(error), true});
    bytes listed;
    bool has_else = false;
    for (const rule& each : states_[state].rules) listed |= each.of;
    for (const rule& each : states_[state].rules) {
      has_else = has_else || each.is_else;
      apply(state, each, each.is_else ? ~listed : each.of, row, error);
    }
    if (!has_else && state != parts_.start) {
      apply(state, {.line = states_[state].line, .of = {}, .as = true, .to = start_}, ~listed, row, error);
    }
    for (const lex_step& step : row) needs_error_ = needs_error_ || step.next == error;
    parts_.steps[state] = row;
    done_[state] = progress::done;
  }
  void apply(unsigned state, const rule& of, const bytes& set, std::array<lex_step, 256>& row, unsigned error) {
    const unsigned to = number_of(of.to, of.line);
    const bool from_token = parts_.kind_of[state] != 0, to_token = parts_.kind_of[to] != 0;
    if (!of.as && set.any() && (of.begins ? !to_token : to_token && !from_token)) {
      fail(of.line, "the step from state " + states_[state].name + " by " + text_of(set) +
                        (of.begins ? " begins a token, but leads to " + of.to + ", where no token is under way"
                                   : " leads into a token (" + of.to + "), but begins none"));
    }
    if (of.as && set.any()) resolve(to, error);
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (set[byte]) row[byte] = of.as ? parts_.steps[to][byte] : lex_step{static_cast<std::uint16_t>(to), of.begins};
    }
  }

  [[noreturn]] void fail(std::size_t line, const std::string& why) const {
    throw gpufs::error(name_ + ":" + std::to_string(line) + ": " + why);
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t line_ = 0, start_line_ = 0;
  std::string start_;
  std::vector<state_text> states_;
  std::vector<progress> done_;
  bool needs_error_ = false;
  lex_parts parts_;
};

}  // namespace

lex_table lex_table::parse(std::string_view text, const std::string& name) { return parser(text, name).parse(); }

}  // namespace gpufs::par
