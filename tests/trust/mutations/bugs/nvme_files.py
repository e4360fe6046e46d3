# SPDX-License-Identifier: Apache-2.0
"""Bugs in the files of NVMe controllers: namespaces, partitions, stripes, mirrors, and those of ext4 file systems."""

from __future__ import annotations

from .bug import Bug

DETAIL = "include/gpufs/nvme/detail/"
CONTROLLER = "src/nvme/controller.cpp"
VOLUME_BYTES = "src/store/nvme_bytes.cpp"
FILL, READ_BYTES = "include/gpufs/file/detail/fill.hpp", DETAIL + "read_bytes.hpp"


def mounts(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_mount_cpu", test)


def volumes(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_volume_cpu", test)


def ext4(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "nvme_ext4_cpu", f"nvme_ext4.{test}")


def drawn(name: str, says: str, file: str, old: str, new: str, test: str) -> Bug:
    return Bug(name, says, file, old, new, "fuzz_whole_cpu", test)


BUGS = (
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
    mounts(
        "nvme_second_mount_of_a_store_that_writes",
        "a store that is writable may have two mounts, of which one is not told what the other one writes",
        "src/store/nvme_store.cpp",
        "  if (state_->is_mounted.exchange(true, std::memory_order_acquire)) {",
        "  if (state_->is_mounted.exchange(false, std::memory_order_acquire)) {",
        "nvme_mount.of_a_store_that_is_writable_is_the_only_one_until_it_ends",
    ),
    mounts(
        "nvme_store_mounted_for_ever",
        "the end of a mount does not make its store free for another one",
        "src/store/nvme_store.cpp",
        "{ owner->is_mounted.store(false, std::memory_order_release); }",
        "{ owner->is_mounted.store(true, std::memory_order_release); }",
        "nvme_mount.of_a_store_that_is_writable_is_the_only_one_until_it_ends",
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
    # What drawn programs and drawn file systems find.
    drawn(
        "nvme_stripe_as_long_as_its_last_part",
        "a stripe whose last part is not its shortest is longer than its parts are",
        "src/store/nvme_volumes.cpp",
        "least = std::min(least, parts[i]->nbytes());",
        "least = parts[i]->nbytes();",
        "fuzz.programs_over_nvme_do_what_is_promised",
    ),
    drawn(
        "nvme_copies_written_to_the_first",
        "what is written to each copy of a mirror goes to the first one",
        VOLUME_BYTES,
        "errors[i] = work(copies_[i]);",
        "errors[i] = work(copies_[0]);",
        "fuzz.programs_over_nvme_do_what_is_promised",
    ),
    drawn(
        "nvme_hole_without_an_end",
        "what is read from a hole on is zeros, also behind it",
        DETAIL + "file_layout.hpp",
        "extents[at].offset - offset < nbytes ? extents[at].offset - offset : nbytes;",
        "extents[at].offset - offset < nbytes ? 0 * extents[at].offset + nbytes : nbytes;",
        "fuzz_ext4.files_have_the_bytes_that_were_put_in",
    ),
)
