# SPDX-License-Identifier: Apache-2.0
"""Bugs in batches of rows."""

from __future__ import annotations

from .bug import Bug

READ_ROW = "include/gpufs/par/read_row.hpp"
BATCH = "src/par/row_batch.hpp"
PROGRAM = "par_row_batch_cpu"

BUGS = (
    Bug(
        "a_scan_evicts",
        "rows of one batch that share a page, or a word of the touched pages, count as a second use",
        READ_ROW,
        " && (before & ~0xffu) == tag && (before & 0xff) != piece_;",
        ";",
        PROGRAM,
        "row_batch_admits.what_has_room_and_what_is_read_again",
    ),
    Bug(
        "a_failed_fill_is_taken_for_a_page",
        "a page whose fill has failed just now is copied from, with what its frame had before",
        READ_ROW,
        "constexpr std::uint64_t is_none = cache::frame_state::filling | cache::frame_state::failed;",
        "constexpr std::uint64_t is_none = cache::frame_state::filling;",
        PROGRAM,
        "row_batch_reads.nothing_of_a_page_whose_fill_has_failed",
    ),
    Bug(
        "a_batch_waits_for_frames",
        "a row whose page is to be cached fails where all frames are pinned",
        READ_ROW,
        "cache_type::at_hand});",
        "of->timeouts().frame_ns});",
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
        BATCH,
        "if (part.is_row(row) && part.is_repeated(i)) return;",
        "if (part.is_row(row) && part.repeats(i)) return;",
        PROGRAM,
        "row_batch_scatters.the_last_of_equal_rows",
    ),
    Bug(
        "any_failed_row_is_told",
        "the word of the failed row keeps another than that of the least place",
        BATCH,
        "word.fetch_min(",
        "word.store(",
        PROGRAM,
        "*/row_batches.give_the_files_bytes/in_device",
    ),
    Bug(
        "pulled_rows_are_of_any_version",
        "nobody looks whether the version of rows that the device pulled has ended",
        BATCH,
        "if (pulled != 0) {",
        "if (false) {",
        PROGRAM,
        "row_batch_of.a_version_that_has_ended_gives_no_row_that_is_pulled",
    ),
    Bug(
        "a_failed_row_keeps_what_was_there",
        "a row that could not be read is not zeroed",
        BATCH,
        "here[k] = std::byte{0};",
        "(void)here[k];",
        PROGRAM,
        "row_batch_of.a_file_that_is_not_open_or_has_changed_is_zeros_and_the_error",
    ),
)
