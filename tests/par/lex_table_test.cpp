// SPDX-License-Identifier: Apache-2.0
// What is a lexer's table, and what is said of what is none.
#include "gpufs/par/lex_table.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "gpufs/mount.hpp"
#include "leftovers.hpp"

namespace gpufs::test {
namespace {

using par::lex_parts;
using par::lex_table;

// Words of `a`, with anything else between them.
lex_parts words() {
  lex_parts parts{.states = {"between", "word"}, .kinds = {"error", "word"}, .kind_of = {0, 2}, .steps = {}};
  parts.steps.resize(2);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool is_letter = byte == 'a';
    parts.steps[0][byte] = {static_cast<std::uint16_t>(is_letter ? 1 : 0), is_letter};
    parts.steps[1][byte] = {static_cast<std::uint16_t>(is_letter ? 1 : 0), false};
  }
  return parts;
}
std::string why_not(const std::function<void(lex_parts&)>& spoil) {
  lex_parts parts = words();
  spoil(parts);
  try {
    const lex_table table(std::move(parts), "words");
  } catch (const error& why) {
    return why.what();
  }
  return "it is one";
}
std::string why_no_table(const std::string& text) {
  try {
    (void)lex_table::parse(text, "T");
  } catch (const error& why) {
    return why.what();
  }
  return "it is one";
}

TEST(lex_table, refuses_what_is_no_automaton_and_says_why) {
  EXPECT_EQ(why_not([](lex_parts&) {}), "it is one");
  EXPECT_EQ(why_not([](lex_parts& p) { p.states.clear(); }), "words: it has 0 states; a table has 1 to 256");
  EXPECT_EQ(why_not([](lex_parts& p) { p.states.resize(257); }), "words: it has 257 states; a table has 1 to 256");
  EXPECT_EQ(why_not([](lex_parts& p) { p.kinds.clear(); }), "words: it has 0 kinds of tokens; a table has 1 to 127");
  EXPECT_EQ(why_not([](lex_parts& p) { p.kinds.resize(128); }), "words: it has 128 kinds of tokens; a table has 1 to 127");
  EXPECT_EQ(why_not([](lex_parts& p) { p.kinds[0] = "word"; }), "words: its first kind of token is 'word', not 'error'");
  EXPECT_EQ(why_not([](lex_parts& p) { p.kinds[1] = "error"; }), "words: its kind 'error' is there twice");
  EXPECT_EQ(why_not([](lex_parts& p) { p.steps.pop_back(); }), "words: it has 2 states, but kinds of 2 and steps of 1");
  EXPECT_EQ(why_not([](lex_parts& p) { p.kind_of.pop_back(); }), "words: it has 2 states, but kinds of 1 and steps of 2");
  EXPECT_EQ(why_not([](lex_parts& p) { p.start = 2; }), "words: its start is state 2 of 2");
  EXPECT_EQ(why_not([](lex_parts& p) { p.start = 1; }), "words: its start, word, is a state within a token");
  EXPECT_EQ(why_not([](lex_parts& p) { p.kind_of[1] = 3; }), "words: state word has kind 3 of 2");
  EXPECT_EQ(why_not([](lex_parts& p) { p.steps[1][255].next = 2; }),
            "words: the step from state word by byte 255 leads to state 2 of 2");
  EXPECT_EQ(why_not([](lex_parts& p) { p.steps[1][66].begins = true; }),
            "words: the step from state word by byte 66 begins a token, but leads to between, where no token is under way");
  EXPECT_EQ(why_not([](lex_parts& p) { p.steps[0][97].begins = false; }),
            "words: the step from state between by byte 97 leads into a token (word), but begins none");
}

TEST(lex_table, in_a_text_that_is_wrong_is_refused_with_its_line) {
  const std::string head = "kinds error word\nstart s\nstate s -\n";
  EXPECT_EQ(why_no_table(head + " a -> begin w\nstate w word\n a -> w\n"), "it is one");
  EXPECT_EQ(why_no_table(""), "T:1: there is no state");
  EXPECT_EQ(why_no_table("kinds error\nstate s -\n"), "T:3: no line 'start NAME' says which state is the first");
  EXPECT_EQ(why_no_table("kinds error\nstart t\nstate s -\n"), "T:2: there is no state t");
  EXPECT_EQ(why_no_table("kinds word\n"), "T:1: the first kind is not 'error': write 'kinds error ...'");
  EXPECT_EQ(why_no_table("kinds error\nkinds error\n"), "T:2: there is a second line 'kinds'");
  EXPECT_EQ(why_no_table("start a\nstart b\n"), "T:2: there is a second line 'start'");
  EXPECT_EQ(why_no_table(head + "state s -\n"), "T:4: state s is there already, in line 3");
  EXPECT_EQ(why_no_table(head + "state w number\n"), "T:4: there is no kind 'number' in the line 'kinds', nor is it '-'");
  EXPECT_EQ(why_no_table(head + " a -> begin v\n"), "T:4: there is no state v");
  EXPECT_EQ(why_no_table(head + " a -> s\n a-c -> s\n"), "T:5: state s has two steps by 'a', the other in line 4: so it is no DFA");
  EXPECT_EQ(why_no_table(head + " \\n -> s\n \\x00-\\x1f -> s\n"),
            "T:5: state s has two steps by byte 10, the other in line 4: so it is no DFA");
  EXPECT_EQ(why_no_table(head + " else -> s\n else -> s\n"), "T:5: state s has a second 'else'");
  std::string states = "kinds error\nstart s0\n";  // each takes over the next one's row
  for (int i = 0; i < 10'000; ++i) states += "state s" + std::to_string(i) + " -\n \\n as s" + std::to_string(i + 1) + "\n";
  EXPECT_EQ(why_no_table(states), "T:515: a table has 256 states at most");
  EXPECT_EQ(why_no_table(head + " a else -> s\n"), "T:4: a line has bytes, or 'else' alone");
  EXPECT_EQ(why_no_table(head + " -> s\n"), "T:4: a line has bytes, or 'else' alone");
  EXPECT_EQ(why_no_table(head + " a s\n"), "T:4: neither '->' nor 'as' says what becomes of these bytes");
  EXPECT_EQ(why_no_table(head + " a -> s t\n"), "T:4: behind '->' or 'as' there is one state's name, or 'begin' and one");
  EXPECT_EQ(why_no_table(head + " a ->\n"), "T:4: behind '->' or 'as' there is one state's name, or 'begin' and one");
  EXPECT_EQ(why_no_table(head + " z-a -> s\n"), "T:4: 'z-a' is no byte (a, \\n, \\s, \\xff) and no range of them (a-z)");
  EXPECT_EQ(why_no_table(head + " ab -> s\n"), "T:4: 'ab' is no byte (a, \\n, \\s, \\xff) and no range of them (a-z)");
  EXPECT_EQ(why_no_table(head + " \\q -> s\n"),
            "T:4: there is no escape \\q; there are \\s (blank), \\t \\n \\r \\v \\f and \\xHH");
  EXPECT_EQ(why_no_table(head + " \\xf -> s\n"), "T:4: behind \\x there are two hexadecimal digits");
  EXPECT_EQ(why_no_table(head + " a as s\n"), "T:3: state s goes as itself");
  EXPECT_EQ(why_no_table(head + "state error -\n"),
            "T:4: 'error' is the state of bytes that the start does not list: choose another name");
  EXPECT_EQ(why_no_table(" a -> s\n"), "T:1: there is no state above this line");
  EXPECT_EQ(why_no_table("stat s -\n").substr(0, 32), "T:1: this is no line of a table:");
  EXPECT_EQ(why_no_table(head + " a -> w\nstate w word\n"),
            "T:4: the step from state s by 'a' leads into a token (w), but begins none");
  EXPECT_EQ(why_no_table(head + " a -> begin s\n"),
            "T:4: the step from state s by 'a' begins a token, but leads to s, where no token is under way");
  EXPECT_EQ(why_no_table("kinds error word\nstart w\nstate w word\n"), "T:2: the start, w, is a state within a token");
  EXPECT_EQ(why_no_table("kinds error word word\nstart s\nstate s -\n"), "T:1: the kind 'word' is there twice");
  std::string kinds = "kinds error";
  for (int i = 1; i < 128; ++i) kinds += " k" + std::to_string(i);
  EXPECT_EQ(why_no_table(kinds + "\n"), "T:1: a table has 127 kinds of tokens at most");
  std::string full = "kinds error\nstart s0\n";
  for (int i = 0; i < 256; ++i) full += "state s" + std::to_string(i) + " -\n else -> s0\n";
  EXPECT_EQ(why_no_table(full), "it is one");
  full.replace(full.find(" else"), 5, " a");
  EXPECT_EQ(why_no_table(full), "T:3: a table has 256 states at most, one of them for bytes that the start does not list");
}

// As a comment of a line does, a string and a character go on behind a backslash at the line's end, however that is written.
TEST(lex_table, of_c_goes_on_behind_a_backslash_at_a_lines_end) {
  const lex_table c = lex_table::named("c");
  const auto ends_in = [&](std::string_view text) {
    unsigned state = c.start();
    for (const char byte : text) state = c.step(state, static_cast<std::uint8_t>(byte)).next;
    return c.states()[state];
  };
  for (const std::string end : {"\n", "\r\n"}) {
    EXPECT_EQ(ends_in("\"s\\" + end + "t\""), "string-end") << end.size();
    EXPECT_EQ(ends_in("'s\\" + end + "t'"), "character-end") << end.size();
    EXPECT_EQ(ends_in("//s\\" + end + "t"), "line") << end.size();
  }
  EXPECT_EQ(ends_in("\"s\\\rt\""), "string-end");
  EXPECT_EQ(ends_in("1\xc3\xa9$"), "number");
}

TEST(lex_table, has_the_state_error_where_the_start_does_not_list_all_bytes) {
  const lex_table some = lex_table::parse("kinds error\nstart s\nstate s -\n  a -> s\n", "T");
  ASSERT_EQ(some.nstates(), 2u);
  EXPECT_EQ(some.states()[1], "error");
  EXPECT_EQ(some.step(0, 'b').next, 1);
  EXPECT_TRUE(some.step(1, 'b').begins);  // each such byte is a token
  EXPECT_EQ(some.step(1, 'a').next, 0);
  EXPECT_EQ(lex_table::parse("kinds error\nstart s\nstate s -\n  else -> s\n", "T").nstates(), 1u);
}

TEST(lex_table, of_a_name_is_one_that_is_there) {
  for (const std::string_view name : lex_table::names()) EXPECT_NO_THROW((void)lex_table::named(name)) << name;
  for (const char* name : {"csv", "json", "paper"}) EXPECT_EQ(lex_table::named(name).packed_maps().size(), 256u) << name;
  EXPECT_TRUE(lex_table::named("c").packed_maps().empty());
  try {
    (void)lex_table::named("yaml");
    ADD_FAILURE();
  } catch (const error& why) {
    EXPECT_STREQ(why.what(), "there is no table 'yaml'; there are c, csv, json, paper");
  }
}

}  // namespace
}  // namespace gpufs::test
