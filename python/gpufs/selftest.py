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
# What pyarrow writes for the column numbers of int32 0, 3, 6, ..., 24, uncompressed: in 3 record batches; and in 2 row
# groups, of 2 pages and of one.
_COLUMN = np.arange(9, dtype="<i4") * 3
_FEATHER = (
    "c-pm-KMz4M6va=ydhd}Y8hPZ627}dZvDqXRW{JeYK<q}NkLM%!7M#{?&_s}MlG8u;-QN7#*A6F>@w5+Is67A+r#cK$RFQK;Da|=J%h_sa8Kw"
    ")rreG{Z=CiESP!-pAB-bgU*SpnxvDq@;(3!90k~@;)I1W<R$)GJH##cw8QL^hHsLr|ZRE~8Zd(gP6g4gOkj8(KQD4|oj=6Qey-K1M|`6ajg5"
    "x0HA9dmxlm%rgtAM)vlPetD!&n@i7kS_H^_Qu32OSUtq=l;V{)`dRYgOPfUhx0i{@jT-A_nkh`L;uFEQAR9P"
)
_PARQUET = (
    "c-nQ4!D<3A5QhK6W!%C-L71?C9QL5WLKGG1$xDyjlk^R?vY-cbUA27?kA0uMmXlTr9t!zq0^k2L%q(BtrVI`o0;lpJCI>)^QY8f)5s4l|!X3"
    "N7$-OaAnbgN$L!bLW;GKa~?*{^T?1>G}$mzIR*V~FUSPyjG-JQ4Zb$f*A*<hWAV{Hcn`$rfiGZ!V#r>~CVump=IvL11MM43;e;lDVU(v<#7-"
    "O~D&j_U~_A*RHzXsY&bu1}*?(~PRN-G3GzlHcri#cV#FjHlMc#lA&Lx!x5Ex+_-"
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
