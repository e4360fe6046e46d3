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
        "if (k < rows.noffsets && rows.offsets[k] == begin) k = rows.first_from(begin + 1);",
        "if (k < rows.noffsets && rows.offsets[k] == begin) break;",
        PROGRAM,
        RANDOM,
    ),
    Bug(
        "sum_goes_to_the_row_that_begins",
        "a row's sum goes to the next row",
        PRODUCTS,
        "y[rows.first_from(end) - 1] = sum;",
        "if (rows.first_from(end) + 1 != rows.noffsets) y[rows.first_from(end)] = sum;",
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
        "if (a.offsets[row] == a.offsets[row + 1]) y[row] = T{};",
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
        "is_good = is_good && a.offsets[row] <= a.offsets[row + 1];",
        "is_good = is_good && a.offsets[row] <= a.offsets[a.nrows];",
        PROGRAM,
        "spmv.of_what_is_no_matrix_is_refused",
    ),
    Bug(
        "a_row_ends_behind_the_last_element",
        "offsets of a matrix's rows are believed behind its last element",
        "include/gpufs/par/spmv.hpp",
        "first > last || last > a.nelements",
        "first > last",
        "par_spmv_cpu",
        "spmv.of_what_is_no_matrix_is_refused",
    ),
)
