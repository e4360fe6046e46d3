# SPDX-License-Identifier: Apache-2.0
"""The native files of the package as it is built: one wheel for machines with and without a GPU."""

from __future__ import annotations

import struct
from pathlib import Path

import gpufs
import pytest

FILES = sorted(Path(gpufs.__file__).parent.glob("_*.so")) + sorted(Path(gpufs.__file__).parent.glob("lib/*.so"))
# What each Linux has that runs Python. CUDA's runtime is linked into the files, and opens the driver when it is used.
OF_THE_SYSTEM = ("libc.", "libm.", "libdl.", "librt.", "libpthread.", "libgcc_s.", "libstdc++.", "ld-linux")

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29
_SHT_DYNSYM, _SHN_UNDEF, _SHN_ABS = 11, 0, 0xFFF1


def dynamic_names(path: Path) -> dict[int, list[str]]:
    """Of a shared library (ELF, 64 bits, little-endian): the libraries that it needs, and where they are looked for."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    (at,) = struct.unpack_from("<Q", data, 32)
    size, n = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, at + i * size) for i in range(n)]
    (dynamic,) = [s for s in segments if s[0] == _PT_DYNAMIC]
    entries = [struct.unpack_from("<QQ", data, dynamic[2] + i) for i in range(0, dynamic[5], 16)]
    (strings,) = [value for tag, value in entries if tag == _DT_STRTAB]
    (begin,) = [s[2] + strings - s[3] for s in segments if s[0] == _PT_LOAD and s[3] <= strings < s[3] + s[5]]
    names: dict[int, list[str]] = {}
    for tag, value in entries:
        if tag in (_DT_NEEDED, _DT_RPATH, _DT_RUNPATH):
            names.setdefault(tag, []).append(data[begin + value :].split(b"\0", 1)[0].decode())
    return names


def exported_names(path: Path) -> set[str]:
    """The symbols that a shared library gives to others."""
    data = path.read_bytes()
    (at,) = struct.unpack_from("<Q", data, 40)
    size, n = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(n)]
    (table,) = [s for s in sections if s[1] == _SHT_DYNSYM]
    strings = sections[table[6]][4]
    names = set()
    for place in range(table[4], table[4] + table[5], table[9]):
        name, _info, _other, section = struct.unpack_from("<IBBH", data, place)
        if section not in (_SHN_UNDEF, _SHN_ABS):
            names.add(data[strings + name :].split(b"\0", 1)[0].decode())
    return names


def test_there_are_files() -> None:
    """Besides what only a wheel has."""
    assert {path.name.partition(".")[0] for path in FILES} >= {"_machine", "_native", "_rows"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_no_library_is_needed_but_the_systems(path: Path) -> None:
    names = dynamic_names(path)
    needed = names.get(_DT_NEEDED, [])
    assert any(name.startswith("libc.") for name in needed)
    assert [name for name in needed if not name.startswith(OF_THE_SYSTEM)] == []
    assert _DT_RPATH not in names and _DT_RUNPATH not in names


MODULES = [path for path in FILES if path.name.startswith("_")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name.partition(".")[0])
def test_a_module_exports_what_python_calls_and_nothing_else(path: Path) -> None:
    """Else a libstdc++ that is linked statically is partly that of all the process: its unique symbols."""
    assert exported_names(path) == {"PyInit_" + path.name.partition(".")[0]}
