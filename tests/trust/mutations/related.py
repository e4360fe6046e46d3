# SPDX-License-Identifier: Apache-2.0
"""Which test programs are to find a mutant of a file: those that are quick, and near to it, first."""

from __future__ import annotations

import re
from pathlib import Path

CACHE = ("cache_page_table_cpu", "cache_page_cache_cpu")
STORE = ("store_test", "store_descriptor_limit", "store_out_of_memory")
SERVICE = ("service_test", "hostile_device_test", "service_fuzz_test")
FILE = (
    *(
        "file_open_cpu",
        "file_bad_input_cpu",
        "file_write_cpu",
        "file_paths_cpu",
        "file_open_all_cpu",
        "file_concurrency_cpu",
    ),
    *(
        "file_read_error_cpu",
        "file_write_error_cpu",
        "file_stored_write_cpu",
        "file_limits_cpu",
        "file_random_model_cpu",
    ),
    *("file_write_property_cpu", "file_many_files_cpu", "file_large_cpu", "file_processes_cpu"),
)
POINTER = (
    *(
        "pointer_ptr_cpu",
        "pointer_walk_cpu",
        "pointer_sequential_cpu",
        "pointer_read_tile_cpu",
        "pointer_read_property_cpu",
    ),
    *("pointer_write_property_cpu", "pointer_private_property_cpu", "pointer_sequential_property_cpu"),
)
MACHINE = (
    *("simt_group_cpu", "simt_launch_cpu", "simt_atomic_cpu", "simt_memory_cpu", "simt_some_lanes_cpu"),
    *("simt_cooperative_groups_cpu", "simt_cpu_schedule", "simt_cpu_priorities", "simt_cpu_checkers"),
)

# The first prefix that fits counts.
RELATED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("include/gpufs/pointer/aes_ctr.hpp", ("pointer_aes_ctr_cpu",)),
    ("include/gpufs/pointer/detail/", ("pointer_aes_ctr_cpu",)),
    ("src/pointer/aes_ctr.cpp", ("pointer_aes_ctr_cpu",)),
    ("include/gpufs/pointer/", (*POINTER, "compat_cpu")),
    ("include/gpufs/compat/", ("compat_cpu",)),
    ("include/gpufs/cache/", (*CACHE, *FILE, *POINTER)),
    ("include/gpufs/file/", (*FILE, "compat_cpu", *POINTER, "kill_cpu")),
    ("include/gpufs/store/", (*STORE, *FILE)),
    ("include/gpufs/service/", (*SERVICE, *FILE)),
    ("include/gpufs/simt/", (*MACHINE, *CACHE, "file_open_cpu", "file_write_cpu", "pointer_ptr_cpu")),
    ("include/gpufs/", (*FILE, *POINTER)),
    ("src/simt/", (*MACHINE, *CACHE, "file_open_cpu", "file_write_cpu", "pointer_ptr_cpu")),
    ("src/store/", (*STORE, *SERVICE, *FILE, "kill_cpu")),
    ("src/service/", (*SERVICE, *FILE, "pointer_ptr_cpu", "kill_cpu")),
    ("src/file/", (*FILE, *SERVICE, *POINTER)),
)

# Not compiled where there is no GPU, or not what is to be found out here.
LEFT_OUT = re.compile(r"cuda|^src/(apps|python)/|cpu_absent|sanitizer\.hpp")


def sources(root: Path) -> list[str]:
    """The files that mutants are drawn from, relative to root."""
    found = [path for folder in ("include/gpufs", "src") for path in (root / folder).rglob("*.?pp")]
    return sorted(name for path in found if not LEFT_OUT.search(name := path.relative_to(root).as_posix()))


def programs_for(file: str) -> tuple[str, ...]:
    return next(programs for prefix, programs in RELATED if file.startswith(prefix))


def all_programs() -> set[str]:
    return {program for _, programs in RELATED for program in programs}
