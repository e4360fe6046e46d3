# SPDX-License-Identifier: Apache-2.0
"""Bugs in the search for nearest vectors."""

from __future__ import annotations

from .bug import Bug

SCAN = "apps/vectors/scan.hpp"
TEST = "vectors_test_cpu"
SHAPES = "vectors.of_all_shapes_have_the_neighbours_of_a_plain_loop"
EQUAL = "vectors.that_are_equally_far_come_in_the_order_of_their_ids_whichever_list_has_them"

BUGS = (
    Bug(
        "equally_near_is_too_far",
        "a vector that is as far as the bound is left out, though its id is less",
        SCAN,
        "bits_of(sums[t]) <= bound(mine, t)",
        "bits_of(sums[t]) < bound(mine, t)",
        TEST,
        EQUAL,
    ),
    Bug(
        "place_counts_others_for_each_part",
        "a key goes too far back where the list has more than 32",
        SCAN,
        "if (first == 0 && other < key) ++at;",
        "if (other < key) ++at;",
        TEST,
        SHAPES,
    ),
    Bug(
        "first_elements_of_long_queries_again",
        "of vectors with more elements than a block has at once, the rest is compared with the query's first ones",
        SCAN,
        "load_queries(mine, of, d);",
        "load_queries(mine, of, 0);",
        TEST,
        SHAPES,
    ),
    Bug(
        "pieces_share_a_slot",
        "what the pieces of a list find of a query goes to one place",
        SCAN,
        "(std::uint64_t{each.slot} + of.piece) * k;",
        "std::uint64_t{each.slot} * k;",
        TEST,
        SHAPES,
    ),
    Bug(
        "warp_keeps_what_it_found",
        "what the last warp of a block has found is not in the block's list",
        SCAN,
        "for (unsigned other = 0; other < nwarps_a_block; ++other) {",
        "for (unsigned other = 0; other + 1 < nwarps_a_block; ++other) {",
        TEST,
        SHAPES,
    ),
    Bug(
        "rest_of_a_group_is_a_vector",
        "what fills a list's last group has an id that is there",
        "apps/vectors/builder.cpp",
        "[std::uint64_t{dim_} * group_vectors + lane] = no_id;",
        "[std::uint64_t{dim_} * group_vectors + lane] = 0;",
        TEST,
        SHAPES,
    ),
    Bug(
        "cut_index_is_opened",
        "an index that is shorter than its header says is searched",
        "apps/vectors/index_file.cpp",
        "if (file_.nbytes() != head_.file_nbytes) {",
        "if (file_.nbytes() > head_.file_nbytes) {",
        TEST,
        "damaged_index.file_was_cut",
    ),
)
