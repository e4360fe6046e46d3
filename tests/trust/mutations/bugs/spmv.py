# SPDX-License-Identifier: Apache-2.0
"""Bugs in products of sparse matrices and vectors."""

from __future__ import annotations

from .bug import Bug

SPMV = "include/gpufs/par/spmv.hpp"
PRODUCTS = "include/gpufs/par/detail/csr_products.hpp"
PROGRAM = "par_spmv_cpu"
RANDOM = "spmv_of/1.random_matrices_is_what_a_loop_gives"

BUGS = (
    Bug(
        "empty_rows_end_the_look",
        "behind a row without elements, those of the same thread begin no row",
        PRODUCTS,
        "if (k < rows.noffsets && rows.offsets[k] == begin) k = rows.first_from(next);",
        "if (k < rows.noffsets && rows.offsets[k] == begin) break;",
        PROGRAM,
        RANDOM,
    ),
    Bug(
        "sum_goes_to_the_row_that_begins",
        "a row's sum goes to the next row",
        PRODUCTS,
        "if (T* const to = of_row_before(rows.first_from(end)); to",
        "if (T* const to = of_row_before(rows.first_from(end) + 1); to",
        PROGRAM,
        RANDOM,
    ),
    Bug(
        "last_row_has_no_sum",
        "the sum of the last row with elements is not written",
        SPMV,
        "if (grid.leader() && n != 0) sums.put(n, all.of);",
        "",
        PROGRAM,
        RANDOM,
    ),
    Bug(
        "empty_rows_keep_what_was_there",
        "rows without elements keep what y had",
        SPMV,
        "if (first == last) y[row] = T{};",
        "",
        PROGRAM,
        "spmv_of/0.a_matrix_with_an_empty_row_is_right",
    ),
    Bug(
        "part_of_x_is_used_before_it_is_there",
        "a block multiplies with a part of x that others are still reading",
        SPMV,
        "part_[i] = x[first + i];\n    block.sync();\n",
        "part_[i] = x[first + i];\n",
        PROGRAM,
        RANDOM,
    ),
    Bug(
        "column_behind_the_last",
        "the column behind the last one is read",
        SPMV,
        "const bool is_there = column < a.ncolumns;",
        "const bool is_there = column <= a.ncolumns;",
        PROGRAM,
        "spmv.of_what_is_no_matrix_is_refused",
    ),
    Bug(
        "offsets_may_fall",
        "a row may end before it begins",
        SPMV,
        "if (first > last || last > a.nelements) return false;",
        "if (last > a.nelements) return false;",
        PROGRAM,
        "spmv.of_what_is_no_matrix_is_refused",
    ),
    Bug(
        "a_row_ends_behind_the_last_element",
        "offsets of a matrix's rows are believed behind its last element",
        SPMV,
        "first > last || last > a.nelements) {",
        "first > last) {",
        PROGRAM,
        "spmv.of_what_is_no_matrix_is_refused",
    ),
    Bug(
        "left_of_a_share_is_lost",
        "of a row over several blocks only the part that the last one has is added up",
        SPMV,
        "if (block.leader()) sums.mend(mine.begin, mine.end, left.of);",
        "",
        PROGRAM,
        "spmv_of_files.with_rows_over_some_blocks_is_right_in_all_schedules",
    ),
    Bug(
        "offsets_are_looked_for_to_the_right_alone",
        "a thread does not look for a row before the last one that it has found",
        PRODUCTS,
        "begin != 0 && offset(begin - 1) >= i;",
        "begin != 0 && false;",
        PROGRAM,
        "spmv_of_files_of/0.random_matrices_is_what_a_loop_gives",
    ),
    Bug(
        "a_groups_rows_begin_with_the_matrix",
        "a group that scans some rows looks for them from the matrix's first row on",
        SPMV,
        "a.offsets + static_cast<std::ptrdiff_t>(begin);",
        "a.offsets + static_cast<std::ptrdiff_t>(0 * begin);",
        PROGRAM,
        "spmv_of_files.that_are_no_matrix_is_refused",
    ),
    Bug(
        "a_last_offset_is_looked_at_once",
        "a group goes through as many elements as the last offset says when it is read again",
        SPMV,
        "if (first > last || last > a.nelements) return -EINVAL;",
        "if (first > last) return -EINVAL;",
        PROGRAM,
        "spmv_of_files.whose_offsets_change_meanwhile_looks_at_no_other_memory",
    ),
)
