# SPDX-License-Identifier: Apache-2.0
"""Bugs in queues of NVMe controllers: the mistakes that implementations for kernels are known to have."""

from __future__ import annotations

from .bug import Bug, Edit

DETAIL = "include/gpufs/nvme/detail/"
SUBMISSION, COMPLETION = DETAIL + "submission_queue.hpp", DETAIL + "completion_queue.hpp"
RECORDS, PAIR = DETAIL + "records.hpp", DETAIL + "queue_pair.hpp"
STATUS, BLOCKS, PRP = DETAIL + "status.hpp", DETAIL + "blocks.hpp", DETAIL + "prp.hpp"
CONTROLLER, MEMORY = "src/nvme/controller.cpp", "src/nvme/queue_memory.cpp"
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
    Bug(
        "nvme_reset_by_others_is_not_seen",
        "a controller that the system has reset stays so until a command of it was given up",
        "src/nvme/controller.cpp",
        "|| (status & state::ready) == 0; }",
        "; }",
        "nvme_recovery_cpu",
        "nvme_recovery.a_controller_that_others_reset_is_made_ready_again",
    ),
)
