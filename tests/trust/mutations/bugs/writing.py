# SPDX-License-Identifier: Apache-2.0
"""Bugs in what is written, and comes back to the file."""

from __future__ import annotations

from .bug import APPEND, PAGE_WRITE_BACK, WRITE, WRITE_BACK, Bug, Edit

BUGS = (
    Bug(
        "mask_taken_late",
        "write-back reads the page's bytes before it takes the mask: a byte that is written in between is "
        "taken for sent",
        PAGE_WRITE_BACK,
        "  const auto part = pages.look(group, page.frame);\n",
        "  simt::copy_changing(group, rings.payload(page.ticket), frames.data(page.frame), frames.page_nbytes());\n"
        "  const auto part = pages.look(group, page.frame);\n",
        "file_write_cpu",
        "shared_writes.many_groups_write_all_pages",
        also=(
            Edit(
                PAGE_WRITE_BACK,
                "  simt::copy_changing(group, rings.payload(page.ticket) + part.begin, "
                "from + part.begin, part.nbytes);\n",
                "",
            ),
        ),
    ),
    Bug(
        "dirty_on_another_page",
        "a write makes the next frame dirty, and not its own",
        WRITE,
        "enter_dirty(*mount, written(view), got.frame);",
        "enter_dirty(*mount, written(view), cache::frame_index{(static_cast<std::uint32_t>(got.frame) + 1) % "
        "pages.pages().count()});",
        "file_write_cpu",
        "*/writes.a_new_file/*",
    ),
    Bug(
        "size_after_the_pin",
        "a write makes the file longer at its end, when its pages may have been written back, and evicted, already",
        WRITE,
        "bytes.nbytes), page_begin + end);",
        "bytes.nbytes), 0);",
        "file_write_cpu",
        "shared_writes.pages_are_kept_before_their_write_has_ended",
        also=(
            Edit(
                WRITE,
                "    end_changes(*mount, view.slot);\n    count_written(",
                "    auto& size = reinterpret_cast<std::uint64_t&>(file_table(*mount).slot(view.slot).bytes.nbytes);\n"
                "    if (done > 0) raise_to(size, begin + static_cast<std::uint64_t>(done));\n"
                "    end_changes(*mount, view.slot);\n    count_written(",
            ),
        ),
    ),
    Bug(
        "list_unlocked_early",
        "a list's lock is given back before the host has answered: an older write-back of a page overtakes a newer one",
        WRITE_BACK,
        "    const bool answered = by_leader(group, [&] {\n",
        "    if (group.leader()) cache::dirty_pages::unlock(list);\n    const bool answered = by_leader(group, [&] {\n",
        "file_write_error_cpu",
        "write_errors.are_none_when_writes_overtake_each_other",
        also=(
            Edit(
                WRITE_BACK,
                "all &= finish_page(*mount, file, list, batch[i], until);\n",
                "all &= finish_page(*mount, file, list, batch[i], until);\n"
                "      cache::dirty_pages::lock(list, until);\n",
            ),
        ),
    ),
    Bug(
        "error_told_twice",
        "fsync leaves the error for the next one",
        WRITE_BACK,
        "write_error).exchange(0, std::memory_order_relaxed);",
        "write_error).load(std::memory_order_relaxed);",
        "file_write_error_cpu",
        "write_errors.are_told_once_and_to_their_file",
    ),
    Bug(
        "error_never_told",
        "what the host says of a write-back (ENOSPC, EDQUOT, EIO) is not kept",
        PAGE_WRITE_BACK,
        "error = answer.result < 0 ? static_cast<int>(answer.result) : 0;",
        "error = 0;",
        "file_write_error_cpu",
        "write_errors.are_told_once_and_to_their_file",
    ),
    Bug(
        "limit_not_kept",
        "who makes pages dirty beyond the mount's limit writes none back",
        WRITE_BACK,
        "load(std::memory_order_relaxed) > mount->files.dirty_limit;",
        "load(std::memory_order_relaxed) > ~std::uint64_t{0};",
        "file_write_error_cpu",
        "write_timeouts.the_dirty_limit_holds",
    ),
    Bug(
        "stores_beside_the_mask",
        "a page is stored into its file from its first written byte to its last, with what others own in between",
        PAGE_WRITE_BACK,
        "  if (part.masked()) {\n    pages.take(",
        "  if (false) {\n    pages.take(",
        "file_stored_write_cpu",
        "stored_writes.keep_to_their_bytes",
    ),
    Bug(
        "stores_not_told",
        "what was stored in place is not told to the host: nobody else sees that the file has changed",
        WRITE,
        "    note_written_in_place(slot, begin + page_nbytes);\n",
        "",
        "file_stored_write_cpu",
        "stored_writes.need_no_request",
    ),
    Bug(
        "append_not_atomic",
        "append reads the file's end and moves it on in two steps",
        APPEND,
        "    return {end.fetch_add(static_cast<std::int64_t>(nbytes), std::memory_order_acq_rel), 0};\n",
        "  {\n"
        "    end.store(static_cast<std::int64_t>(seen + nbytes), std::memory_order_release);\n"
        "    return {static_cast<std::int64_t>(seen), 0};\n"
        "  }\n",
        "file_write_cpu",
        "shared_writes.appends_never_overlap",
    ),
    Bug(
        "append_passes_the_limit",
        "a write to the end of what a file may have does not wait for appends that have not looked at the limit",
        "include/gpufs/file/detail/write_gate.hpp",
        "  if (!begin_truncation(*mount, slot)) return false;\n",
        "",
        "file_append_each_cpu",
        "append_each.keeps_to_the_limit_beside_a_write_to_the_last_page",
    ),
    Bug(
        "record_starts_again_in_the_next_page",
        "of a lane's record that lies in two pages, the second gets its first bytes",
        APPEND,
        "to + (from - at), src + (from - first), until - from",
        "to + (from - at), src, until - from",
        "file_append_each_cpu",
        "append_each.puts_records_behind_one_another_in_the_order_of_the_lanes",
    ),
    Bug(
        "lanes_lose_their_errors",
        "lanes whose records are not there, for want of a page, hear where they would be",
        APPEND,
        "  return detail::offset_if_whole(first, last, detail::bytes_written(*mount, first, last, failed));\n",
        "  return static_cast<std::int64_t>(first);\n",
        "file_append_each_cpu",
        "write_errors.are_each_lanes_own_where_records_cannot_be_appended",
    ),
    Bug(
        "lanes_share_a_place",
        "a block's warps count their records from the block's place each",
        APPEND,
        "before = group.exclusive_scan_add(mine);",
        "before = detail::within_warp(group).exclusive_scan_add(mine);",
        "file_append_each_cpu",
        "append_each.groups_of_all_kinds_never_overlap",
    ),
    Bug(
        "truncation_without_gate",
        "ftruncate does not wait for writes that are under way",
        "include/gpufs/file/detail/write_gate.hpp",
        "while ((gate_word(mount, slot, shard).load(std::memory_order_acquire) & ~may_end_far) != truncating) {",
        "while (false) {",
        "file_write_cpu",
        "shared_writes.truncation_and_a_write_come_in_some_order",
    ),
    Bug(
        "truncation_waits_at_one_gate",
        "ftruncate waits for the writes that have passed the first word of the gate",
        "include/gpufs/file/detail/write_gate.hpp",
        "  pause.reset();\n  for (std::uint32_t shard = 0; shard < gate_shards; ++shard) {",
        "  pause.reset();\n  for (std::uint32_t shard = 0; shard < 1; ++shard) {",
        "file_write_cpu",
        "shared_writes.truncation_and_a_write_come_in_some_order",
    ),
    Bug(
        "neighbours_of_a_page_that_fails_are_lost",
        "of pages that the mount writes by one call none is written again by itself where that fails",
        "src/file/left_pages.cpp",
        "if (failed && runs_.size() > 1) {",
        "for (const run& one : runs_) {\n      if (failed && runs_.size() > 1) lose(one.page);\n    }\n"
        "    if (false) {",
        "file_write_error_cpu",
        "write_errors.of_one_page_lose_none_beside_it",
    ),
    Bug(
        "cut_bytes_come_back",
        "ftruncate leaves the mask of what it cuts, which is written back behind the new end",
        "include/gpufs/file/detail/truncate.hpp",
        "  pages.unmark(group, frame, begin);\n",
        "",
        "file_write_cpu",
        "*/writes.truncation_both_ways/*",
    ),
    Bug(
        "twin_not_kept",
        "what is written back is not what the twin says that the file has",
        PAGE_WRITE_BACK,
        "if (mine.locked && cache::dirty_pages::is_mapped(state)) {",
        "if (false) {",
        "file_write_cpu",
        "mapped_writes.go_back_to_what_was_noted",
    ),
    Bug(
        "pointer_writes_into_another_file",
        "a write through a pointer whose file was closed goes into the file that has its mapping or its number now",
        "include/gpufs/file/map_to_write.hpp",
        "if (view.error == 0 && cache::cache_id_of",
        "if (false && cache::cache_id_of",
        "pointer_ptr_cpu",
        "ptr_write_error.stores_noted_too_late_are_lost_and_change_no_other_file",
    ),
    Bug(
        "sync_before_late_writes",
        "the host writes pages anew to which it still owes an older write",
        "src/file/left_pages.cpp",
        "return !stopped && list.lock > 1;",
        "return !stopped && list.lock > 1 && list.head == 0;",
        "file_write_error_cpu",
        "write_timeouts.come_before_what_the_mount_writes",
    ),
    Bug(
        "sync_of_data_only",
        "an fsync to stable storage syncs no more than the data",
        "include/gpufs/file/sync.hpp",
        "how == durability::stable ? 0",
        "how == durability::stable ? transport::sync_data_only",
        "file_write_error_cpu",
        "write_errors.syncs_go_as_far_as_was_asked",
    ),
    Bug(
        "devices_frame_is_believed",
        "the host copies into the frame that a word of the device names, wherever that is",
        "src/file/left_pages.cpp",
        " || twin.twin >= mount_.cache.frames.nframes",
        "",
        "hostile_device_test",
        "hostile_device.words_that_the_host_reads_may_be_anything",
    ),
)
