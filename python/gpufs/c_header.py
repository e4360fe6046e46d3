# SPDX-License-Identifier: Apache-2.0
"""What gpufs_device.h and gpufs_verbs.h say: kernels' calls with their parameters, structs and constants.

The headers lie in this package (``gpufs/lib/include``), so that bindings repeat nothing of them, and so do the other
files of gpufs in C; $GPUFS_LIB names another folder that has them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpufs.errors import GpufsError

FOLDER = Path(os.environ.get("GPUFS_LIB") or Path(__file__).parent / "lib")
INCLUDE = FOLDER / "include"
GROUPS = ("thread", "warp", "block")
_NUMBERS = {
    "int32_t": "i4",
    "int64_t": "i8",
    "uint16_t": "u2",
    "uint32_t": "u4",
    "uint64_t": "u8",
    "float": "f4",
    "double": "f8",
}


@dataclass(frozen=True)
class Parameter:
    """dtype: None for a pointer."""

    name: str
    dtype: np.dtype[Any] | None


@dataclass(frozen=True)
class Call:
    """A function that kernels call. name: as the linker has it, gpufs_pread_warp; result: None where it is void."""

    name: str
    result: np.dtype[Any] | None
    parameters: tuple[Parameter, ...]


def built_file(name: str) -> Path:
    """A file of FOLDER. GpufsError where this build has none."""
    path = FOLDER / name
    if not path.exists():
        remedy = ": build it where nvcc is (GPUFS_CUDA=ON pip install .)" if name.startswith("gpufs_device") else ""
        raise GpufsError(f"this build of gpufs has no {name}{remedy}")
    return path


def device_code() -> Path:
    """The file that kernels are linked with, which need not be there: `built_file` of its name says so.

    It is the fatbin, machine code, which links in a second; or the LTO-IR, where $GPUFS_DEVICE_CODE is ltoir: gpufs's
    code is optimised with the kernel's then, which takes up to minutes for each kernel.
    """
    kind = os.environ.get("GPUFS_DEVICE_CODE", "fatbin")
    if kind not in ("fatbin", "ltoir"):
        raise GpufsError(f"GPUFS_DEVICE_CODE is {kind}; it can be fatbin or ltoir")
    return FOLDER / f"gpufs_device.{kind}"


@cache
def _text(name: str) -> str:
    return re.sub(r"//[^\n]*", "", built_file(f"include/gpufs/{name}").read_text(encoding="utf-8"))


@cache
def _numbers() -> dict[str, str]:
    return _NUMBERS | {
        new: _NUMBERS[old] for old, new in re.findall(r"typedef (\w+) (gpufs_\w+);", _text("gpufs_device.h"))
    }


def _parameter(text: str) -> Parameter:
    kind, name = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return Parameter(name, None if kind.endswith("*") else np.dtype(_numbers()[kind]))


@cache
def calls() -> tuple[Call, ...]:
    """All of them, in the header's order."""
    made = []
    for kind, result, name, parameters in re.findall(
        r"GPUFS_(VERB|FUNCTION)\((\w+), (\w+),\s*\(([^()]*)\)", _text("gpufs_verbs.h")
    ):
        given = () if parameters == "void" else tuple(map(_parameter, parameters.split(",")))
        of = None if result == "void" else np.dtype(_numbers()[result])
        groups = [f"_{group}" for group in GROUPS] if kind == "VERB" else [""]
        made += [Call(f"gpufs_{name}{group}", of, given) for group in groups]
    return tuple(made)


@cache
def structs() -> dict[str, np.dtype[Any]]:
    """By name, without the prefix gpufs_; pointers are uint64."""
    made = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} gpufs_(\w+);", _text("gpufs_device.h"), re.DOTALL):
        fields: list[Any] = []
        for kind, field, n in re.findall(r"([\w ]+?\**)\s*(\w+)(?:\[(\d+)\])?;", body):
            dtype = "u8" if kind.strip().endswith("*") else _numbers()[kind.strip()]
            fields.append((field, dtype, (int(n),)) if n else (field, dtype))
        made[name] = np.dtype(fields, align=True)
    return made


@cache
def constants() -> dict[str, int]:
    """By name, without the prefix GPUFS_: O_RDONLY, SYNC_DATA, ..."""
    found = re.findall(r"\bGPUFS_(\w+) = (\w+)", _text("gpufs_device.h"))
    return {name: int(number, 16 if "x" in number else 8 if number[0] == "0" else 10) for name, number in found}
