# SPDX-License-Identifier: Apache-2.0
"""Bugs in the data-parallel operations that are no scans."""

from __future__ import annotations

from .bug import Bug

MEETINGS = "include/gpufs/par/detail/meetings.hpp"
SEND = "include/gpufs/par/send.hpp"
SENDS = "par_send_cpu"
RECORD_ITEMS = "include/gpufs/par/detail/record_items.hpp"
APPEND_BY_GRID = "include/gpufs/par/detail/append_by_grid.hpp"
APPENDS = "par_append_records_cpu"
JUMPING = "include/gpufs/par/detail/pointer_jumping.hpp"
LISTS = "par_lists_cpu"
COUNT_BINS = "include/gpufs/par/detail/count_bins.hpp"
SELECT = "include/gpufs/par/detail/radix_select.hpp"
TOP_K = "par_top_k_cpu"
MEETING_PLACE = "include/gpufs/par/detail/meeting_place.hpp"

BUGS = (
    Bug(
        "a_place_behind_the_last_is_one",
        "an element that goes to the place just behind an array is sent there",
        MEETINGS,
        "if (places[i] >= nplaces &&",
        "if (places[i] > nplaces &&",
        SENDS,
        "send_refused/0.leaves_all_as_it_was",
    ),
    Bug(
        "who_meets_is_lost",
        "of two elements that are combined in one place at once, by an operator that the machine has not, one is lost",
        MEETINGS,
        "while (!place.compare_exchange(seen, op(seen, value), std::memory_order_relaxed)) {\n  }",
        "place.store(op(seen, value), std::memory_order_relaxed);",
        SENDS,
        "send_by/9.an_operator_gives_what_a_loop_gives",
    ),
    Bug(
        "any_of_those_that_meet_stays",
        "of elements that meet another than the last one may stay, or parts of several",
        MEETINGS,
        "return word(place).load_relaxed() == i + 1;",
        "return word(place).load_relaxed() != 0 || i == 0;",
        SENDS,
        "send_of/2.elements_that_meet_keeps_the_last",
    ),
    Bug(
        "a_send_hears_of_those_before",
        "the words of places keep who came in an earlier call, or whatever was in them",
        SEND,
        "each_sent([&](std::uint64_t i) { of.clear(to[i]); });",
        "",
        SENDS,
        "send_of/0.elements_that_must_not_meet_is_whole_or_nothing",
    ),
    Bug(
        "who_comes_early_is_forgotten",
        "the word of a place is cleared after an element has come there",
        SEND,
        "of.clear(to[i]); });\n  all.sync();",
        "of.clear(to[i]); });",
        SENDS,
        "send_of/0.elements_that_meet_keeps_the_last",
    ),
    Bug(
        "a_records_fault_is_lost_in_the_sum",
        "what is wrong with a record is not seen where the records before it have bytes",
        RECORD_ITEMS,
        "if (error(a) != 0 || error(b) != 0) return a > b ? a : b;",
        "if (error(a) != 0 || error(b) != 0) return a != 0 ? a : b;",
        APPENDS,
        "append_records.refuses_what_it_cannot_append_whole",
    ),
    Bug(
        "records_are_copied_behind_their_staging",
        "a record for which there is no room is copied",
        RECORD_ITEMS,
        "if (below <= room && nbytes <= room - below) {",
        "if (below <= room) {",
        APPENDS,
        "append_records.refuses_what_it_cannot_append_whole",
    ),
    Bug(
        "a_block_writes_a_page_too_few",
        "of the pages that a grid appends the last one of each block's is missing",
        APPEND_BY_GRID,
        ": (first + skipped + share) << shift;",
        ": (first + skipped + share - 1) << shift;",
        APPENDS,
        "append_records.puts_them_one_behind_the_other",
    ),
    Bug(
        "blocks_hear_of_their_own_pages_alone",
        "a page that one block of a grid could not write is no failure for the others",
        APPEND_BY_GRID,
        "row_failure::of(grid.reduce_min(mine, words));",
        "row_failure::of(mine | (grid.reduce_min(mine, words) & 0));",
        APPENDS,
        "write_errors.are_told_to_all_where_a_grids_records_cannot_be_appended",
    ),
    Bug(
        "lists_jump_while_they_have_mates",
        "as the paper prints it: an element without a mate never reaches the end of its list",
        JUMPING,
        "chum.then[i] = there == no_place<Place> ? there",
        "chum.then[i] = there == no_place<Place> || mate == no_place<Place> ? there",
        LISTS,
        "matched_lists.of_unequal_lengths_come_to_an_end",
    ),
    Bug(
        "a_circle_has_an_end",
        "who stands still is taken for the end, as on a circle of 2^k elements all do",
        JUMPING,
        "is_end = is_end && next[ends[i]] == no_place<Place>;",
        "is_end = is_end && ends[i] < n;",
        LISTS,
        "links_that_are_no_lists.have_no_end",
    ),
    Bug(
        "sums_of_lists_go_to_the_left",
        "elements of a list are combined in the wrong order",
        JUMPING,
        "op(sum.now[left], sum.now[i]);",
        "op(sum.now[i], sum.now[left]);",
        LISTS,
        "lists_of/0.values_are_what_a_walk_finds",
    ),
    Bug(
        "a_round_of_sums_reads_what_it_writes",
        "an element adds what another has summed up in the same round",
        JUMPING,
        "by_turns<T> sum(out, pieces.take<T>(n));",
        "by_turns<T> sum(out, out);",
        LISTS,
        "lists_of/0.values_are_what_a_walk_finds",
    ),
    Bug(
        "lists_that_join_have_sums",
        "nobody looks whether an element is behind two others",
        JUMPING,
        "if (next[i] != no_place<Place>) meets = comes_second(before.now, next[i], i) || meets;",
        "if (next[i] != no_place<Place>) meets = comes_second(before.now, next[i], i) && meets;",
        LISTS,
        "links_that_are_no_lists.are_told_before_anything_is_written",
    ),
    Bug(
        "the_longest_list_has_a_round_too_few",
        "a list of all elements is taken for a circle",
        JUMPING,
        "while (rounds < 64 && (std::uint64_t{1} << rounds) < n) ++rounds;",
        "while (rounds < 64 && (std::uint64_t{1} << rounds) < n / 2) ++rounds;",
        LISTS,
        "lists_of/1.values_are_what_a_walk_finds",
    ),
    Bug(
        "a_bin_behind_the_last_is_counted",
        "an element of the bin just behind the last one is counted there",
        COUNT_BINS,
        "if (b < nbins) count(b);",
        "if (b <= nbins) count(b);",
        TOP_K,
        "histogram_of/0.elements_is_what_a_loop_counts",
    ),
    Bug(
        "elements_are_counted_before_bins_are_empty",
        "a thread counts in shared memory while others clear it",
        COUNT_BINS,
        "bins.of[b] = 0;\n    block.sync();",
        "bins.of[b] = 0;",
        TOP_K,
        "histogram_of/0.elements_is_what_a_loop_counts",
    ),
    Bug(
        "a_grid_counts_what_is_not_written_yet",
        "a histogram by a grid reads elements, or clears counts, that other blocks are still at",
        COUNT_BINS,
        "grid.sync();  // all have written the elements, and read what was counted before",
        "",
        TOP_K,
        "histogram_by_a_grid.follows_what_was_written_and_read",
    ),
    Bug(
        "keys_that_begin_otherwise_are_counted",
        "a digit of keys counts that begin with other digits than the k-th one",
        SELECT,
        "return begins_so ? static_cast",
        "return begins_so || shift == 0 ? static_cast",
        TOP_K,
        "top_k_of/2.keys_are_the_first_in_their_order",
    ),
    Bug(
        "an_equal_key_too_many",
        "of the keys that are equal to the k-th one, one more than there is room for is taken",
        SELECT,
        "if (row[k] == 0 || below >= most) return;",
        "if (row[k] == 0 || below > most) return;",
        TOP_K,
        "top_k_of/0.keys_are_the_first_in_their_order",
    ),
    Bug(
        "an_item_that_is_given_stays_free",
        "who allocates next may get an item that somebody has",
        MEETING_PLACE,
        "if (item != no_place<Place>) is_free[item] = 0;",
        "",
        "par_rendezvous_cpu",
        "rendezvous.gives_each_item_once",
    ),
    Bug(
        "who_comes_too_late_gets_an_item",
        "one more than there are free items for gets what is at the end of their array",
        MEETING_PLACE,
        "row[k] != 0 && below < nfree ?",
        "row[k] != 0 && below <= nfree ?",
        "par_rendezvous_cpu",
        "rendezvous_by/0.numbers_gives_what_a_loop_gives",
    ),
)
