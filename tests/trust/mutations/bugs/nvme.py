# SPDX-License-Identifier: Apache-2.0
"""Bugs in queues of NVMe controllers: the mistakes that implementations for kernels are known to have."""

from __future__ import annotations

from .bug import Bug, Edit

DETAIL = "include/gpufs/nvme/detail/"
SUBMISSION, COMPLETION = DETAIL + "submission_queue.hpp", DETAIL + "completion_queue.hpp"
RECORDS, PAIR = DETAIL + "records.hpp", DETAIL + "queue_pair.hpp"
STATUS, BLOCKS, PRP = DETAIL + "status.hpp", DETAIL + "blocks.hpp", DETAIL + "prp.hpp"
CONTROLLER, MEMORY = "src/nvme/controller.cpp", "src/nvme/queue_memory.cpp"
VOLUME_BYTES = "src/store/nvme_bytes.cpp"
FILL, READ_BYTES = "include/gpufs/file/detail/fill.hpp", DETAIL + "read_bytes.hpp"
WRAPS = "blocks_of_each_group/0.come_through_queues_of_a_few_slots_that_wrap_many_times"
RANDOM = "nvme_schedules/0.that_are_random_give_each_lane_its_blocks"
HELD_BACK = "nvme_schedules/0.that_hold_lanes_back_give_each_lane_its_blocks"
RESET = "nvme_schedules/0.give_each_lane_its_blocks_while_the_controller_is_reset"
STATUSES = "nvme_blocks.each_status_is_an_errno_and_comes_again_only_where_it_may_pass"
LIMITS = "nvme_blocks.limits_of_the_device_are_kept"
MEMORY_AGAIN = "nvme_recovery.memory_of_a_command_is_used_again_only_when_its_queue_has_ended"
LATE = "nvme_recovery.a_command_that_is_late_is_given_up_and_its_record_comes_back_with_its_completion"
LOST = "nvme_recovery.a_completion_that_is_lost_takes_its_queue_with_it"
PRPS = "nvme_prps.tell_of_all_bytes_and_no_others"


def blocks(name: str, says: str, file: str, old: str, new: str, test: str, *also: Edit) -> Bug:
    return Bug(name, says, file, old, new, "nvme_blocks_cpu", test, also=also)


def schedules(name: str, says: str, file: str, old: str, new: str, test: str, *also: Edit) -> Bug:
    return Bug(name, says, file, old, new, "nvme_schedules_cpu", test, also=also)


def recovery(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_recovery_cpu", test)


def pci(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_pci_cpu", test)


def mounts(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_mount_cpu", test)


def volumes(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_volume_cpu", test)


def ext4(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_ext4_cpu", f"nvme_ext4.{test}")


BUGS = (
    # Submission.
    schedules(
        "nvme_each_rings_for_itself",
        "each group stores its own tail to the doorbell, which so goes back, and past what is not published",
        SUBMISSION,
        "      sweep();\n",
        "      simt::store_register(queue_.command_bell, static_cast<std::uint32_t>((first + n) % queue_.nslots));\n",
        HELD_BACK,
        Edit(SUBMISSION, "std::memory_order_acq_rel) != 0) return;", "std::memory_order_acq_rel) == ~0u) return;"),
    ),
    schedules(
        "nvme_rung_to_the_tail",
        "the doorbell goes to what is reserved, not to what is published",
        SUBMISSION,
        "    if (to == words_.rung) return;",
        "    to = simt::atomic_ref<std::uint64_t>(words_.tail).load_relaxed();\n    if (to == words_.rung) return;",
        HELD_BACK,
    ),
    schedules(
        "nvme_ringer_looks_once",
        "the ringer does not look again for what was published while it rang",
        SUBMISSION,
        "seen = ringers.fetch_sub(seen, std::memory_order_acq_rel) - seen;",
        "seen = ringers.exchange(0, std::memory_order_acq_rel) * 0;",
        HELD_BACK,
    ),
    schedules(
        "nvme_publication_of_any_turn",
        "a slot that was published in an earlier turn counts as published",
        SUBMISSION,
        "if (word >> 6 != to + 1) break;",
        "if (word == 0) break;",
        RANDOM,
    ),
    blocks(
        "nvme_more_records_than_the_queue_holds",
        "as many commands are under way as a queue has slots",
        MEMORY,
        "const std::uint32_t nrecords = options.nslots - 1;",
        "const std::uint32_t nrecords = options.nslots;",
        WRAPS,
        Edit(
            MEMORY,
            "std::size_t{options.nslots - 1} * options.buffer_nbytes",
            "std::size_t{options.nslots} * options.buffer_nbytes",
        ),
    ),
    blocks(
        "nvme_high_half_of_the_lba_lost",
        "a command names blocks by 32 bits",
        PAIR,
        "made.cdw11 = static_cast<std::uint32_t>(what.lba >> 32);",
        "made.cdw11 = 0;",
        "nvme_blocks.have_numbers_of_64_bits",
    ),
    recovery(
        "nvme_two_pages_by_a_list",
        "two pages are told as more are, by a list",
        PRP,
        "  if (last == first + 1) {",
        "  if (last == first) {",
        PRPS,
    ),
    recovery(
        "nvme_full_list_leads_on",
        "the last entry of a full list is an address of its next page, though no more follow",
        PRP,
        "if (used == list_entries - 1 && page != last) {",
        "if (used == list_entries - 1) {",
        PRPS,
    ),
    # Completion.
    schedules(
        "nvme_phase_of_the_first_turn",
        "entries of every turn are new when their phase is 1",
        COMPLETION,
        "return ~(position / queue_.nentries) & 1;",
        "return position == ~std::uint64_t{0} ? 0 : 1;",
        RANDOM,
    ),
    blocks(
        "nvme_completions_not_told",
        "the completion doorbell is never stored",
        COMPLETION,
        "        simt::store_register(queue_.completion_bell, static_cast<std::uint32_t>(at % queue_.nentries));\n",
        "",
        WRAPS,
    ),
    blocks(
        "nvme_completions_told_by_windows",
        "the completion doorbell is stored when 32 entries have been taken, and not before",
        COMPLETION,
        "if (at - words_.told >= (queue_.nentries + 3) / 4 || (delivered == 0 && at != words_.told)) {",
        "if (at - words_.told >= 32) {",
        WRAPS,
    ),
    Bug(
        "nvme_entry_read_in_parts",
        "an entry's phase is read after its other words",
        "include/gpufs/simt/detail/cpu_memory.hpp",
        "  v.word[3] = atomic_ref<std::uint32_t, scope::system>(word[3]).load(std::memory_order_acquire);\n"
        "  for (int i = 0; i < 3; ++i) v.word[i]",
        "  for (int i = 0; i < 4; ++i) v.word[i]",
        "simt_memory_cpu",
        "memory.words_of_a_published_entry_are_no_older_than_its_last",
    ),
    # Status, and limits.
    blocks(
        "nvme_status_ignored",
        "a command that failed counts as done",
        BLOCKS,
        "      if (word == 0) {",
        "      if (word < ~0u) {",
        STATUSES,
    ),
    blocks(
        "nvme_lowest_bit_of_the_status",
        "a status is an error if its lowest bit is set",
        BLOCKS,
        "const auto word = static_cast<status_word>(status);",
        "const auto word = static_cast<status_word>(status) & 1;",
        STATUSES,
    ),
    blocks(
        "nvme_do_not_retry_ignored",
        "a command comes again though the controller says that it must not",
        STATUS,
        "if (status == 0 || (status & do_not_retry) != 0) return false;",
        "if (status == 0) return false;",
        STATUSES,
    ),
    blocks(
        "nvme_flush_not_sent",
        "flush sends nothing",
        BLOCKS,
        "(group, space, group.leader(), 0, 0, 0, timeout_ns,",
        "(group, space, false, 0, 0, 0, timeout_ns,",
        "nvme_blocks.that_are_flushed_or_forced_outlive_the_power",
    ),
    blocks(
        "nvme_mdts_ignored",
        "a command moves as much as a buffer holds",
        CONTROLLER,
        "std::min<std::uint64_t>(options_.buffer_nbytes, limits_.most_nbytes);",
        "std::max<std::uint64_t>(options_.buffer_nbytes, 0);",
        LIMITS,
    ),
    blocks(
        "nvme_doorbells_side_by_side",
        "doorbells are 4 bytes apart, whatever the controller says",
        MEMORY,
        "n * options.doorbell_stride);",
        "n * 4);",
        LIMITS,
    ),
    # What does not end.
    recovery(
        "nvme_wait_without_end",
        "who waits has no deadline",
        PAIR,
        ": until.expired() ? -ETIMEDOUT",
        ": until.expired() && of.use == 0 ? -ETIMEDOUT",
        LATE,
    ),
    recovery(
        "nvme_record_used_again_early",
        "the record of a command that was given up is free at once",
        PAIR,
        "          tell_host();\n",
        "          tell_host();\n          records_.finish(of);\n",
        MEMORY_AGAIN,
    ),
    recovery(
        "nvme_late_completion_frees_nothing",
        "a record whose command was given up stays in use when its completion comes",
        RECORDS,
        "          give_back({std::uint64_t{1} << id % 64, id / 64 * 64});\n",
        "",
        LATE,
    ),
    recovery(
        "nvme_queue_not_deleted",
        "a queue is made again that the controller has still",
        CONTROLLER,
        "  if (!remove(queue)) return false;\n",
        "",
        LOST,
    ),
    schedules(
        "nvme_published_kept",
        "of a queue that is made again, slots count as published",
        MEMORY,
        "  memory_.write(layout_.published, std::span<const std::uint64_t>(zeros_));\n",
        "",
        RESET,
    ),
    schedules(
        "nvme_entries_kept",
        "a completion queue is made again with the entries that it had",
        MEMORY,
        "  std::memset(completions_.data(), 0, completions_.nbytes());\n",
        "",
        RESET,
    ),
    recovery(
        "nvme_epoch_kept",
        "commands of a queue that has ended are waited for in the next one",
        MEMORY,
        "memory_.read_one(&words.epoch) + 1);",
        "memory_.read_one(&words.epoch));",
        LOST,
    ),
    schedules(
        "nvme_gate_not_waited_for",
        "queues are made again while groups are inside",
        MEMORY,
        "  return is_zero(layout_.words->users) && is_zero(layout_.words->polling);",
        "  return until >= clock::time_point{} || is_zero(layout_.words->users);",
        RESET,
    ),
    # The file system.
    mounts(
        "nvme_errno_of_the_device_lost",
        "a page whose command failed counts as brought in",
        FILL,
        "    error = read_blocks(group, to, of, offset, nbytes, mount.io_timeout_ns);",
        "    read_blocks(group, to, of, offset, nbytes, mount.io_timeout_ns);",
        "nvme_mount.a_status_reaches_who_reads_there_and_nobody_else",
    ),
    mounts(
        "nvme_version_not_looked_at",
        "who has read blocks does not look whether the version has ended meanwhile",
        FILL,
        "(from.where == place::host_memory || from.where == place::blocks);",
        "from.where == place::host_memory;",
        "nvme_mount.who_reads_a_version_that_is_written_is_told",
    ),
    mounts(
        "nvme_cut_before_the_size_is_looked_at",
        "a file that keeps its size is cut here before the host refuses it",
        "include/gpufs/file/detail/truncate.hpp",
        "  if (files.has_fixed_size(view.slot)) return nbytes ==",
        "  if (false) return nbytes ==",
        "nvme_mount.what_wants_another_size_is_refused_before_anything_is_done",
    ),
    mounts(
        "nvme_host_queue_deeper_than_it_may",
        "the host's queues have more entries than the controller takes",
        "src/nvme/host_blocks.cpp",
        "std::min(most_entries, host_queue::most_slots)",
        "host_queue::most_slots",
        "nvme_mount.queues_of_few_entries_are_enough",
    ),
    mounts(
        "nvme_row_past_the_cache_from_no_memory",
        "a row of blocks that goes past the cache is copied from the address of its namespace",
        "include/gpufs/par/detail/row_at_hand.hpp",
        "there == source::place::host_memory || there == source::place::device;",
        "there != source::place::nowhere;",
        "nvme_mount.rows_of_a_batch_are_gathered",
    ),
    Bug(
        "nvme_first_block_taken_whole",
        "bytes that begin within a block are taken from its beginning",
        READ_BYTES,
        "(address + (from - at));",
        "(address + 0 * (from - at));",
        "source_conformance_cpu",
        "*/sources_with_bytes.give_the_bytes_of_the_file/nvme_blocks_larger_than_pages",
    ),
    mounts(
        "nvme_rest_of_a_block_lost",
        "what the host writes in part, it writes without the block's other bytes",
        "src/nvme/host_blocks.cpp",
        "if (skip != 0 || (skip + nbytes) % of.block_nbytes != 0) {",
        "if (skip != 0 && (skip + nbytes) % of.block_nbytes != 0) {",
        "nvme_mount.what_is_written_and_synced_outlives_the_power",
    ),
    mounts(
        "nvme_fsync_without_flush",
        "fsync leaves what was written in the controller's cache",
        "src/store/nvme_store.cpp",
        "return info_.live ? of_.bytes->flush() : -EBADF;",
        "return info_.live ? 0 : -EBADF;",
        "nvme_mount.what_is_written_and_synced_outlives_the_power",
    ),
    # Partitions, stripes and mirrors.
    volumes(
        "nvme_unit_of_the_next_column",
        "a run goes on behind the end of its unit",
        DETAIL + "file_layout.hpp",
        "left = (std::uint64_t{1} << unit_shift) - (offset - begin);",
        "left = (std::uint64_t{2} << unit_shift) - (offset - begin);",
        "nvme_shapes.give_units_to_columns_in_turn",
    ),
    volumes(
        "nvme_partition_without_its_beginning",
        "kernels read a partition from the namespace's beginning",
        DETAIL + "read_file.hpp",
        "part.begin + run.offset",
        "0 * part.begin + run.offset",
        "nvme_partition_files.have_the_bytes_of_their_blocks_and_no_others",
    ),
    Bug(
        "nvme_table_of_any_crc",
        "entries of a partition table are believed whatever their CRC is",
        "src/nvme/partitions.cpp",
        "field<std::uint32_t>(header, 88)) {",
        "field<std::uint32_t>(header, 88) && n == 0) {",
        "nvme_partitions",
        "nvme_partitions.come_from_the_backup_where_the_first_header_or_its_entries_are_damaged",
    ),
    Bug(
        "nvme_table_has_any_length",
        "each of thousands of entries of a partition table is a file",
        "src/nvme/partitions.cpp",
        "if (all_.size() <= most_partitions) return;",
        "if (all_.size() <= most_table_nbytes) return;",
        "nvme_partitions",
        "nvme_partitions.of_a_large_table_are_its_first_and_what_is_said_stays_short",
    ),
    volumes(
        "nvme_other_names_keep_their_version",
        "who reads bytes that are written by another name is not told",
        "src/service/worker_calls.cpp",
        "    other.inode = inode;\n    end_versions(other);\n",
        "    other.inode = inode;\n",
        "nvme_partition_files.end_their_version_when_their_bytes_are_written_by_another_name",
    ),
    volumes(
        "nvme_flush_of_one_part",
        "fsync of a stripe flushes its first part only",
        VOLUME_BYTES,
        "for (const auto& column : columns_) keep_first(error, column->flush());",
        "keep_first(error, columns_.front()->flush());",
        "nvme_stripes.have_the_bytes_of_their_parts_unit_by_unit",
    ),
    volumes(
        "nvme_copy_kept_that_was_not_written",
        "kernels read a copy that a write has not reached",
        VOLUME_BYTES,
        ".store(1, std::memory_order_release);",
        ".store(0, std::memory_order_release);",
        "nvme_mirrors.leave_a_copy_out_that_was_not_written",
    ),
    volumes(
        "nvme_copies_written_in_any_order",
        "two calls write the same bytes of a mirror at a time, and its copies end with different ones",
        VOLUME_BYTES,
        "return each.begin < mine.end && mine.begin < each.end; });",
        "return each.begin < mine.end && mine.begin + 1 < each.begin; });",
        "nvme_mirrors.have_equal_copies_after_threads_have_written_the_same_bytes",
    ),
    volumes(
        "nvme_copy_left_out_has_its_share_of_the_time",
        "a copy that nobody asks takes time from the others",
        DETAIL + "read_file.hpp",
        "until.left_ns() / untried--",
        "until.left_ns() / (untried-- + simt::count_lanes(out))",
        "nvme_mirrors.of_which_a_copy_is_left_out_give_the_others_all_the_time",
    ),
    volumes(
        "nvme_namespace_of_any_size",
        "a namespace that says that it has more bytes than offsets reach is a file of another size",
        "src/store/nvme_store.cpp",
        "const bool fits = block == 0 ||",
        "const bool fits = block != 0 ||",
        "nvme_volumes.are_no_longer_than_a_file_can_be",
    ),
    volumes(
        "nvme_each_open_asks_the_controller",
        "each open asks for the namespaces, so that many wait for the admin queue",
        VOLUME_BYTES,
        "if (seen_ && now - *seen_ < believed_for &&",
        "if (seen_ && now - *seen_ < 0 * believed_for &&",
        "nvme_volumes.that_are_opened_ask_for_each_namespace_once_and_believe_it_for_a_moment",
    ),
    volumes(
        "nvme_copy_without_memory_ends_the_call",
        "a copy of a mirror that finds no memory keeps the others from being written",
        VOLUME_BYTES,
        "errors[i] = -ENOMEM;",
        "throw;",
        "nvme_mirrors.leave_a_copy_out_whose_write_finds_no_memory_and_nobody_waits_for_it",
    ),
    mounts(
        "nvme_reset_given_up_early",
        "a controller that fails while it is reset is lost",
        CONTROLLER,
        "constexpr int most_resets = 3;",
        "constexpr int most_resets = 1;",
        "nvme_mount.a_controller_that_fails_while_it_is_reset_is_reset_again",
    ),
    Bug(
        "nvme_extents_have_no_end",
        "bytes behind the end of an extent are taken from behind it on the device",
        "include/gpufs/nvme/detail/file_layout.hpp",
        "nbytes < left ? nbytes : left};\n  }\n  const std::uint64_t before",
        "nbytes < left ? nbytes : nbytes};\n  }\n  const std::uint64_t before",
        "nvme_ext4_cpu",
        "nvme_extents.give_each_byte_its_place",
    ),
    ext4(
        "nvme_holes_keep_what_was_there",
        "holes of a file have what the frame had before",
        "include/gpufs/nvme/detail/read_file.hpp",
        "simt::zero_bytes(group, to + done, found.nbytes);",
        "simt::zero_bytes(group, to + done, 0 * found.nbytes);",
        "files_are_read_by_kernels_and_by_no_thread_of_the_host",
    ),
    ext4(
        "ext4_unwritten_blocks_are_read",
        "what was allocated and never written reads as what the device has there",
        "src/store/ext4_extents.cpp",
        "if ((each.flags & extent_unwritten) != 0 || each.offset",
        "if (each.offset",
        "files_larger_than_4_gib_and_what_was_never_written_are_read",
    ),
    Bug(
        "ext4_extents_leave_the_file_system",
        "an extent may reach past the end of its file system",
        "src/store/ext4_extents.cpp",
        "nblocks > all - place) {",
        "nblocks > all) {",
        "store_ext4",
        "ext4.with_damaged_inodes_and_extents_gives_an_error_and_no_bytes",
    ),
    Bug(
        "ext4_damaged_inodes_stay_known",
        "the words of a damaged inode stay in libext2fs's cache, where another inode's were",
        "src/store/ext4_files.hpp",
        "if (answer != 0) ::ext2fs_flush_icache(fs_.get());",
        "if (answer == -1) ::ext2fs_flush_icache(fs_.get());",
        "store_ext4",
        "ext4.with_one_damaged_inode_opens_the_others_as_themselves",
    ),
    Bug(
        "ext4_tables_want_what_they_cannot_have",
        "a table larger than all room for tables has the others forgotten whenever its file is opened",
        "src/store/kernel_tables.cpp",
        "(!may_come && nbytes <= most_nbytes_);",
        "!may_come;",
        "store_ext4",
        "kernel_tables.have_all_of_their_memory_and_lack_what_may_be_given_up",
    ),
    Bug(
        "ext4_maps_without_data_have_no_end",
        "blocks of a file's map are not counted, which may lead to each other",
        "src/store/ext4_extents.cpp",
        "to.is_wrong = ++to.nblocks >",
        "to.is_wrong = (to.nblocks += count < 0 ? 0 : 1) >",
        "store_ext4",
        "ext4.with_maps_that_lead_to_nothing_all_over_has_an_end",
    ),
    Bug(
        "ext4_journal_not_looked_at",
        "a file system is mounted whose journal has what was not written to its place yet",
        "src/store/ext4_files.cpp",
        "if (::ext2fs_has_feature_journal_needs_recovery(fs->super) != 0)",
        "if (::ext2fs_has_feature_journal_needs_recovery(fs->super) > 1)",
        "store_ext4",
        "ext4.that_is_none_or_cannot_be_read_as_it_is_is_refused_with_what_helps",
    ),
    blocks(
        "nvme_head_goes_back",
        "a head that goes back is taken for one that has gone round",
        COMPLETION,
        "if (slot >= queue_.nslots || to > tail) {",
        "if (slot >= queue_.nslots || to > tail + queue_.nslots) {",
        "nvme_blocks.a_head_that_goes_back_is_counted_and_ignored",
    ),
    blocks(
        "nvme_latency_forgotten",
        "the controller in software answers at once, whatever latency it is told",
        "src/nvme/soft_controller.cpp",
        "return {now + options_.latency_ns, 0};",
        "return {now, 0};",
        "nvme_threads.answer_as_late_and_as_often_as_they_are_told",
    ),
    blocks(
        "nvme_threads_are_not_late",
        "threads of the controller in software answer at once, whatever rate they are told",
        "src/nvme/soft_pair.hpp",
        "made.due_ns = first_ns + i * apart_ns;",
        "made.due_ns = first_ns;",
        "nvme_threads.answer_as_late_and_as_often_as_they_are_told",
    ),
    recovery(
        "nvme_block_written_by_two",
        "two host threads write parts of one block at a time, and one of them writes old bytes over the other's",
        CONTROLLER,
        "return each.meet(writes);",
        "return each.meet(writes) && each.nsid == 0;",
        "nvme_host.threads_that_write_parts_of_the_same_blocks_lose_nothing",
    ),
    pci(
        "nvme_holders_not_looked_at",
        "a disk that is part of another device is taken over",
        "src/nvme/pci_tree.cpp",
        'names_in(path / "holders")',
        'names_in(path / "slaves")',
        "pci.a_controller_that_is_in_use_is_never_taken",
    ),
    pci(
        "nvme_paths_are_no_disks",
        "a namespace that several controllers lead to has no users",
        "src/nvme/pci_tree.cpp",
        "return controller + name.substr(n);",
        "return controller + name.substr(controller.size() + 0 * n);",
        "pci.a_controller_that_is_in_use_is_never_taken",
    ),
    pci(
        "nvme_taken_unasked",
        "a controller is taken from the kernel's driver without being told to",
        "src/nvme/pci_controller.cpp",
        "if (before.asks_kernel && !options.from_kernel)",
        "if (before.asks_kernel && !options.from_kernel && !options.without_iommu)",
        "pci.what_else_keeps_a_controller_from_being_taken_is_said",
    ),
    pci(
        "nvme_kept_for_vfio",
        "a controller that vfio does not give stays reserved for it",
        "src/nvme/pci_controller.cpp",
        """tell_again(device_path("driver_override"), "\\n");""",
        "",
        "pci.one_that_vfio_does_not_give_is_given_back_to_its_driver",
    ),
    pci(
        "nvme_stays_bus_master",
        "a controller may write to memory after it was given back",
        "src/nvme/pci_controller.cpp",
        "config_.get() >= 0 && knows_command &&",
        "config_.get() >= 0 && !knows_command &&",
        "pci.one_without_an_iommu_is_reached_by_its_registers_and_given_back_as_it_was",
    ),
    Bug(
        "nvme_poller_not_released",
        "who polls next may not see up to where the last one has come",
        COMPLETION,
        "      polling.store(0, std::memory_order_release);",
        "      polling.store(0, std::memory_order_relaxed);",
        "nvme_blocks_cpu",
        "blocks_of_each_group/0.are_those_of_a_model_in_memory",
        tsan=True,
    ),
)
