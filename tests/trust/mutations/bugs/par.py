# SPDX-License-Identifier: Apache-2.0
"""Bugs in batches of rows."""

from __future__ import annotations

from .bug import Bug

READ_ROW = "include/gpufs/par/detail/read_row.hpp"
AT_HAND = "include/gpufs/par/detail/row_at_hand.hpp"
STORE_ROWS = "include/gpufs/par/detail/store_rows.hpp"
TAKE_ROWS = "include/gpufs/par/detail/take_rows.hpp"
TOUCHED = "include/gpufs/par/detail/touched_pages.hpp"
GATHER = "include/gpufs/par/gather.hpp"
BY_GRID = "include/gpufs/par/gather_by_grid.hpp"
SCATTER = "include/gpufs/par/scatter.hpp"
PART = "src/par/row_part.hpp"
BY_HOST = "src/par/gather_by_host.hpp"
PROGRAM = "par_row_batch_cpu"
IN_KERNELS = "par_gather_cpu"

BUGS = (
    Bug(
        "a_scan_evicts",
        "rows of one batch that share a page, or a word of the touched pages, count as a second use",
        TOUCHED,
        " && (before & ~0xffu) == tag && (before & 0xff) != piece_;",
        ";",
        PROGRAM,
        "row_batch_admits.what_has_room_and_what_is_read_again",
    ),
    Bug(
        "a_failed_fill_is_taken_for_a_page",
        "a page whose fill has failed just now is copied from, with what its frame had before",
        "include/gpufs/cache/detail/frames.hpp",
        "constexpr std::uint64_t is_none = frame_state::filling | frame_state::failed | frame_state::partial;",
        "constexpr std::uint64_t is_none = frame_state::filling | frame_state::partial;",
        PROGRAM,
        "row_batch_reads.nothing_of_a_page_whose_fill_has_failed",
    ),
    Bug(
        "a_batch_waits_for_frames",
        "a row whose page is to be cached fails where all frames are pinned",
        AT_HAND,
        "{0, cache_type::at_hand});",
        "{0, of.timeouts().frame_ns});",
        PROGRAM,
        "row_batch_reads.past_a_cache_whose_frames_are_all_pinned",
    ),
    Bug(
        "a_row_may_begin_before_the_files_end",
        "a row that the file has a part of is read",
        READ_ROW,
        "if (nbytes > file_nbytes || offset > file_nbytes - nbytes) return {-ENXIO, false, 0};",
        "if (offset >= file_nbytes) return {-ENXIO, false, 0};",
        PROGRAM,
        "*/row_batches.give_the_files_bytes/pulled",
    ),
    Bug(
        "the_first_of_equal_rows_is_written",
        "of a row that comes repeatedly another than the last is written",
        STORE_ROWS,
        "row.wanted = is_row && !part.is_repeated(mine);",
        "row.wanted = is_row && !part.repeats(mine);",
        PROGRAM,
        "row_batch_scatters.the_last_of_equal_rows",
    ),
    Bug(
        "any_failed_row_is_told",
        "the word of the failed row keeps another than that of the least place",
        PART,
        "word.fetch_min(",
        "word.store(",
        PROGRAM,
        "*/row_batches.give_the_files_bytes/in_device",
    ),
    Bug(
        "pulled_rows_are_of_any_version",
        "nobody looks whether the version of rows that the device pulled has ended",
        TAKE_ROWS,
        "if (pulled != 0) {",
        "if (false) {",
        PROGRAM,
        "row_batch_of.a_version_that_has_ended_gives_no_row_that_is_pulled",
    ),
    Bug(
        "pages_of_rows_are_of_any_version",
        "nobody looks whether the version of a page that a row brings into the cache has ended",
        AT_HAND,
        "return end_of_version(of); });",
        "return 0 * end_of_version(of); });",
        PROGRAM,
        "row_batch_of.a_version_that_has_ended_fills_no_page",
    ),
    Bug(
        "a_failed_row_keeps_what_was_there",
        "a row that could not be read is not zeroed",
        TAKE_ROWS,
        "here[k] = std::byte{0};",
        "(void)here[k];",
        PROGRAM,
        "row_batch_of.a_file_that_is_not_open_or_has_changed_is_zeros_and_the_error",
    ),
    Bug(
        "a_rows_second_part_goes_to_its_begin",
        "of a row in two pages the part in the second is copied over the first",
        TAKE_ROWS,
        "begin = group.shfl(span.begin, i);",
        "begin = 0 * group.shfl(span.begin, i);",
        PROGRAM,
        "row_batch_reads.rows_behind_a_header",
    ),
    Bug(
        "half_a_row_is_a_row",
        "a row in two pages of which only the first is at hand counts as read",
        TAKE_ROWS,
        "(lanes | lanes >> at_once) & ((1u << at_once) - 1)",
        "lanes & ((1u << at_once) - 1)",
        PROGRAM,
        "*/row_batches.give_the_files_bytes/pulled",
    ),
    Bug(
        "stored_row_beside_a_cached_page",
        "nobody looks whether a page is cached before a row of it is stored past the cache",
        STORE_ROWS,
        "place::host_memory && !is_cached();",
        "place::host_memory;",
        PROGRAM,
        "stored_rows.of_cached_pages_go_back_with_them",
    ),
    Bug(
        "stored_row_looked_up_once",
        "a page that was filled while a row of it was stored past the cache keeps the old bytes",
        STORE_ROWS,
        "if (passes_cache) passes_cache = !is_cached();",
        "",
        PROGRAM,
        "stored_rows_at_once.are_what_each_has_written_last",
    ),
    Bug(
        "stored_row_is_in_one_page",
        "of the two pages of a row that is stored past the cache only the first is looked up",
        STORE_ROWS,
        "|| (last != first && ",
        "|| (last < first && ",
        PROGRAM,
        "stored_rows.among_other_calls",
    ),
    Bug(
        "stored_row_of_a_file_that_is_not_read",
        "rows go past the cache into a file whose pages begin as zeros",
        STORE_ROWS,
        " || !may_pass_host_by(view.kind)",
        "",
        PROGRAM,
        "stored_rows.of_a_file_that_is_not_read_are_cached",
    ),
    Bug(
        "stored_rows_are_not_told",
        "a file's sync and close do not hear of rows that were stored past the cache",
        STORE_ROWS,
        "note_written_in_place(slot, last + nbytes);",
        "(void)last, (void)slot;",
        PROGRAM,
        "stored_rows.take_no_frame",
    ),
    Bug(
        "the_host_reads_pages_at_once",
        "host threads read whole pages for rows that nobody has wanted before",
        READ_ROW,
        "found.what = found.seen || wish.again ? way::by_pages : way::by_host;",
        "found.what = way::by_pages;",
        PROGRAM,
        "row_batch_admits.no_page_that_the_host_reads_before_its_second_use",
    ),
    Bug(
        "a_row_that_the_host_could_not_read_is_taken",
        "of an answer with rows that failed all are taken for good",
        BY_HOST,
        "if (got.result == 0) return 0;",
        "if (got.result >= 0) return 0;",
        PROGRAM,
        "row_batch_of.rows_that_the_host_cannot_read_is_zeros_for_these",
    ),
    Bug(
        "the_list_of_rows_is_never_emptied",
        "the rows that host threads gather are counted on from one piece of a batch to the next",
        BY_HOST,
        "*left.next_counts = {0, 0};",
        "(void)left;",
        PROGRAM,
        "*/row_batches.give_the_files_bytes/staged",
    ),
    Bug(
        "a_block_leaves_repeated_rows_out",
        "a row that a block has read for one place is not brought to the others that name it",
        GATHER,
        "if (!part.is_row(part.row(i)) || !part.repeats(i)) continue;",
        "if (part.n != 0) continue;",
        IN_KERNELS,
        "*/gathered_rows.are_the_files_bytes/pulled",
    ),
    Bug(
        "a_grid_goes_on_where_the_last_call_ended",
        "nobody resets how many places of a grid's batch were taken",
        BY_GRID,
        "words_[2] = 0;",
        "",
        IN_KERNELS,
        "*/gathered_rows.of_a_grid_are_the_files_bytes/pulled",
    ),
    Bug(
        "a_kernel_writes_the_first_of_equal_rows",
        "of equal rows that lanes write, the first lane's is written",
        SCATTER,
        "(std::uint64_t{group.match_any(mine)} >> (group.rank() + 1)) != 0",
        "(group.match_any(mine) & ((1u << group.rank()) - 1)) != 0",
        IN_KERNELS,
        "gather_of/2.what_the_same_group_has_scattered",
    ),
    Bug(
        "calls_of_a_kernel_are_one_piece",
        "what a group reads again in a later call counts as the first use of it",
        TOUCHED,
        "return before + hint;",
        "return hint + 0 * before;",
        IN_KERNELS,
        "gather_of/2.small_rows_takes_no_page_for_them_at_first",
    ),
)
