# SPDX-License-Identifier: Apache-2.0
"""Bugs in scans and sorts of files."""

from __future__ import annotations

from .bug import Bug

PROGRAM = "par_files_test_cpu"
CUTS = "apps/par/run_cuts.cpp"
PIECES = "apps/par/pieces.cpp"
CARRIER = "apps/par/device_carrier.hpp"
HOST = "apps/par/engine_cpu.cpp"
DEVICE = "apps/par/engine_device.hpp"
OF_RUNS = "par_files.sorts_are_stable_and_in_order_for_each_type_of_keys_and_records"
OF_PIECES = "par_files.scans_are_the_same_around_the_ends_of_pieces"
GONE_ON_SCANS = "par_files_gone_on.scans_have_the_same_bits"
OF_CUTS = "run_cuts.have_as_many_records_before_them_as_wanted_and_the_first_of_the_merge"

BUGS = (
    Bug(
        "equal_keys_of_all_runs_before_the_cut",
        "of records that have the cut's key all are before it, also those that are too many",
        CUTS,
        "const std::uint64_t taken = std::min(missing, each.high - each.low);",
        "const std::uint64_t taken = each.high - each.low;",
        PROGRAM,
        OF_CUTS,
    ),
    Bug(
        "cut_goes_back",
        "a cut is looked for from the first record of each run on, not from the last cut on",
        CUTS,
        "each.before = each.low = each.cut;",
        "each.before = each.cut;",
        PROGRAM,
        OF_CUTS,
    ),
    Bug(
        "carry_is_lost_between_pieces",
        "each piece of a scan by kernels begins with nothing",
        DEVICE,
        "    enqueue_scan<Op>(scan_, in, in, nbytes, exclusive_, work_);",
        "    scan_.restart();\n    enqueue_scan<Op>(scan_, in, in, nbytes, exclusive_, work_);",
        PROGRAM,
        OF_PIECES,
    ),
    Bug(
        "sums_of_parts_are_not_added_up",
        "each thread's part of a scan begins with the sum of the part before it alone",
        HOST,
        "for (std::uint64_t i = 0; i < nparts; ++i) before[i + 1] = op(before[i], before[i + 1]);",
        "for (std::uint64_t i = 0; i < 1; ++i) before[i + 1] = op(before[i], before[i + 1]);",
        PROGRAM,
        "par_files.scans_of_more_than_a_slot_and_a_part_are_the_same",
    ),
    Bug(
        "equal_keys_by_chance",
        "records with equal keys lie as host threads leave them",
        HOST,
        "return key != other.key ? key < other.key : number < other.number;",
        "return key < other.key;",
        PROGRAM,
        "par_files.sorts_of_many_records_go_by_parts_and_slots",
    ),
    Bug(
        "negative_numbers_the_other_way_round",
        "of real numbers with a sign the bits are not inverted",
        "apps/par/key_order.hpp",
        "key = (key & sign) != 0 ? ~key : key ^ sign;",
        "key ^= sign;",
        PROGRAM,
        OF_RUNS,
    ),
    Bug(
        "piece_transformed_before_it_is_there",
        "who transforms a piece that comes by slots does not wait for its copies",
        CARRIER,
        "for (const slot& each : in_) each.copies.wait();",
        "",
        PROGRAM,
        "par_files.sorts_of_many_records_go_by_parts_and_slots",
        tsan=True,
    ),
    Bug(
        "slot_written_before_it_is_read",
        "a slot whose bytes are on their way to the device is filled again",
        CARRIER,
        "      by.copies.wait();\n      read_by_all",
        "      read_by_all",
        PROGRAM,
        "par_files.scans_of_more_than_a_slot_and_a_part_are_the_same",
    ),
    Bug(
        "result_goes_to_another_pieces_place",
        "a result that lies in the other buffer takes that one's place in the output",
        PIECES,
        "      of_[spare] = std::move(of_[buffer]);\n",
        "",
        PROGRAM,
        OF_PIECES,
    ),
    Bug(
        "scan_goes_on_with_nothing",
        "a scan that goes on behind a piece takes no notice of what came before",
        "apps/par/scan_job.cpp",
        "if (state.npieces != 0) scan->go_on(state.so_far);",
        "",
        PROGRAM,
        GONE_ON_SCANS,
    ),
    Bug(
        "state_of_a_piece_that_is_not_written",
        "what a scan knows after a piece is what it knows by the time that the piece is written",
        PIECES,
        "so_far_ = after_[buffer];",
        "so_far_ = with_.so_far();",
        PROGRAM,
        GONE_ON_SCANS,
    ),
    Bug(
        "merges_begin_at_the_first_records_again",
        "who goes on with merges does not pass what is merged",
        "apps/par/sort_job.cpp",
        "if (first != 0) move_cuts_on(first);",
        "",
        PROGRAM,
        "par_files_gone_on.sorts_have_the_same_records",
    ),
    Bug(
        "failure_is_forgotten",
        "a job whose output cannot be written goes on with the next piece",
        PIECES,
        "  if (!failure_) failure_ = std::move(why);\n  ended_ = true;\n",
        "  ended_ = why == nullptr;\n",
        PROGRAM,
        "par_files.a_job_whose_output_cannot_be_written_ends_with_the_reason",
    ),
    Bug(
        "no_room_is_no_error",
        "bytes for which a mapping has no page are taken for written",
        "apps/par/output_file.cpp",
        "if (mapping_ != nullptr && bus_guarded([&] { copy(mapping_ + offset, from, nbytes); })) return;",
        "if (mapping_ != nullptr) return void(bus_guarded([&] { copy(mapping_ + offset, from, nbytes); }));",
        PROGRAM,
        "par_files.an_output_that_cannot_grow_is_an_error_with_its_reason",
    ),
)
