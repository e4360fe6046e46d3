# SPDX-License-Identifier: Apache-2.0
"""Bugs in queries of tables."""

from __future__ import annotations

from .bug import Bug

VALUES = "apps/query/values.hpp"
KERNEL = "apps/query/query_kernel.hpp"
TEST = "query_test_cpu"
OF_ALL = "queries.of_columns_of_all_types_in_any_pieces_add_up_exactly"

BUGS = (
    Bug(
        "rows_that_are_left_are_not_fetched",
        "a warp ends with rows on its list that are not 32",
        KERNEL,
        "if (have.error == 0 && have.nlisted != 0) take(",
        "if (have.error == 0 && have.nlisted >= rows_at_once) take(",
        TEST,
        "queries.read_of_other_columns_what_belongs_to_rows_that_pass",
    ),
    Bug(
        "rows_that_were_taken_stay_listed",
        "rows behind the 32 that were fetched do not move up, and the first ones are fetched again",
        KERNEL,
        "mine.rows[warp.rank()] = mine.rows[n + warp.rank()];",
        "mine.rows[warp.rank()] = mine.rows[warp.rank()];",
        TEST,
        OF_ALL,
    ),
    Bug(
        "failed_scan_is_the_end",
        "a column that cannot be scanned any further ends there",
        KERNEL,
        "note_failure(warp, 0, run.error);",
        "",
        TEST,
        "queries.of_files_that_are_cut_or_gone_say_so",
    ),
    Bug(
        "value_lacks_its_third_digit",
        "what a value has beyond two digits of a sum is not added",
        VALUES,
        "shift == 0 ? 0 : magnitude >> (64 - shift)",
        "0",
        TEST,
        OF_ALL,
    ),
    Bug(
        "carries_have_no_sign",
        "digits below zero carry what is far above",
        VALUES,
        "carried = static_cast<std::uint64_t>(static_cast<std::int64_t>(of.digits[i]) >> 32);",
        "carried = of.digits[i] >> 32;",
        TEST,
        "sums.keep_all_bits_and_count_what_is_not_finite",
    ),
    Bug(
        "no_number_is_above_all",
        "NaN passes >= and >",
        VALUES,
        "const std::uint64_t greatest = is_float(type) ? sign_bit | std::uint64_t{0x7ff} << 52 : ~std::uint64_t{0};",
        "const std::uint64_t greatest = ~std::uint64_t{0};",
        TEST,
        "values.that_are_no_number_are_unequal_to_all",
    ),
    Bug(
        "values_are_read_over_a_pieces_end",
        "host threads read values together that lie in two pieces",
        "apps/query/engine_cpu.cpp",
        " && rows[next] * nbytes_ < begin + there.nbytes && rows[next] * nbytes_ - end <= gap_nbytes) {",
        " && rows[next] * nbytes_ - end <= gap_nbytes) {",
        TEST,
        OF_ALL,
    ),
)
