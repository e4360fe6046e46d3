# SPDX-License-Identifier: Apache-2.0
"""What a planted bug is.

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


FRAMES = "include/gpufs/cache/detail/frames.hpp"
CLOCK = "include/gpufs/cache/detail/clock_rings.hpp"
PAGES = "include/gpufs/cache/detail/page_cache.hpp"
HASH_TABLE = "include/gpufs/cache/detail/hash_table.hpp"
DIRTY = "include/gpufs/cache/detail/dirty.hpp"
TABLE = "include/gpufs/file/detail/file_table.hpp"
SLOTS = "include/gpufs/file/detail/file_slots.hpp"
WRITE = "include/gpufs/file/write.hpp"
APPEND = "include/gpufs/file/append.hpp"
FAULT = "include/gpufs/pointer/detail/fault.hpp"
STORES = "include/gpufs/pointer/detail/stores.hpp"
UPDATE = "include/gpufs/pointer/update.hpp"
UPDATE_KIND = "include/gpufs/pointer/detail/update_kind.hpp"
WRITE_BACK = "include/gpufs/file/detail/write_back.hpp"
PAGE_WRITE_BACK = "include/gpufs/file/detail/page_write_back.hpp"
ARRAY = "include/gpufs/pointer/array.hpp"
LINK = "include/gpufs/pointer/detail/link.hpp"
WARP_ACCESS = "include/gpufs/pointer/detail/warp_access.hpp"

CACHE_STRESS = "page_cache.random_groups_see_only_their_pages"
UNPINNED = "page_cache.who_holds_no_pin_sees_whether_the_page_has_stayed"
