# SPDX-License-Identifier: Apache-2.0
"""The planted bugs: in each place the code would lose bytes, mix them up, hang, or let somebody out of the root.

`old` is a text that `file` has once; `new` takes its place. `test` is the test of `program` that must then fail (`*/`
before the name of one that has parameters); with `tsan`, as ThreadSanitizer builds it. run.py does all this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    name: str
    says: str  # what is wrong
    file: str
    old: str
    new: str
    program: str
    test: str
    tsan: bool = False
    also: tuple[Edit, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        return (Edit(self.file, self.old, self.new), *self.also)

    @property
    def kind(self) -> str:
        return "tsan" if self.tsan else "release"

    @property
    def command(self) -> str:
        return f"{self.kind} {self.program} {self.test}"


FRAMES = "include/gpufs/cache/frames.hpp"
CLOCK = "include/gpufs/cache/clock_rings.hpp"
PAGES = "include/gpufs/cache/page_cache.hpp"
DIRTY = "include/gpufs/cache/dirty.hpp"
TABLE = "include/gpufs/file/file_table.hpp"
SLOTS = "include/gpufs/file/file_slots.hpp"
WRITE = "include/gpufs/file/write.hpp"
FAULT = "include/gpufs/pointer/fault.hpp"
STORES = "include/gpufs/pointer/stores.hpp"
WRITE_BACK = "include/gpufs/file/write_back.hpp"

CACHE_STRESS = "page_cache.random_groups_see_only_their_pages"
UNPINNED = "page_cache.who_holds_no_pin_sees_whether_the_page_has_stayed"

BUGS = (
    # Looking a page up, and its pin.
    Bug(
        "pin_without_key",
        "a look-up takes a frame that its entry names, though another page is in it by now",
        FRAMES,
        "seal == sealed(static_cast<std::uint64_t>(key), before)",
        "seal != 0",
        "cache_page_cache_cpu",
        CACHE_STRESS,
    ),
    Bug(
        "pin_without_stamp",
        "a frame's key and its state are taken to be of one fill, though they were read at different times",
        FRAMES,
        "return key ^ (state & frame_state::stamp_mask) / frame_state::one_stamp * 0x9e3779b97f4a7c15u;",
        "return key ^ (state & 0);",
        "cache_page_cache_cpu",
        CACHE_STRESS,
    ),
    Bug(
        "pin_late",
        "a look-up looks at the state first and takes its pin then, without looking again",
        FRAMES,
        "const std::uint64_t before = word.fetch_add(npins * frame_state::one_pin, std::memory_order_acquire);",
        "const std::uint64_t before = word.load_relaxed();\n"
        "    word.fetch_add(npins * frame_state::one_pin, std::memory_order_acquire);",
        "cache_page_cache_cpu",
        CACHE_STRESS,
    ),
    Bug(
        "eviction_ignores_pins",
        "the clock evicts a page that somebody has pinned",
        CLOCK,
        "stays = frame_state::pin_mask | frame_state::dirty",
        "stays = frame_state::dirty",
        "cache_page_cache_cpu",
        "page_cache.pinned_pages_are_never_evicted",
    ),
    Bug(
        "choice_ignores_pins",
        "a page takes the frame of its choice from one that somebody has pinned",
        CLOCK,
        "          frame_state::pin_mask | frame_state::dirty |",
        "          frame_state::dirty |",
        "cache_page_cache_cpu",
        "page_cache.page_gets_the_frame_of_its_choice_unless_another_uses_it",
    ),
    Bug(
        "choice_keeps_the_entry",
        "a page takes the frame of its choice, and the table names it for the page before, too",
        CLOCK,
        "erase(f);\n        simt",
        "simt",
        "cache_page_cache_cpu",
        "page_cache.page_gets_the_frame_of_its_choice_unless_another_uses_it",
    ),
    Bug(
        "filled_by_two",
        "a miss does not look again under the bucket's lock, so two groups bring in one page",
        PAGES,
        "if (self.find(key, pinned, at)) {",
        "if (attempt != 0 && self.find(key, pinned, at)) {",
        "file_concurrency_cpu",
        "concurrency.one_hot_page_is_filled_once",
    ),
    Bug(
        "failed_fill_stays_in_the_table",
        "a fill that failed leaves its entry in the page table",
        PAGES,
        "Table(*cache).erase(key, f);  // before",
        "// before",
        "cache_page_cache_cpu",
        "page_cache.failed_fill_leaves_no_trace",
    ),
    Bug(
        "waiters_are_not_told",
        "who waited for a page whose fill failed takes it for filled",
        PAGES,
        "if (error == 0) return {f, role::waited, 0};",
        "if (error != -ETIMEDOUT) return {f, role::waited, 0};",
        "file_read_error_cpu",
        "read_error.all_who_wait_for_the_page_get_it",
    ),
    Bug(
        "waiters_are_not_woken",
        "a fill that fails goes on saying that it is under way",
        FRAMES,
        "(code << frame_state::error_shift) + frame_state::failed - frame_state::filling,",
        "(code << frame_state::error_shift) + frame_state::failed,",
        "file_read_error_cpu",
        "read_error.all_who_wait_for_the_page_get_it",
    ),
    # Pages that were written.
    Bug(
        "mask_bit_dropped",
        "the last word of a write's mask is not set",
        DIRTY,
        "for (std::uint32_t w = first + group.rank(); w <= last; w += group.size()) {\n      word(f, w).fetch_or",
        "for (std::uint32_t w = first + group.rank(); w < last; w += group.size()) {\n      word(f, w).fetch_or",
        "file_write_cpu",
        "*/writes.parts_of_pages/*",
    ),
    Bug(
        "mask_one_byte_off",
        "a mask takes in the byte before an odd place where a write begins: somebody else's byte is undone",
        DIRTY,
        "bits &= ~0u << begin % 32;",
        "bits &= ~0u << (begin % 32 & ~1u);",
        "file_write_cpu",
        "shared_writes.bytes_of_one_page_have_many_writers",
    ),
    Bug(
        "mask_not_atomic",
        "a mask's word is read and stored, not changed at once: of two writers' bits some are lost",
        DIRTY,
        "word(f, w).fetch_or(bits_of(w, begin, end), std::memory_order_relaxed);",
        "word(f, w).store(word(f, w).load(std::memory_order_relaxed) | bits_of(w, begin, end), "
        "std::memory_order_relaxed);",
        "file_write_cpu",
        "shared_writes.many_groups_write_all_pages",
    ),
    Bug(
        "mask_taken_late",
        "write-back reads the page's bytes before it takes the mask: a byte that is written in between is "
        "taken for sent",
        WRITE_BACK,
        "  const auto part = pages.look(group, page.frame);\n",
        "  simt::copy_changing(group, rings.payload(page.ticket), frames.data(page.frame), frames.page_nbytes());\n"
        "  const auto part = pages.look(group, page.frame);\n",
        "file_write_cpu",
        "shared_writes.many_groups_write_all_pages",
        also=(
            Edit(
                WRITE_BACK,
                "  simt::copy_changing(group, rings.payload(page.ticket) + part.begin, "
                "from + part.begin, part.nbytes);\n",
                "",
            ),
        ),
    ),
    Bug(
        "mask_cleared_whole",
        "write-back clears whole words of the mask, and so bits that it has not looked at and does not send",
        DIRTY,
        "word(f, w).fetch_and(~bits, std::memory_order_relaxed) & bits);",
        "word(f, w).exchange(0, std::memory_order_relaxed) & bits);",
        "file_write_cpu",
        "shared_writes.many_groups_write_all_pages",
    ),
    Bug(
        "dirty_cleared_late",
        "write-back clears `dirty` after it has taken the mask: a page that is written in between is not listed again",
        DIRTY,
        "    // Meets set_dirty's release.\n"
        "    state.fetch_and(~(frame_state::dirty | frame_state::listed), std::memory_order_acq_rel);\n",
        "",
        "file_write_cpu",
        "shared_writes.many_groups_write_all_pages",
        also=(
            Edit(
                WRITE_BACK,
                "    const std::uint64_t at = page_begin_of(mount, page.frame) + part.begin;\n",
                "    frames.state(page.frame).fetch_and(~(cache::frame_state::dirty | "
                "cache::frame_state::listed), std::memory_order_acq_rel);\n"
                "    const std::uint64_t at = page_begin_of(mount, page.frame) + part.begin;\n",
            ),
        ),
    ),
    Bug(
        "dirty_on_another_page",
        "a write makes the next frame dirty, and not its own",
        WRITE,
        "make_dirty(*mount, written(view), got.frame);",
        "make_dirty(*mount, written(view), cache::frame_index{(static_cast<std::uint32_t>(got.frame) + 1) % "
        "pages.pages().count()});",
        "file_write_cpu",
        "*/writes.a_new_file/*",
    ),
    Bug(
        "dirty_and_not_yet_listed",
        "who writes a page that is dirty already does not wait until it is listed: its fsync may miss it",
        DIRTY,
        "(now & frame_state::dirty) != 0 && (now & frame_state::listed) == 0 && !until.expired()",
        "false",
        "file_write_cpu",
        "shared_writes.fsync_finds_a_page_that_another_has_just_made_dirty",
    ),
    Bug(
        "size_after_the_pin",
        "a write makes the file longer at its end, when its pages may have been written back, and evicted, already",
        WRITE,
        "file_nbytes), page_begin + end);",
        "file_nbytes), 0);",
        "file_write_cpu",
        "shared_writes.pages_are_kept_before_their_write_has_ended",
        also=(
            Edit(
                WRITE,
                "    end_changes(*mount, view.slot);\n    call_counters& counters",
                "    auto& size = reinterpret_cast<std::uint64_t&>(file_table(*mount).slot(view.slot).file_nbytes);\n"
                "    if (done > 0) raise_to(size, begin + static_cast<std::uint64_t>(done));\n"
                "    end_changes(*mount, view.slot);\n    call_counters& counters",
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
        WRITE_BACK,
        "error = answer.result < 0 ? static_cast<int>(answer.result) : 0;",
        "error = 0;",
        "file_write_error_cpu",
        "write_errors.are_told_once_and_to_their_file",
    ),
    Bug(
        "limit_not_kept",
        "who makes pages dirty beyond the mount's limit writes none back",
        WRITE_BACK,
        "load(std::memory_order_relaxed) > mount->dirty_limit;",
        "load(std::memory_order_relaxed) > ~std::uint64_t{0};",
        "file_write_error_cpu",
        "write_timeouts.the_dirty_limit_holds",
    ),
    Bug(
        "unsent_pages_are_kept",
        "pages that close could not even send stay dirty, and in the slot's lists for its next file",
        TABLE,
        "if (left) forget_unwritten(index);",
        "",
        "file_write_error_cpu",
        "write_timeouts.end_fsync_and_close",
    ),
    # Calls on open files.
    Bug(
        "close_does_not_write",
        "close writes nothing back",
        "include/gpufs/file/open.hpp",
        "  const int error = detail::flush_file(group, mount, number, view);\n",
        "  const int error = 0;\n  view = file_table(*mount).view_to_write(number);\n",
        "file_write_cpu",
        "*/writes.a_new_file/*",
    ),
    Bug(
        "failed_open_hears_others_errors",
        "an open that cannot cut the file closes it as a writer does, and takes the error of others' writes along",
        "include/gpufs/file/open.hpp",
        "by_leader(group, [&] { return simt::call_cold(&file_table::close, mount.layout().resident,"
        " opened.number(), ring_hint()); });",
        "close(group, opened);",
        "file_write_error_cpu",
        "write_errors.are_not_told_to_an_open_that_fails",
    ),
    Bug(
        "stores_beside_the_mask",
        "a page is stored into its file from its first written byte to its last, with what others own in between",
        WRITE_BACK,
        "  if (part.masked()) {\n    pages.take(",
        "  if (false) {\n    pages.take(",
        "file_stored_write_cpu",
        "stored_writes.keep_to_their_bytes",
    ),
    Bug(
        "stores_not_told",
        "what was stored in place is not told to the host: nobody else sees that the file has changed",
        WRITE,
        "    note_stored(slot, begin + page_nbytes);\n",
        "",
        "file_stored_write_cpu",
        "stored_writes.need_no_request",
    ),
    Bug(
        "stores_leave_mtime",
        "the host does not move a file's mtime after stores",
        "src/store/mappings.cpp",
        "if (::futimens(fd, nullptr) != 0 && errno",
        "if (false && errno",
        "file_stored_write_cpu",
        "stored_writes.need_no_request",
    ),
    Bug(
        "cut_not_noticed",
        "a mapping is taken for the file's, although somebody has cut it",
        "src/store/mappings.cpp",
        "if (!is_mapped && (m.is_locked || changed || !file_has(done + i))) return (done + i) * page;",
        "if (!is_mapped && words[i] == 1) return (done + i) * page;",
        "file_stored_write_cpu",
        "stored_writes.closing_and_ending_tell_of_a_cut",
    ),
    Bug(
        "append_not_atomic",
        "append reads the file's end and moves it on in two steps",
        WRITE,
        "!end.compare_exchange(seen, seen + static_cast<std::int64_t>(nbytes), std::memory_order_acq_rel)",
        "(end.store(seen + static_cast<std::int64_t>(nbytes), std::memory_order_release), false)",
        "file_write_cpu",
        "shared_writes.appends_never_overlap",
    ),
    Bug(
        "truncation_without_gate",
        "ftruncate does not wait for writes that are under way",
        WRITE,
        "while (writers.load(std::memory_order_acquire) != truncating) {",
        "while (false) {",
        "file_write_cpu",
        "shared_writes.truncation_and_a_write_come_in_some_order",
    ),
    Bug(
        "cut_bytes_come_back",
        "ftruncate leaves the mask of what it cuts, which is written back behind the new end",
        WRITE,
        "  pages.unmark(group, frame, begin);\n",
        "",
        "file_write_cpu",
        "*/writes.truncation_both_ways/*",
    ),
    Bug(
        "twin_one_byte_short",
        "the last byte of a page mapped for writing is not compared with its twin",
        DIRTY,
        "    const std::byte* data = frames_.data(f);\n    std::uint32_t any = 0;\n",
        "    const std::byte* data = frames_.data(f);\n    std::uint32_t any = 0;\n    --end;\n",
        "file_write_cpu",
        "*/writes.mapped_pages/*",
    ),
    Bug(
        "twin_not_kept",
        "what is written back is not what the twin says that the file has",
        WRITE_BACK,
        "if (mine.locked && cache::dirty_pages::is_mapped(state)) {",
        "if (false) {",
        "file_write_cpu",
        "mapped_writes.go_back_to_what_was_noted",
    ),
    Bug(
        "twin_beyond_the_end",
        "the twin takes what lies behind the file's end, and nobody notes it",
        DIRTY,
        """ end - w * 32 >= 32 ? simt::take_differences(data + w * 32, twin + w * 32)
                                                    : take_differences_before(data + w * 32, twin + w * 32, """
        """end - w * 32);
""",
        " simt::take_differences(data + w * 32, twin + w * 32) & bits_of(w, 0, end);\n",
        "file_write_cpu",
        "mapped_writes.beyond_the_end_are_not_noted_before_it_grows",
    ),
    Bug(
        "pointer_keeps_its_stores",
        "a pointer leaves its page, and what it has written there is not noted",
        "include/gpufs/pointer/ptr.hpp",
        "keep(simt::call_cold(&detail::end_stores, from_, first_, at_distance(0)));",
        "{}",
        "pointer_ptr_cpu",
        "*/ptr_write.stores_reach_the_file_and_nothing_else_does/*",
    ),
    Bug(
        "walk_keeps_what_it_has_not_linked",
        "a walk pins pages behind one that is not in the cache, and does not give them back",
        FAULT,
        "if (held && simt::lane_id() >= more) give_back",
        "if (held && more == 0) give_back",
        "pointer_walk_cpu",
        "walk.links_to_no_page_behind_one_that_is_missing_or_behind_the_mapping",
    ),
    Bug(
        "walk_leaves_the_mapping",
        "a walk links to the page behind the mapping, which the pointer then does not give back",
        "include/gpufs/pointer/ptr.hpp",
        "return {page_at(within.begin), page_at(last),",
        "return {page_at(within.begin), page_at(last) + 1,",
        "pointer_walk_cpu",
        "walk.links_to_no_page_behind_one_that_is_missing_or_behind_the_mapping",
    ),
    Bug(
        "walk_gives_one_page_back",
        "a pointer that leaves several pages gives one of them back",
        FAULT,
        "i < held.n; i += simt::warp_lanes)",
        "i < (held.n != 0); i += simt::warp_lanes)",
        "pointer_walk_cpu",
        "walk.who_goes_from_page_to_page_links_to_eight_times_as_many",
    ),
    Bug(
        "pointer_lanes_counted_once",
        "lanes that begin to write a page together count as one, and as many when they leave it",
        STORES,
        "n, wait.wait_ns());",
        "1, wait.wait_ns());",
        "pointer_ptr_cpu",
        "*/ptr_write.stores_reach_the_file_and_nothing_else_does/*",
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
        "pointer_makes_values_up",
        "`p[i] += x` writes x where p[i] could not be read",
        "include/gpufs/pointer/ptr.hpp",
        "const int error = owner_.try_read(distance_, value);",
        "const int error = 0 * owner_.try_read(distance_, value);",
        "pointer_ptr_cpu",
        "ptr_write_error.an_update_whose_reading_fails_is_not_made_up",
    ),
    Bug(
        "pointer_loses_an_update",
        "`p[i] += x` where p[i] could not be read is told by no fsync",
        "include/gpufs/pointer/ptr.hpp",
        "simt::call_cold(&detail::keep_write_error, from_, error == -EBADF ? -EIO : error);",
        "",
        "pointer_ptr_cpu",
        "ptr_write_error.an_update_that_cannot_be_read_is_told_as_a_write",
    ),
    Bug(
        "starved_read_of_an_old_page",
        "a private page that gets no frame is read from the host, where what was written to the file is not yet",
        "include/gpufs/pointer/past_cache.hpp",
        "if (may_change && is_private) {",
        "if (false) {",
        "pointer_starved_cpu",
        "*/starved.reads_that_find_no_frame_are_right/private_of_written_staged",
    ),
    Bug(
        "spare_page_without_its_lock",
        "two lanes make a handler's page in the mount's spare one at once",
        "include/gpufs/pointer/past_cache.hpp",
        "while (lock_.exchange(1, std::memory_order_acquire) != 0) {",
        "while (lock_.exchange(1, std::memory_order_acquire) > 1) {",
        "pointer_starved_cpu",
        "*/starved.reads_that_find_no_frame_are_right/inverted_staged",
    ),
    Bug(
        "every_access_waits_for_a_frame",
        "who has found all frames pinned does not tell the others",
        "include/gpufs/pointer/patience.hpp",
        "starved_.store(simt::clock_ns(), std::memory_order_relaxed);",
        "(void)starved_;",
        "pointer_starved_cpu",
        "starved_ptr.writes_that_find_no_frame_fail_at_once_and_say_why",
    ),
    Bug(
        "pointer_forgets_its_first_error",
        "a pointer's error() is the last access's that failed",
        "include/gpufs/pointer/ptr.hpp",
        "if (end >> end_bits == 0) end_ = end",
        "end_ = (end & end_mask)",
        "pointer_starved_cpu",
        "starved_ptr.an_access_that_failed_stays_in_the_pointer",
    ),
    Bug(
        "pins_come_round",
        "map_page takes pins on a page that has nearly all that can be counted",
        "include/gpufs/cache/frames.hpp",
        "(before & (frame_state::filling | frame_state::many_pins)) != 0",
        "(before & frame_state::filling) != 0",
        "pointer_starved_cpu",
        "starved_ptr.a_page_with_too_many_pins_takes_no_more_and_is_read",
    ),
    Bug(
        "late_stores_unnoticed",
        "the CPU machine does not notice a pointer that gives up what it has written after close",
        STORES,
        "  if (error == -EBADF) {",
        "  if (false) {",
        "pointer_ptr_cpu",
        "*/ptr_write.pointers_that_end_after_close_have_lost_what_they_wrote/*",
    ),
    Bug(
        "words_of_a_line_in_a_branch",
        "one lane of a warp takes words of a line that lie in the others' registers",
        FAULT,
        "frame = pin_alone(pins ? frame : cache::hash_table::no_frame, page, simt::count_lanes(same));",
        "frame = pins ? pin_alone(frame, page, simt::count_lanes(same)) : cache::hash_table::no_frame;",
        "pointer_ptr_cpu",
        "ptr_.any_group_maps",
    ),
    Bug(
        "mapping_added_twice",
        "of groups that map a file first, each may make a mapping of its own",
        "include/gpufs/pointer/mapping.hpp",
        "if (adding.exchange(1,",
        "if (true || adding.exchange(1,",
        "pointer_ptr_cpu",
        "ptr_.groups_that_map_a_file_at_once_share_one_mapping",
    ),
    Bug(
        "gather_within_4_gib",
        "positions of what is gathered have 32 bits",
        "include/gpufs/pointer/ptr.hpp",
        "positions.values[k] = here + bytes(at[k]);",
        "positions.values[k] = static_cast<std::uint32_t>(here + bytes(at[k]));",
        "pointer_ptr_cpu",
        "*/large_pointers.reach_both_sides_of_4_gib/*",
    ),
    Bug(
        "private_page_from_the_host",
        "a private page of a file that is being written lacks what is not written back",
        FAULT,
        "other_view && view.kind",
        "false && other_view && view.kind",
        "pointer_ptr_cpu",
        "*/ptr_write.pointers_and_pwrite_see_each_other/*",
    ),
    Bug(
        "discard_drops_what_was_written",
        "discard() of a mapping that is not private drops pages that are not written back",
        "include/gpufs/pointer/map.hpp",
        "const bool is_file = p && !stale &&",
        "const bool is_file = false && p &&",
        "pointer_ptr_cpu",
        "*/ptr_write.pointers_and_pwrite_see_each_other/*",
    ),
    Bug(
        "sync_before_late_writes",
        "the host writes pages anew to which it still owes an older write",
        "src/file/mount.cpp",
        "return !stopped && list.lock > 1;",
        "return !stopped && list.lock > 1 && list.head == 0;",
        "file_write_error_cpu",
        "write_timeouts.come_before_what_the_mount_writes",
    ),
    Bug(
        "sync_ends_at_the_page_cache",
        "an fsync to stable storage ends at the host's page cache",
        "src/service/worker_io.cpp",
        "(w.flags & sync_page_cache) != 0 ? 0 : file->file->sync",
        "w.offset == 0 ? 0 : file->file->sync",
        "file_write_error_cpu",
        "write_errors.syncs_go_as_far_as_was_asked",
    ),
    Bug(
        "sync_of_data_only",
        "an fsync to stable storage syncs no more than the data",
        WRITE,
        "how == durability::stable ? 0",
        "how == durability::stable ? service::sync_data_only",
        "file_write_error_cpu",
        "write_errors.syncs_go_as_far_as_was_asked",
    ),
    Bug(
        "devices_count_is_believed",
        "the host reads as many slots as a word of the device says",
        "src/file/mount.cpp",
        "std::min<std::uint64_t>(read(layout.words, 1)[0].slots_used, layout.nslots)",
        "read(layout.words, 1)[0].slots_used",
        "hostile_device_test",
        "hostile_device.words_that_the_host_reads_may_be_anything",
    ),
    Bug(
        "devices_frame_is_believed",
        "the host copies into the frame that a word of the device names, wherever that is",
        "src/file/mount.cpp",
        " || twin.twin >= layout.cache.frames.nframes",
        "",
        "hostile_device_test",
        "hostile_device.words_that_the_host_reads_may_be_anything",
    ),
    Bug(
        "writes_take_all_rings",
        "pages that the host does not write hold all request slots, and who reads waits for one",
        "include/gpufs/file/request.hpp",
        "return take_of(2, start, until);",
        "return take_of(1, start, until);",
        "file_write_error_cpu",
        "write_timeouts.the_dirty_limit_holds",
    ),
    Bug(
        "exclusive_ignored",
        "O_EXCL is not looked at when the file is open already",
        TABLE,
        "if ((flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) {",
        "if (false) {",
        "file_write_cpu",
        "*/writes.what_must_be_refused/*",
    ),
    Bug(
        "opens_ignore_removals",
        "an open does not see that its file may have lost its name meanwhile, and others go on to join it by the path",
        TABLE,
        "if (name.mode != slot_mode::read && was_removing(index)) {",
        "if (false) {",
        "file_names_race_cpu",
        "*/names_late.nobody_joins_a_file_that_was_removed_while_it_was_opened/*",
    ),
    Bug(
        "joins_ignore_removals",
        "who joined an open that was under way takes what it gives, though the name was gone before it joined",
        TABLE,
        "if (static_cast<std::int32_t>(then - gone) < 0) {",
        "if (false) {",
        "file_names_race_cpu",
        "*/names_late.nobody_joins_a_file_that_was_removed_while_it_was_opened/*",
    ),
    Bug(
        "closed_number_is_good",
        "a file's number is good for whatever file has the slot now: its generation is not compared",
        SLOTS,
        "(low.word[0] & 0xffffu) != open_word_of(raw)",
        "(low.word[0] & 7u) != (open_word_of(raw) & 7u)",
        "file_open_cpu",
        "open_file.slot_is_used_more_often_than_it_has_generations",
    ),
    # The host.
    Bug(
        "writes_joined_over_a_gap",
        "writes that are no neighbours go out as one, the second at the first one's end",
        "src/service/worker_io.cpp",
        "writes[end].offset == at; ++end",
        "writes[end].offset >= at; ++end",
        "service_test",
        "*/write_test.ManyThreadsWriteNeighbouringBlocks/*",
    ),
    Bug(
        "joined_write_hides_an_error",
        "of writes that went out as one, those that did not fit are said to be written",
        "src/service/worker_io.cpp",
        "finish_write(w, w_end <= done ? 0 : error, w.nbytes);",
        "finish_write(w, first == end ? error : 0, w.nbytes);",
        "service_test",
        "*/write_test.AFileThatMayNotGrowIsToldToThoseWhoseBytesDidNotFit/*",
    ),
    Bug(
        "short_write_not_continued",
        "the host takes a short pwritev for a whole one",
        "src/store/read_loop.hpp",
        "    *done += static_cast<std::size_t>(n);\n",
        "    *done += static_cast<std::size_t>(n);\n    return 0;\n",
        "file_write_error_cpu",
        "write_errors.are_none_when_writes_are_short_or_interrupted",
    ),
    Bug(
        "old_handle_is_good",
        "the host takes a handle for whatever file has its entry now",
        "src/service/open_files.cpp",
        "if (generation_of(state) != generation) return {};",
        "if (generation_of(state) == 0) return {};",
        "service_test",
        "*/write_test.RefusesWhatADeviceMayMakeUp/*",
    ),
    Bug(
        "version_without_ctime",
        "a file whose mtime was put back counts as the version that it was, and its old pages as its bytes",
        "src/service/cache_ids.cpp",
        " && before.ctime_ns == now.ctime_ns;",
        ";",
        "service_test",
        "cache_ids.OneForEachVersion",
    ),
    Bug(
        "stale_read_not_told",
        "the host does not look whether a file has changed before it gives a device its bytes",
        "src/service/worker_io.cpp",
        "? -ESTALE : from.file->check_version();",
        "? -ESTALE : 0;",
        "service_test",
        "*/service_test.ReadsOfAChangedFileAreStale/*",
    ),
    Bug(
        "files_known_by_path",
        "an open does not find that its file is open for writing by another path, or one that leads there no more",
        "src/service/open_files.cpp",
        "if (!is_written(other) || other.once != e.once) return false;",
        "if (&other != &e) return false;",
        "file_paths_cpu",
        "names.a_directory_that_is_renamed_parts_no_file",
    ),
    Bug(
        "versions_outlive_writers",
        "who has a file open for reading is not told that it is being written, and pulls the writer's bytes",
        "src/service/worker_calls.cpp",
        "        end_versions(info);\n",
        "",
        "file_versions_cpu",
        "*/versions.who_read_before_a_writer_gets_their_version_or_stale/mapped",
    ),
    Bug(
        "stale_pull_not_told",
        "a pull does not look whether its version has ended",
        "include/gpufs/file/file.hpp",
        "if (by_leader(group, [&] { return file_table(mount).is_stale(view); })) {",
        "if (false) {",
        "file_versions_cpu",
        "*/versions.who_read_before_a_writer_gets_their_version_or_stale/mapped",
    ),
    Bug(
        "links_lead_out_of_the_root",
        "the kernel is not told to stay below the root",
        "src/store/beneath.cpp",
        "resolve_flags = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;",
        "resolve_flags = RESOLVE_NO_MAGICLINKS;",
        "store_test",
        "*/posix_write_test.RefusesWhatReadingRefuses/*",
    ),
    Bug(
        "walk_leads_out_of_the_root",
        "where there is no openat2: a link that begins with / is followed from the root's own path",
        "src/store/beneath.cpp",
        "if (target[0] == '/') return -EXDEV;",
        "if (target[0] == '/') return 0;",
        "store_test",
        "*/posix_write_test.RefusesWhatReadingRefuses/*",
    ),
    # Reads without a pin.
    Bug(
        "unpinned_looks_once",
        "who reads without a pin does not ask afterwards whether the page has stayed",
        FRAMES,
        "return ((state_now ^ seen.state) & (frame_state::stamp_mask | frame_state::claimed)) == 0;",
        "return state_now != 1 || seen.state != 1;",
        "cache_page_cache_cpu",
        UNPINNED,
    ),
    Bug(
        "unpinned_reads_a_fill",
        "who reads without a pin takes a page that is being filled for one that is there",
        FRAMES,
        "frame_state::claimed | frame_state::failed | frame_state::filling;",
        "frame_state::claimed | frame_state::failed;",
        "cache_page_cache_cpu",
        UNPINNED,
    ),
    Bug(
        "unpinned_without_key",
        "who reads without a pin takes a frame that an entry names for its page's",
        FRAMES,
        "((seen.state & refused) | (seen.seal ^ sealed(static_cast<std::uint64_t>(key), seen.state))) == 0;",
        "((seen.state & refused) | (seen.seal & static_cast<std::uint64_t>(key) & 0)) == 0;",
        "cache_page_cache_cpu",
        UNPINNED,
    ),
    # Memory orders, which ThreadSanitizer checks.
    Bug(
        "fill_not_released",
        "the end of a fill does not release the page's bytes",
        FRAMES,
        "state(f).fetch_and(~frame_state::filling, std::memory_order_release);",
        "state(f).fetch_and(~frame_state::filling, std::memory_order_relaxed);",
        "cache_page_cache_cpu",
        CACHE_STRESS,
        tsan=True,
    ),
    Bug(
        "unpin_not_released",
        "a reader's loads may come after its pin is given back, when others write the frame",
        FRAMES,
        "fetch_add_after_loads(0 - npins * frame_state::one_pin);",
        "fetch_add(0 - npins * frame_state::one_pin, std::memory_order_relaxed);",
        "file_concurrency_cpu",
        "concurrency.steady_misses_and_evictions_keep_every_byte",
        tsan=True,
    ),
    Bug(
        "answer_not_released",
        "the host's answer does not release the payload",
        "src/service/rings.hpp",
        "store(sequence, std::memory_order_release);\n  }",
        "store(sequence, std::memory_order_relaxed);\n  }",
        "file_concurrency_cpu",
        "concurrency.every_page_is_filled_once_while_all_fit",
        tsan=True,
    ),
)
