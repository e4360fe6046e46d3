# SPDX-License-Identifier: Apache-2.0
"""Bugs in lexing."""

from __future__ import annotations

from .bug import Bug

MAPS = "include/gpufs/par/detail/lex_by_maps.hpp"
WALKS = "include/gpufs/par/detail/lex_by_walks.hpp"
LEXES = "par_lex_cpu"
TABLES = "par_lex_table"
FILES = "lexer_test_cpu"
OF_ALL = "lexing.finds_what_random_automata_say_by_all_groups"

BUGS = (
    Bug(
        "right_function_first",
        "of two bytes the function of the right one is applied first",
        MAPS,
        "both |= (g >> 4 * of(f, state) & 15) << 4 * state;",
        "both |= (f >> 4 * of(g, state) & 15) << 4 * state;",
        LEXES,
        OF_ALL,
    ),
    Bug(
        "bytes_behind_the_end_have_functions",
        "what lies behind a piece's end changes the state after it",
        MAPS,
        "return k < valid ? maps[bytes[k]] : compose_maps{}.identity();",
        "return maps[bytes[k]];",
        LEXES,
        "lexing.goes_on_where_a_piece_of_a_text_ended",
    ),
    Bug(
        "tokens_beyond_their_room",
        "tokens for which there is no room are written behind it",
        MAPS,
        "if ((mark & begins_here) != 0 && next < out.room) out.offsets",
        "if ((mark & begins_here) != 0) out.offsets",
        LEXES,
        "lexing.without_room_for_all_tokens_says_how_many_there_are",
    ),
    Bug(
        "token_begins_with_its_piece",
        "a token that goes on from the piece before begins with this one",
        WALKS,
        "if (before != 0) tokens.offsets[0] = at.begin;",
        "if (before != 0) tokens.offsets[0] = at.offset;",
        LEXES,
        "lexing.of_a_text_that_ends_later_leaves_its_last_token_to_the_next_piece",
    ),
    Bug(
        "token_under_way_forgets_its_beginning",
        "a token that goes over two ends of pieces begins with the second one",
        WALKS,
        "if (goes_on != 0) after.begin = tokens.offsets[all - 1];",
        "if (nbegun != 0) after.begin = at.offset;",
        LEXES,
        "lexing.goes_on_where_a_piece_of_a_text_ended",
    ),
    Bug(
        "last_token_has_no_kind",
        "a token that the text's end ends has the kind that its memory had",
        WALKS,
        "if (ends) tokens.kinds[all - 1] = table.kinds[after.state];",
        "",
        LEXES,
        "lexing.by_the_papers_table_has_words_operators_and_strings",
    ),
    Bug(
        "marks_read_before_they_are_written",
        "tokens are counted while others still walk",
        WALKS,
        "  threads.sync();  // the marks are there, and the space is free\n",
        "",
        LEXES,
        "lexing.is_the_same_in_all_schedules",
    ),
    Bug(
        "state_behind_a_piece",
        "a piece is walked from the state after it",
        WALKS,
        "          below.states[i] = static_cast<std::uint8_t>(before);\n"
        "          before = below.functions[i * table_.nstates + before];\n",
        "          before = below.functions[i * table_.nstates + before];\n"
        "          below.states[i] = static_cast<std::uint8_t>(before);\n",
        LEXES,
        OF_ALL,
    ),
    Bug(
        "token_not_ended_by_the_next",
        "a token behind which another begins at once has no kind",
        "src/par/lex_table.cpp",
        "const bool ends = step.begins || kind_of(step.next) == 0;",
        "const bool ends = kind_of(step.next) == 0;",
        LEXES,
        OF_ALL,
    ),
    Bug(
        "two_steps_by_one_byte",
        "of a state's two steps by one byte the later one is taken",
        "src/par/lex_parse.cpp",
        "if (const bytes both = other.of & one.of; both.any()) {",
        "if (const bytes both = other.of & one.of; both.all()) {",
        TABLES,
        "lex_table.in_a_text_that_is_wrong_is_refused_with_its_line",
    ),
    Bug(
        "step_out_of_the_table",
        "a step that leads to a state that is not there is taken for one",
        "src/par/lex_table.cpp",
        "if (step.next >= of_.states.size())",
        "if (step.next > of_.states.size())",
        TABLES,
        "lex_table.refuses_what_is_no_automaton_and_says_why",
    ),
    Bug(
        "a_text_that_no_memory_has_finds_room",
        "the space that a text needs is not asked for its marks alone, and the whole formula wraps around",
        "include/gpufs/par/detail/lex_by_walks.hpp",
        "text.nbytes <= space.nbytes && ",
        "",
        "par_lex_cpu",
        "lexing.of_texts_that_no_memory_has_is_refused",
    ),
    Bug(
        "lexer_goes_on_without_where_its_token_began",
        "a token that was under way when a lexer was given up begins where another one goes on",
        "apps/lex/lexer.hpp",
        "    at_ = from;",
        "    at_ = {from.offset, from.offset, from.state};",
        FILES,
        "lexers.go_on_with_a_token_that_began_pieces_ago",
    ),
    Bug(
        "kernels_go_on_with_the_files_beginning",
        "a lexer by kernels that goes on reads from the file's first byte on",
        "apps/lex/lexer_device.hpp",
        "std::nullopt, piece_nbytes(), offset);",
        "std::nullopt, piece_nbytes(), 0);",
        FILES,
        "lexers.go_on_behind_each_piece_that_another_one_has_lexed",
    ),
    Bug(
        "lexer_goes_on_in_the_state_of_the_beginning",
        "the automaton's state is lost where a lexer goes on",
        "apps/lex/lexer.hpp",
        "    at_ = from;",
        "    at_ = {from.offset, from.begin, at_.state};",
        FILES,
        "lexers.go_on_behind_each_piece_that_another_one_has_lexed",
    ),
)
