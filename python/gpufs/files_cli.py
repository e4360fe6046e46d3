# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs stat`, `cat` and `bench`: arrays in files."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import gpufs
from gpufs.collage.cli import Engine, interrupt_status, parse_size, reports_errors, say_error
from gpufs.doctor import size_text
from gpufs.errors import GpufsError
from gpufs.text import printable

out = Console(highlight=False, emoji=False)

_CHUNK_NBYTES = 64 << 20
_MOST_LISTED = 100
BROKEN_PIPE = 141  # as a shell has it for SIGPIPE

Name = Annotated[str | None, typer.Option(help="Which array, where the file has several.")]
Dtype = Annotated[str | None, typer.Option(help="Of a raw file: the elements, as NumPy has them (f4, <i8).")]
Shape = Annotated[str | None, typer.Option(help="Of a raw file: --shape=-1,128; -1: as many rows as there are.")]
Offset = Annotated[int, typer.Option(help="Of a raw file: where the array begins.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


def page_of(text: str) -> int:
    """Bytes of a page, from an option --page-size. Raises typer.BadParameter."""
    nbytes = parse_size(text)
    if nbytes & (nbytes - 1) or not 512 <= nbytes <= 2 << 20:
        raise typer.BadParameter("a page has 512 bytes to 2 MiB, a power of two", param_hint="--page-size")
    return nbytes


def tell(title: str, rows: dict[str, Any], as_json: bool, facts: dict[str, Any]) -> None:
    """What a command did: a table of rows, or the facts as a line of JSON."""
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(title=printable(title), show_header=False, title_justify="left", title_style="bold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else printable(value))
    out.print(table)


def _how(name: str | None, dtype: str | None, shape: str | None, offset: int, engine: Engine) -> dict[str, Any]:
    """gpufs.open()'s arguments, from a command's options. Raises typer.BadParameter."""
    import numpy as np

    try:
        of = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise typer.BadParameter(f"'{printable(str(dtype))}' is no dtype; write for example f4, <i8 or u1") from None
    if shape is not None and not re.fullmatch(r"\s*-?\d+\s*(,\s*\d+\s*)*", shape):
        raise typer.BadParameter(f"'{printable(shape)}' is no shape; write for example --shape=-1,128")
    sides = None if shape is None else [int(side) for side in shape.split(",")]
    return {"name": name, "dtype": of, "shape": sides, "offset": offset, "engine": engine.value}


def _about(path: Path, how: dict[str, Any]) -> dict[str, Any]:
    """Of an array, what the file says of it."""
    from gpufs.formats import find_layout
    from gpufs.tensors import element_of

    layout = find_layout(str(path), **{key: value for key, value in how.items() if key != "engine"})
    dtype = layout.dtype.str if layout.dtype.names is None else layout.dtype.descr
    return {
        "name": how["name"],
        "shape": list(layout.shape),
        "dtype": element_of(layout.dtype) or dtype,
        "nbytes": layout.nbytes,
        "offset": layout.begin,
        "pieces": len(layout.places),
    }


def _arrays(path: Path, how: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The one that is meant, or the first of all; and how many the file has."""
    from gpufs.formats import NotOneArrayError

    try:
        return [_about(path, how)], 1
    except NotOneArrayError as several:
        if how["name"] is not None or not several.names:
            raise
        names = several.names
    arrays = []
    for name in names[:_MOST_LISTED]:
        try:
            arrays.append(_about(path, how | {"name": name}))
        except GpufsError as error:
            arrays.append({"name": name, "problem": str(error)})
    return arrays, len(names)


def stat(
    file: Annotated[Path, typer.Argument(help="An array's file.")],
    name: Name = None,
    dtype: Dtype = None,
    shape: Shape = None,
    offset: Offset = 0,
    engine: Annotated[Engine, typer.Option(help="Who would read it.")] = Engine.auto,
    as_json: Json = False,
) -> None:
    """Say what arrays a file holds, and which way their bytes would take.

    Exit status 1 if gpufs reads no such array. Where several are listed, it says of each why not.
    """
    from gpufs.formats import format_of

    how = _how(name, dtype, shape, offset, engine)
    arrays, narrays = _arrays(file, how)
    with file.open("rb") as opened:
        kind = "raw" if dtype is not None else format_of(opened, str(file))
    result: dict[str, Any] = {"path": str(file), "format": kind, "file_nbytes": file.stat().st_size}
    readable = [array for array in arrays if "problem" not in array]
    if readable:
        with gpufs.open(file, **how | {"name": readable[0]["name"]}) as x:
            result |= {"engine": x.engine, "way": x.path_in_use}
    result |= {"narrays": narrays, "arrays": arrays}
    if as_json:
        print(json.dumps(result))
        raise typer.Exit(0 if readable else 1)
    lines = [f"{file}: {kind}, {size_text(result['file_nbytes'])}"]
    if readable:
        lines.append(f"  read by {result['way']}")
    for array in arrays:
        title = "" if array["name"] is None else f"{array['name']}: "
        if "problem" in array:
            lines.append(f"  {title}not readable: {array['problem']}")
        else:
            sides = " x ".join(map(str, array["shape"]))
            where = f"from {array['offset']} on" + (f" in {n} pieces" if (n := array["pieces"]) > 1 else "")
            lines.append(f"  {title}{sides} of {array['dtype']}, {size_text(array['nbytes'])} {where}")
    if narrays > len(arrays):
        lines.append(f"  and {narrays - len(arrays)} more")
    for line in lines:
        out.print(printable(line), markup=False, soft_wrap=True)
    if not readable:
        raise typer.Exit(1)


def _rows_of(file: str) -> tuple[Path, Any]:
    """The path and the rows of FILE, FILE:7, FILE:1,5,7 or FILE:10:20:2."""
    whole = slice(None)
    if Path(file).exists():
        return Path(file), whole
    found = re.fullmatch(r"(.+?):(-?\d+(?:,-?\d+)*|(?:-?\d*):(?:-?\d*)(?::-?\d*)?)", file, re.DOTALL)
    if found is None or not Path(found[1]).exists():
        for colon in re.finditer(":", file):
            if Path(file[: colon.start()]).exists():
                wrong = printable(file[colon.start() :])
                raise GpufsError(f"'{wrong}' names no rows: write for example FILE:7, FILE:1,5,-1 or FILE:10:20:2")
    if found is None:
        return Path(file), whole
    rows = found[2]
    if ":" in rows:
        return Path(found[1]), slice(*(int(part) if part else None for part in rows.split(":")))
    return Path(found[1]), [int(part) for part in rows.split(",")]


def _ids_of(x: gpufs.Array, rows: Any) -> Any:
    """The numbers of the rows, as a sequence that slices. GpufsError for a row that is not there."""
    if isinstance(rows, slice):
        if rows.step == 0:
            raise GpufsError("rows have a step of 0")
        return range(*rows.indices(len(x)))
    wrong = [row for row in rows if not -len(x) <= row < len(x)]
    if wrong:
        raise GpufsError(f"there is no row {wrong[0]}: '{printable(x.path)}' has {len(x)}")
    return rows


def _write(x: gpufs.Array, ids: Any, to: BinaryIO, as_npy: bool, as_json: bool) -> None:
    import numpy as np

    if as_npy:
        shape = (len(ids), *x.shape[1:])
        header = {"descr": np.lib.format.dtype_to_descr(x.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(to, header)
    step = max(1, _CHUNK_NBYTES // max(1, x.nbytes // max(1, len(x))))
    for begin in range(0, len(ids), step):
        some = x[np.array(ids[begin : begin + step], np.int64)]
        if as_json:
            for row in some:
                to.write(_json_of(row.tolist()).encode() + b"\n")
        else:
            to.write(some.tobytes())


def _json_of(row: Any) -> str:
    """What JSON has no numbers for, NaN and infinity, is null; text is text, and a complex number two."""
    try:
        return json.dumps(row, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_plain(row), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):  # NumPy's arrays in records
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if value is None or isinstance(value, (int, str)) else str(value)


def cat(
    file: Annotated[str, typer.Argument(help="FILE, or FILE:ROWS, as in FILE:7, FILE:1,5,-1 or FILE:10:20.")],
    name: Name = None,
    dtype: Dtype = None,
    shape: Shape = None,
    offset: Offset = 0,
    engine: Annotated[Engine, typer.Option(help="Who reads it.")] = Engine.auto,
    as_npy: Annotated[bool, typer.Option("--npy", help="As a .npy file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A row a line; NaN and infinity as null.")] = False,
) -> None:
    """Write an array's rows to standard output: their bytes, or as --npy or --json has it.

    Of elements that NumPy has no dtype for, as bfloat16, --npy has the bits, and --json the values, which takes torch.
    """
    if as_npy and as_json:
        raise typer.BadParameter("--npy and --json exclude each other")
    path, rows = _rows_of(file)
    if not as_json and sys.stdout.isatty():
        raise GpufsError("standard output is a terminal: give --json, or send it to a file")
    try:
        with gpufs.open(path, **_how(name, dtype, shape, offset, engine), as_bits=not as_json) as x:
            ids = _ids_of(x, rows)
            with open(1, "wb", closefd=False) as to:  # sys.stdout's may write a part only, where it has no buffer
                _write(x, ids, to, as_npy, as_json)
    except BrokenPipeError:  # who reads it has had enough
        raise typer.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt as interrupt:
        say_error("interrupted; standard output has a part of the rows at most")
        raise typer.Exit(interrupt_status(interrupt)) from None


def bench(
    file: Annotated[Path, typer.Argument(help="An array's file.")],
    name: Name = None,
    dtype: Dtype = None,
    shape: Shape = None,
    offset: Offset = 0,
    engine: Annotated[Engine, typer.Option(help="Who reads for x\\[idx].")] = Engine.auto,
    rows: Annotated[int, typer.Option(min=0, help="Rows a gather. 0: 64 MiB of them, at most 100,000.")] = 0,
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Of each way, by turns.")] = 7,
    seed: Annotated[int, typer.Option(help="Of the rows that are drawn.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="A picture of the result (needs matplotlib).")] = None,
    as_json: Json = False,
) -> None:
    """Measure x\\[idx] on this machine, beside NumPy's memory map and threads that pread.

    Rows are drawn at random, and every answer is compared with NumPy's. A first run of each way is not counted: it may
    bring the file into memory.
    """
    from gpufs import bench as module

    how = _how(name, dtype, shape, offset, engine)
    if plot is not None:
        module.plotting()  # fails before minutes of measuring
    result = module.measure(str(file), how, rows, runs, seed)
    if plot is not None:
        module.draw(result, plot)
    if as_json:
        print(json.dumps(result))
        return
    head = f"{file}: {result['nrows']} random rows of {result['row_nbytes']} B, {runs} runs by turns; {result['way']}"
    out.print(printable(head), markup=False, soft_wrap=True)
    table = Table("way", "GB/s", "slowest to fastest", "M rows/s", box=None, pad_edge=False)
    for case in result["cases"]:
        rates = case["gb_per_s"]
        spread = f"{rates['least']:.3g} to {rates['most']:.3g}"
        table.add_row(
            escape(case["name"]), f"{rates['median']:.3g}", spread, f"{result['nrows'] / case['median_s'] / 1e6:.3g}"
        )
    out.print(table)


def register(app: typer.Typer) -> None:
    for command in (stat, cat, bench):
        app.command()(reports_errors(command))
