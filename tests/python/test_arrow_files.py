# SPDX-License-Identifier: Apache-2.0
"""gpufs.open() of Arrow and Parquet files, as pyarrow writes them; pyarrow says what they hold."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from gpufs import _rows
from gpufs.errors import GpufsError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

ENGINES = [e for e in ("cpu", "simt", "gpu") if not _rows.engine_missing(e)]
N = 60


def columns() -> dict[str, tuple[Any, Any]]:
    """Columns that open, each with the rows that it must give."""
    rng = np.random.default_rng(5)
    made: dict[str, tuple[Any, Any]] = {}
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "M8[s]", "M8[us]", "m8[ns]"):
        rows = rng.integers(0, 100, N).astype(dtype)
        made[dtype] = (pa.array(rows), rows)
    halves = rng.random(N).astype("f2")
    made["f2"] = (pa.array(halves), halves)
    wide = rng.random((N, 6)).astype("f4")
    made["lists"] = (pa.FixedSizeListArray.from_arrays(pa.array(wide.reshape(-1)), 6), wide)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(wide.reshape(-1)), 3)
    made["lists of lists"] = (pa.FixedSizeListArray.from_arrays(inner, 2), wide.reshape(N, 2, 3))
    texts = np.frombuffer(rng.bytes(5 * N), "V5")
    made["binary"] = (pa.array([bytes(t) for t in texts], pa.binary(5)), texts)
    days = rng.integers(0, 20_000, N).astype("i4")
    made["days"] = (pa.array(days).cast(pa.date32()), days)
    midnights = days.astype("i8") * 86_400_000
    made["dates"] = (pa.array(midnights).cast(pa.date64()), midnights.view("M8[ms]"))
    made["times"] = (pa.array(days).cast(pa.time32("ms")), days)
    return made


def others() -> dict[str, Any]:
    """Columns that do not open, each with another number of buffers."""
    words = ["a", "bb", None] * (N // 3)
    ints = pa.array(np.arange(N))
    kinds = pa.array(np.zeros(N), pa.int8())
    return {
        "text": pa.array(words),
        "large text": pa.array(words, pa.large_string()),
        "text view": pa.array(["longer than twelve bytes", "b"] * (N // 2), pa.string_view()),
        "dictionary": pa.array(words).dictionary_encode(),
        "bits": pa.array([True, False] * (N // 2)),
        "nothing": pa.nulls(N),
        "struct": pa.StructArray.from_arrays([pa.array(words), ints], ["a", "b"]),
        "list": pa.array([[1, 2], [], [3]] * (N // 3)),
        "map": pa.array([[("k", 1)], [], []] * (N // 3), pa.map_(pa.string(), pa.int64())),
        "sparse": pa.UnionArray.from_sparse(kinds, [ints]),
        "dense": pa.UnionArray.from_dense(kinds, pa.array(np.arange(N), pa.int32()), [ints]),
        "runs": pa.RunEndEncodedArray.from_arrays([N], pa.array(["x"])),
        "list view": pa.array([[1, 2], [], [3]] * (N // 3), pa.list_view(pa.int64())),
        "decimal": pa.array([datetime.date(2000, 1, 1).toordinal()] * N).cast(pa.decimal128(20)),
        "nulls": pa.array([1.5, None] * (N // 2)),
        "null lists": pa.array([[1, 2], None] * (N // 2), pa.list_(pa.int64(), 2)),
        "lists of nulls": pa.array([[1, None]] * N, pa.list_(pa.int64(), 2)),
    }


def write_parquet(table: Any, path: Path, **how: Any) -> None:
    given: dict[str, Any] = {"compression": "none", "use_dictionary": False, "row_group_size": len(table)}
    parquet.write_table(table, path, **(given | {"data_page_size": 2**30, "max_rows_per_page": len(table)} | how))


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_of_arrow_files(engine: str, tmp_path: Path) -> None:
    made = columns()
    mixed = [pair for pairs in zip(others().items(), made.items(), strict=False) for pair in pairs]
    table = pa.table({name: column[0] if isinstance(column, tuple) else column for name, column in mixed})
    left = pa.table({name: column for name, (column, _) in made.items()})
    feather.write_feather(left, tmp_path / "a.feather", compression="uncompressed")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table.slice(0, 0))
        file.write_table(table)
    with pa.ipc.new_file(
        tmp_path / "old.arrow", left.schema, options=pa.ipc.IpcWriteOptions(use_legacy_format=True)
    ) as f:
        f.write_table(left)
    for path in sorted(tmp_path.iterdir()):
        nopen = 0
        for name, (_, rows) in made.items():
            if path.name != "a.arrow" or name in table.column_names:
                with gpufs.open(path, name=name, engine=engine, cache=1 << 20) as x:
                    assert (x.shape, x.dtype) == (rows.shape, rows.dtype), name
                    assert x[[5, -1, 5]].tobytes() == rows[[5, -1, 5]].tobytes(), name
                nopen += 1
        assert nopen >= len(others())


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("nullable", [True, False])
def test_columns_of_parquet_files(version: str, nullable: bool, tmp_path: Path) -> None:
    made = {name: pair for name, pair in columns().items() if "lists" not in name}
    nested = {name: others()[name] for name in ("text", "struct", "list", "map")}
    mixed = {name: column for name, (column, _) in made.items()}
    mixed = {"text": nested["text"]} | dict(list(mixed.items())[:3]) | nested | mixed
    fields = [pa.field(name, column.type, nullable or column.null_count > 0) for name, column in mixed.items()]
    table = pa.table(list(mixed.values()), schema=pa.schema(fields))
    for more in ({}, {"write_page_checksum": True, "write_page_index": True}, {"write_statistics": False}):
        write_parquet(table, tmp_path / "a.parquet", data_page_version=version, **more)
        for name, (_, rows) in made.items():
            if name in ("i1", "u1", "i2", "u2"):  # which Parquet has as 4 bytes
                rows = rows.astype("i4")
            elif name == "M8[s]":
                rows = rows.astype("M8[ms]")
            elif name in ("m8[ns]", "dates"):  # Parquet has no durations, and dates are days
                rows = rows.view("i8") if name == "m8[ns]" else made["days"][1]
            with gpufs.open(tmp_path / "a.parquet", name=name) as x:
                assert (x.shape, x.dtype) == (rows.shape, rows.dtype), name
                assert x[[5, -1, 5]].tobytes() == rows[[5, -1, 5]].tobytes(), name


def test_a_table_without_rows_and_one_of_one_column(tmp_path: Path) -> None:
    for n in (0, 7):
        table = pa.table({"only": np.arange(n)})
        feather.write_feather(table, tmp_path / "a", compression="uncompressed")
        write_parquet(table, tmp_path / "b", row_group_size=max(n, 1), max_rows_per_page=max(n, 1))
        for name in ("a", "b"):
            np.testing.assert_array_equal(gpufs.open(tmp_path / name)[:], np.arange(n))


def test_columns_that_are_no_arrays_are_refused_by_name(tmp_path: Path) -> None:
    ints = pa.table({"a": np.arange(300) % 7, "b": np.arange(300)})
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    other = pa.table(others())
    flat = pa.table({name: others()[name] for name in ("text", "bits", "struct", "list", "decimal", "nulls")})
    for name, (table, how) in {
        "lz4.feather": (ints, {"compression": "lz4"}), "zstd.feather": (ints, {"compression": "zstd"}),
        "batches.feather": (ints, {"compression": "uncompressed", "chunksize": 100}),
        "twice.feather": (twice, {"compression": "uncompressed"}),
    }.items():  # fmt: skip
        feather.write_feather(table, tmp_path / name, **how)
    (tmp_path / "one.feather").write_bytes(b"FEA1" + bytes(40))
    with pa.ipc.new_file(tmp_path / "other.arrow", other.schema) as file:
        file.write_table(other)
    for name, (table, how) in {
        "snappy.parquet": (ints, {"compression": "snappy"}), "words.parquet": (ints, {"use_dictionary": True}),
        "groups.parquet": (ints, {"row_group_size": 100}), "pages.parquet": (ints, {"max_rows_per_page": 100}),
        "delta.parquet": (ints, {"column_encoding": "DELTA_BINARY_PACKED"}), "twice.parquet": (twice, {}),
        "flat.parquet": (flat, {}), "flat2.parquet": (flat, {"data_page_version": "2.0"}),
        "int96.parquet": (pa.table({"a": np.arange(9).astype("M8[ns]")}), {"use_deprecated_int96_timestamps": True}),
    }.items():  # fmt: skip
        write_parquet(table, tmp_path / name, **how)
    wrong = [
        ("lz4.feather", "a", "compressed: write it by"), ("zstd.feather", "b", "compressed: write it by"),
        ("batches.feather", "a", "several record batches"), ("one.feather", "a", "Feather version 1"),
        ("twice.feather", "a", "2 columns named"), ("lz4.feather", None, "several arrays"),
        ("lz4.feather", "c", "no array 'c'"), ("other.arrow", "dictionary", "by a dictionary"),
        ("other.arrow", "bits", "int8"), ("other.arrow", "nulls", "fill_null"),
        ("other.arrow", "null lists", "fill_null"), ("other.arrow", "lists of nulls", "fill_null"),
        *[("other.arrow", name, "fixed width") for name in ("text", "text view", "nothing", "struct", "list", "map",
          "sparse", "dense", "runs", "list view", "decimal", "large text")],
        ("snappy.parquet", "a", r"compressed \(Snappy\): write it by"), ("words.parquet", "a", "by a dictionary"),
        ("groups.parquet", "b", "3 row groups"), ("pages.parquet", "b", "several pages"),
        ("delta.parquet", "b", "otherwise than PLAIN"), ("twice.parquet", "a", "2 columns named"),
        ("flat.parquet", "text", "BYTE_ARRAY"), ("flat.parquet", "bits", "booleans"),
        ("flat.parquet", "list", "nested"), ("flat.parquet", "struct", "nested"),
        ("flat.parquet", "decimal", "float64"),
        ("flat.parquet", "nulls", "fill_null"), ("flat2.parquet", "nulls", "fill_null"),
        ("int96.parquet", "a", "INT96"), ("flat.parquet", "x", "no array 'x'"),
    ]  # fmt: skip
    for name, column, text in wrong:
        with pytest.raises(GpufsError, match=text) as raised:
            gpufs.open(tmp_path / name, name=column)
        assert name in str(raised.value)
    for name in ("batches.feather", "flat.parquet"):
        (tmp_path / "cut").write_bytes((tmp_path / name).read_bytes()[:-1])
        with pytest.raises(GpufsError, match="written to its end"):
            gpufs.open(tmp_path / "cut", name="a")


def test_the_remedies_that_are_named_work(tmp_path: Path) -> None:
    table = pa.table({"a": pa.chunked_array([[1, 2], [3]]), "b": pa.chunked_array([["x"], ["y", "z"]])})
    path = tmp_path / "file"
    for write, what in ((feather.write_feather, {"chunksize": 1}), (parquet.write_table, {})):
        write(table, path, **what)
        with pytest.raises(GpufsError) as raised:
            gpufs.open(path, name="a")
        call = str(raised.value).partition("write it by ")[2].partition("; ")[0]
        eval(call, {"pyarrow": pa, "table": table, "path": path})
        np.testing.assert_array_equal(gpufs.open(path, name="a")[:], [1, 2, 3])


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_hold_what_they_say(data: st.DataObject, tmp_path: Path) -> None:
    names = {"a": pa.array(["x", "yy"] * 4), "b": pa.array(np.arange(8)), "c": others()["map"].slice(0, 8)}
    names["d"] = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(16, dtype="f4")), 2)
    kind = data.draw(st.sampled_from(["x.feather", "x.parquet", "x2.parquet"]))
    path = tmp_path / f"whole.{kind}"
    if not path.exists():
        table = pa.table(names)
        if kind == "x.feather":
            feather.write_feather(table, path, compression="uncompressed")
        else:
            write_parquet(table, path, data_page_version="2.0" if "2" in kind else "1.0", store_schema=False)
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, len(text) - 1), st.integers(len(text) * 3 // 4, len(text) - 1)))
        text[place] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])))
    (tmp_path / kind).write_bytes(text[: data.draw(st.one_of(st.just(len(text)), st.integers(0, len(text))))])
    try:
        x = gpufs.open(tmp_path / kind, name=data.draw(st.sampled_from("bd")), engine="cpu")
    except GpufsError as error:
        assert kind in str(error)
    else:
        assert x[:].tobytes() in bytes(text)
