# SPDX-License-Identifier: Apache-2.0
"""Bugs in the search for words and strings in trees of files."""

from __future__ import annotations

from .bug import Bug, Edit

TEXT = "apps/words/text.hpp"
BY_KERNELS = "apps/words/finder_device.hpp"
BY_THREADS = "apps/words/finder_cpu.cpp"
TEST = "words_test_cpu"
LOOP = "words_in_trees.are_counted_as_a_plain_loop_has_them"
LONG = "words_in_trees.that_are_long_are_found_across_borders_of_pieces"
STRINGS = "words_in_trees.strings_are_found_with_their_lines"

BUGS = (
    Bug(
        "word_begins_with_its_chunk",
        "what goes on from the chunk before is taken for a word",
        BY_KERNELS,
        "const std::uint32_t before_all = is_in_word(words.letters, mine.text(), -1) ? 1 : 0;",
        "const std::uint32_t before_all = 0;",
        TEST,
        LOOP,
    ),
    Bug(
        "word_ends_with_its_piece",
        "a thread looks at nothing behind a piece's end",
        BY_THREADS,
        "const std::int64_t got = read(fd, text - before, before + most + ahead_, offset - before);",
        "const std::int64_t got = read(fd, text - before, before + most, offset - before);",
        TEST,
        LONG,
    ),
    Bug(
        "run_longer_than_its_bits",
        "a word that goes over several words of marks ends with the second one",
        TEXT,
        "for (n = left; n <= most;) {",
        "for (n = left; n <= left;) {",
        TEST,
        LONG,
    ),
    Bug(
        "long_words_equal_by_their_keys_of_8_bytes",
        "of a word's blocks of 8 bytes only the last one counts, and its bytes are not compared",
        TEXT,
        "(here.nbytes <= 8 || is_same_word<Folds>(in, here.word, text, wanted.at, wanted.nbytes))",
        "(here.nbytes <= 8 || here.word != no_word)",
        TEST,
        "words_in_trees.of_eight_bytes_and_more_differ_by_all_of_them",
        also=(Edit(TEXT, "key = nbytes == 0 ? block : mix(key) ^ block;", "key = block;"),),
    ),
    Bug(
        "overlong_characters",
        "a character that is written with too many bytes is one",
        TEXT,
        "if (of.code < least || of.code > 0x10ffff ||",
        "if (of.code > 0x10ffff ||",
        TEST,
        "words_in_trees.that_bytes_of_no_text_cut_are_words",
    ),
    Bug(
        "folds_ascii_only",
        "letters beyond ASCII keep their case",
        TEXT,
        "if (beyond_ascii) key = folded_key(in.letters, text, at, nbytes);",
        "",
        TEST,
        "words_in_trees.are_equal_in_either_case_where_that_is_asked_for",
    ),
    Bug(
        "full_table_forgets",
        "a word for which the table has no room is not counted",
        BY_KERNELS,
        "while (warp.any(word != no_word && !count(mine, word))) {",
        "if (warp.any(word != no_word && !count(mine, word))) {",
        TEST,
        "words_in_trees.of_more_kinds_than_a_table_holds_are_all_counted",
    ),
    Bug(
        "failed_files_count",
        "a file that could not be read counts what was found before",
        "apps/words/order.cpp",
        "if (of.errors[each.file] == 0) ++places[each.file + std::size_t{1}];\n",
        "++places[each.file + std::size_t{1}];\n",
        TEST,
        "found_segments.of_files_that_failed_are_gone_and_the_others_are_in_order",
        also=(
            Edit(
                "apps/words/order.cpp",
                "if (of.errors[each.file] == 0) in_order[places[each.file]++] = each;",
                "in_order[places[each.file]++] = each;",
            ),
        ),
    ),
    Bug(
        "rows_of_pieces_not_joined",
        "what two pieces of a file have of a word are two rows",
        "apps/words/order.cpp",
        "if (word.file == here.file) {",
        "if (word.file == here.file && here.nrecords == 0) {",
        TEST,
        LOOP,
    ),
    Bug(
        "string_over_a_border",
        "a string that goes over a piece's end is not found",
        BY_KERNELS,
        "const bool is_there = at < n && is_string_at(text, mine.text(), at);",
        "const bool is_there = at + text.nbytes <= n && is_string_at(text, mine.text(), at);",
        TEST,
        STRINGS,
    ),
)
