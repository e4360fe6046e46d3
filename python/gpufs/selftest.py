# SPDX-License-Identifier: Apache-2.0
"""``python -m gpufs.selftest``: whether this installation reads every format with every engine that can run here.

It makes small files in a temporary folder, and compares what it reads with NumPy. Exit status 0 if all is right,
else 1.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpufs
from gpufs import _machine, _rows, c

ENGINES = ("cpu", "simt", "gpu")
# What pyarrow writes for the column numbers of int32 0, 3, 6, ..., 24, uncompressed.
_COLUMN = np.arange(9, dtype="<i4") * 3
_FEATHER = (
    "c-pm*F%N<;5QQIt1xXW$LBq)4!0P7U!Y?pkaW`?)LF4Y|=+E$9>bvtA35laGdA+vWT|e5k>$bZU@S<)23W#!eIE;~TMnwtN;40&o*vM_V)S8le4y"
    "k4p)*~88tSwiR(x>Zje>h*5@99)~NpfvD!g060B9DcUc<qijLB-G@DCgQMm9TE?A13%}gx^~B=Fy-oD5jl#6NV{0qvv$h<A$B>N$-@n_%M@hZOq"
    "}`9#$7(GdT0#cm1SWefu}vJ{_e"
)
_PARQUET = (
    "c-lRW%L;-}5Qe8yoD70M81cYaxbaY+l0mK7v}`Bg3z!JC@RDYM572Y>+oHucGw?CD<aCLdIOQ~88---4iAVr@f<RLs!2&G7YBYd>JLZ`R_T<VgzZ"
    "GT1f>`*%omYK%E!vJ8TWO^YX%@<tr2dAXoWU84b=KI6Hac#kGQZ&vwy~Un)?SmfkG^<@dDDbh+tzRIh3<P@dAmcjjbf$8dp{t-D_`p_ANK"
)


def _files(folder: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """A file of each format: what it is, what gpufs.open() takes, and the array that it holds."""
    rows = np.random.default_rng(1).random((3000, 17), np.float32)

    def made(name: str, data: bytes) -> str:
        (folder / name).write_bytes(data)
        return str(folder / name)

    np.save(folder / "a.npy", rows)
    yield "npy", {"path": folder / "a.npy"}, rows
    np.save(folder / "b.npy", rows.astype(">f8"))
    yield "npy, big-endian", {"path": folder / "b.npy"}, rows.astype(">f8")
    np.savez(folder / "a.npz", first=rows[:5], second=rows)
    yield "npz", {"path": folder / "a.npz", "name": "second"}, rows
    tensor = {"dtype": "F32", "shape": list(rows.shape), "data_offsets": [0, rows.nbytes]}
    header = json.dumps({"weight": tensor}).encode()
    text = struct.pack("<Q", len(header)) + header + rows.tobytes()
    yield "safetensors", {"path": made("a.safetensors", text)}, rows
    for kind, column in (("Arrow", _FEATHER), ("Parquet", _PARQUET)):
        data = zlib.decompress(base64.b85decode(column))
        yield kind, {"path": made(f"a.{kind}", data), "name": "numbers"}, _COLUMN
    yield "raw", {"path": made("a", b"head" + rows.tobytes()), "dtype": "<f4", "shape": (-1, 17), "offset": 4}, rows


def _check(how: dict[str, Any], engine: str, wanted: Any) -> None:
    with gpufs.open(engine=engine, cache="1MiB", **how) as x:
        if (x.shape, x.dtype) != (wanted.shape, wanted.dtype):
            raise AssertionError(f"{x.shape} of {x.dtype}, not {wanted.shape} of {wanted.dtype}")
        for key in (slice(None), slice(None, None, -2), 3, -1, [2, 2, -1], np.arange(len(wanted)) % 3 == 1):
            if x[key].tobytes() != wanted[key].tobytes():
                raise AssertionError(f"other rows than NumPy's at {key}")


def _mount(folder: Path) -> None:
    with c.Mount(folder, "cpu", cache_nbytes=1 << 20) as mount:
        mount.prepare("a")
        if mount.handle == 0 or mount.counters("errors") != {"errors": 0}:
            raise AssertionError("a mount by way of C does not work")


def main() -> int:
    """Prints a line for each check; how many failed decides the exit status."""
    started = time.monotonic()
    print(f"gpufs {_machine.version()}, {sys.version.split()[0]}, NumPy {np.__version__}")
    engines = [engine for engine in ENGINES if not _rows.engine_missing(engine)]
    for engine in ENGINES:
        if engine not in engines:
            print(f"  not here: engine {engine}: {_rows.engine_missing(engine)}")
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="gpufs-selftest-") as name:
        folder = Path(name)
        checks: list[tuple[str, Any]] = [
            (f"{kind} by {engine}", lambda how=how, engine=engine, wanted=wanted: _check(how, engine, wanted))
            for kind, how, wanted in _files(folder)
            for engine in engines
        ]
        for what, check in [*checks, ("a mount by way of C", lambda: _mount(folder))]:
            try:
                check()
                passed += 1
                print(f"  right: {what}")
            except Exception:
                failed += 1
                print(f"  WRONG: {what}\n{traceback.format_exc()}")
    print(f"{passed} right, {failed} wrong, in {time.monotonic() - started:.1f} s")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
