# SPDX-License-Identifier: Apache-2.0
"""gpufs.open() of Arrow and Parquet files, as pyarrow writes them; pyarrow says what they hold."""

from __future__ import annotations

import datetime
import errno
import itertools
import json
import pickle
import time
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, indices
from conftest import Run
from gpufs import _rows
from gpufs.errors import GpufsError
from gpufs.formats import find_layout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

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


SMALL_PAGES = {"max_rows_per_page": 100, "write_batch_size": 10}


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
    late = pa.table({"a": pa.array([1.5] * 299 + [None]), "b": np.arange(300)})  # a null in the last piece
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    other = pa.table(others())
    flat = pa.table({name: others()[name] for name in ("text", "bits", "struct", "list", "decimal", "nulls")})
    for name, (table, how) in {
        "lz4.feather": (ints, {"compression": "lz4"}), "zstd.feather": (ints, {"compression": "zstd"}),
        "late.feather": (late, {"compression": "uncompressed", "chunksize": 100}),
        "twice.feather": (twice, {"compression": "uncompressed"}),
    }.items():  # fmt: skip
        feather.write_feather(table, tmp_path / name, **how)
    (tmp_path / "one.feather").write_bytes(b"FEA1" + bytes(40))
    with pa.ipc.new_file(tmp_path / "other.arrow", other.schema) as file:
        file.write_table(other)
    for name, (table, how) in {
        "snappy.parquet": (ints, {"compression": "snappy"}), "words.parquet": (ints, {"use_dictionary": True}),
        "late.parquet": (late, {"row_group_size": 100}), "pages.parquet": (late, SMALL_PAGES),
        "mixed.parquet": (ints, {"use_dictionary": True, "dictionary_pagesize_limit": 64} | SMALL_PAGES),
        "delta.parquet": (ints, {"column_encoding": "DELTA_BINARY_PACKED"}), "twice.parquet": (twice, {}),
        "flat.parquet": (flat, {}), "flat2.parquet": (flat, {"data_page_version": "2.0"}),
        "int96.parquet": (pa.table({"a": np.arange(9).astype("M8[ns]")}), {"use_deprecated_int96_timestamps": True}),
    }.items():  # fmt: skip
        write_parquet(table, tmp_path / name, **how)
    wrong = [
        ("lz4.feather", "a", "compressed: write it by"), ("zstd.feather", "b", "compressed: write it by"),
        ("late.feather", "a", "fill_null"), ("one.feather", "a", "Feather version 1"),
        ("twice.feather", "a", "2 columns named"), ("lz4.feather", None, "several arrays"),
        ("lz4.feather", "c", "no array 'c'"), ("other.arrow", "dictionary", "by a dictionary"),
        ("other.arrow", "bits", "int8"), ("other.arrow", "nulls", "fill_null"),
        ("other.arrow", "null lists", "fill_null"), ("other.arrow", "lists of nulls", "fill_null"),
        *[("other.arrow", name, "fixed width") for name in ("text", "text view", "nothing", "struct", "list", "map",
          "sparse", "dense", "runs", "list view", "decimal", "large text")],
        ("snappy.parquet", "a", r"compressed \(Snappy\): write it by"), ("words.parquet", "a", "by a dictionary"),
        ("late.parquet", "a", "fill_null"), ("pages.parquet", "a", "fill_null"),
        ("mixed.parquet", "b", "by a dictionary"),
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
    for name in ("late.feather", "flat.parquet"):
        (tmp_path / "cut").write_bytes((tmp_path / name).read_bytes()[:-1])
        with pytest.raises(GpufsError, match="written to its end"):
            gpufs.open(tmp_path / "cut", name="a")


def test_the_remedies_that_are_named_work(tmp_path: Path) -> None:
    table = pa.table({"a": pa.chunked_array([[1, 2], [3]]), "b": pa.chunked_array([["x"], ["y", "z"]])})
    path = tmp_path / "file"
    for write, what in ((feather.write_feather, {}), (parquet.write_table, {})):
        write(table, path, **what)
        with pytest.raises(GpufsError) as raised:
            gpufs.open(path, name="a")
        call = str(raised.value).partition("write it by ")[2].partition("; ")[0]
        eval(call, {"pyarrow": pa, "table": table, "path": path})
        np.testing.assert_array_equal(gpufs.open(path, name="a")[:], [1, 2, 3])


def npieces(x: gpufs.Array) -> int:
    return len(x._layout.places)


@st.composite
def tables(draw: st.DrawFn, folder: Path) -> tuple[Path, Any]:
    """A file with the column "a" in pieces as they come, beside others, and the rows that it must give."""
    sizes = draw(st.lists(st.integers(0, 18), max_size=7))
    n, kind = sum(sizes), draw(st.sampled_from(["a.arrow", "a.parquet"]))
    numbers = np.arange(n * 6) * 7919 % 65521
    dtype = draw(st.sampled_from(["i4", "u8", "f4", "f8", "M8[us]", "V5", "lists"]))
    if dtype == "V5":
        rows: Any = np.frombuffer(numbers.astype("u1").tobytes()[: 5 * n], "V5")
        column = pa.array([bytes(row) for row in rows], pa.binary(5))
    elif dtype == "lists" and kind == "a.arrow":
        rows = numbers.astype("f4").reshape(n, 2, 3)
        inner = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 3)
        column = pa.FixedSizeListArray.from_arrays(inner, 2)
    else:
        rows = numbers[:n].astype("i8" if dtype == "lists" else dtype)
        column = pa.array(rows)
    words = pa.array([None if i % 3 == 0 else "w" * (i % 11) for i in range(n)], pa.string())
    schema = pa.schema([("words", words.type), ("kinds", words.dictionary_encode().type)])
    schema = schema.append(pa.field("a", column.type, nullable=draw(st.booleans())))
    path = folder / kind
    if kind == "a.arrow":
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, use_legacy_format=draw(st.booleans()))
        with pa.ipc.new_file(path, schema, options=options) as file:
            for k, (begin, size) in enumerate(zip(itertools.accumulate(sizes, initial=0), sizes, strict=False)):
                dictionary = pa.array([str(i) for i in range(k + 1)])  # grows
                kinds = pa.DictionaryArray.from_arrays(pa.array(np.full(size, k, "i4")), dictionary)
                parts = [words.slice(begin, size), kinds, column.slice(begin, size)]
                file.write_batch(pa.RecordBatch.from_arrays(parts, schema=schema))
    else:
        table = pa.table([words, words.dictionary_encode(), column], schema=schema)
        draws = {"row_group_size": st.integers(1, 60), "max_rows_per_page": st.integers(1, 30)}
        draws |= {"write_batch_size": st.integers(1, 20), "data_page_version": st.sampled_from(["1.0", "2.0"])}
        draws |= {name: st.booleans() for name in ("write_page_checksum", "write_page_index", "write_statistics")}
        write_parquet(table, path, **{name: draw(how) for name, how in draws.items()})
    return path, rows


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_columns_in_several_pieces_are_read_as_numpy_has_them(engine: str, data: st.DataObject, tmp_path: Path) -> None:
    path, rows = data.draw(tables(tmp_path))
    many = st.lists(st.integers(-len(rows), len(rows) - 1), min_size=17, max_size=60)  # such go as a batch
    keys = indices(len(rows)) if len(rows) == 0 else st.one_of(indices(len(rows)), many.map(np.array))
    with gpufs.open(path, name="a", engine=engine, cache=64 << 10, page=512) as x:
        assert (x.shape, x.dtype) == (rows.shape, rows.dtype)
        assert npieces(x) == 1 or f"{npieces(x)} pieces" in x.path_in_use
        for _ in range(3):
            key = data.draw(keys)
            assert x[key].tobytes() == rows[key].tobytes()
            out = np.empty_like(rows[key])
            if out.ndim == rows.ndim:
                x.prefetch(key)
                assert x.take(key, out=out).tobytes() == rows[key].tobytes()
        assert x[:].tobytes() == rows.tobytes()
        again = pickle.loads(pickle.dumps(x))
        assert again[:].tobytes() == rows.tobytes()
        again.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_columns_in_several_pieces_are_written(data: st.DataObject, tmp_path: Path) -> None:
    path, rows = data.draw(tables(tmp_path))
    engine, before = data.draw(st.sampled_from(ENGINES)), path.read_bytes()
    how: dict[str, Any] = {"name": "a", "engine": engine, "cache": 64 << 10, "page": 512}
    try:
        x = gpufs.open(path, mode="r+", **how)
    except GpufsError as error:  # pyarrow's reader would be misled
        assert path.suffix == ".parquet" and "writing would leave wrong" in str(error)
        return
    rows = rows.copy()
    with x:
        for _ in range(3):
            key = data.draw(indices(len(rows)))
            values = np.array(rows[key])[..., ::-1] if rows[key].ndim else rows[-1]
            rows[key] = values
            x[key] = values
            assert x[:].tobytes() == rows.tobytes()
    if path.suffix == ".arrow":
        table = feather.read_table(path, memory_map=False)
    else:
        table = parquet.read_table(path, page_checksum_verification=True)
    column = table["a"].combine_chunks()
    while pa.types.is_fixed_size_list(column.type):
        column = column.flatten()
    texts = b"".join(column.to_pylist()) if pa.types.is_fixed_size_binary(column.type) else column.to_numpy().tobytes()
    assert texts == rows.tobytes()
    with gpufs.open(path, **how) as x:  # nothing else has changed
        now, mine = bytearray(path.read_bytes()), x._layout.row_nbytes
        for at in x._layout.offsets(np.arange(len(rows))):
            now[at : at + mine] = before[at : at + mine]
    assert bytes(now) == before


def test_what_writing_would_leave_wrong_is_refused(tmp_path: Path) -> None:
    table, path = pa.table({"a": np.arange(300), "b": np.arange(300)}), tmp_path / "a.parquet"
    plain = {"write_statistics": False} | SMALL_PAGES
    for how, what in (
        ({"write_statistics": ["a"]}, "statistics of the column"),
        ({"write_page_checksum": True}, "checksums"),
        ({"sorting_columns": [parquet.SortingColumn(0)]}, "sorted by the column"),
    ):
        write_parquet(table, path, **(plain | how))
        with pytest.raises(GpufsError, match=f"{what}.*which writing would leave wrong"):
            gpufs.open(path, name="a", mode="r+")
        np.testing.assert_array_equal(gpufs.open(path, name="a")[:], np.arange(300))
        if what != "checksums":
            gpufs.open(path, name="b", mode="r+").close()


def rows_of(path: Path, layout: Any, writable: bool) -> tuple[Any, Any]:
    mount = _rows.Mount("simt", str(path.parent), 0, 64 << 10, 512, writable, 0)
    places, shape = layout.places, (layout.row_nbytes, layout.shape[0])
    return mount, _rows.Rows(mount, path.name, places.ctypes.data, len(places), *shape, writable)


@pytest.mark.skipif("simt" not in ENGINES, reason="no CPU machine")
def test_rows_in_several_pieces_by_streams(tmp_path: Path) -> None:
    wide = np.arange(300 * 5, dtype="f4").reshape(300, 5)
    table = pa.table({"a": pa.FixedSizeListArray.from_arrays(pa.array(wide.reshape(-1)), 5)})
    path = tmp_path / "a.feather"
    feather.write_feather(table, path, compression="uncompressed", chunksize=7)
    layout = find_layout(str(path), name="a", dtype=None, shape=None, offset=0)
    _mount, rows = rows_of(path, layout, True)
    stream = _rows.TestStream()

    def ended() -> None:
        while not rows.ended():
            time.sleep(1e-4)

    def prefetch(ids: Any) -> None:
        rows.prefetch_on(stream.handle(), ids.ctypes.data, len(ids))

    def read(ids: Any) -> Any:
        out = np.full((len(ids), 5), 9, "f4")
        rows.read_on(stream.handle(), ids.ctypes.data, len(ids), out.ctypes.data)
        ended()
        return out

    rng = np.random.default_rng(3)
    for n in (1, 16, 17, 400, 3):
        ids = rng.integers(-300, 300, n)
        prefetch(ids)
        np.testing.assert_array_equal(read(ids), wide[ids])
    rows.check()
    for n in (5, 100):  # row by row, and as a batch
        ids = rng.integers(0, 300, n)
        ids[n // 2], ids[-1] = 300, -301
        wanted = wide[np.clip(ids, -300, 299)]
        wanted[[n // 2, -1]] = 0
        np.testing.assert_array_equal(read(ids), wanted)
        with pytest.raises(IndexError, match=f"index {n // 2} of those given"):
            rows.check()
        rows.check()
        # Of rows that there are not and that are prefetched, whatever comes next tells.
        prefetch(ids)
        ended()
        with pytest.raises(IndexError, match=f"index {n // 2} of those given"):
            read(ids)
    ids, values = np.arange(5, 200, 13), np.full((15, 5), -1, "f4")
    rows.write_on(stream.handle(), ids.ctypes.data, len(ids), values.ctypes.data)
    wide[ids] = values
    ended()
    np.testing.assert_array_equal(read(np.arange(300)), wide)
    rows.close()
    np.testing.assert_array_equal(feather.read_table(path)["a"].combine_chunks().flatten(), wide.reshape(-1))


@pytest.mark.parametrize("engine", ENGINES)
def test_pieces_in_any_order_and_pieces_that_are_none(engine: str, tmp_path: Path) -> None:
    text = bytes(range(256)) * 40
    (tmp_path / "raw").write_bytes(text)
    mount = _rows.Mount(engine, str(tmp_path), 0, 64 << 10, 512, False, 0)

    def opened(places: list[tuple[int, int]], row_nbytes: int, nrows: int) -> Any:
        pieces = np.array(places, np.int64)
        return _rows.Rows(mount, "raw", pieces.ctypes.data, len(places), row_nbytes, nrows, False)

    # Sizes that differ by much: one large, many small ones behind it, before it in the file.
    places = [(0, 5000), *((500 + i, 3000 - 11 * i) for i in range(90))]
    offsets = [5000 + 10 * i for i in range(500)] + [3000 - 11 * i for i in range(90)]
    rows = opened(places, 10, 590)
    ids, out = np.random.default_rng(1).integers(0, 590, 300), np.empty((300, 10), "u1")
    rows.read(ids.ctypes.data, 0, 300, out.ctypes.data)
    assert out.tobytes() == b"".join(text[offsets[i] : offsets[i] + 10] for i in ids)
    out = np.empty((200, 10), "u1")
    rows.read(0, 390, 200, out.ctypes.data)
    assert out.tobytes() == b"".join(text[at : at + 10] for at in offsets[390:])
    rows.close()
    for wrong in ([], [(1, 0)], [(0, 0), (0, 10)], [(0, 0), (5, 10), (4, 20)], [(0, 0), (10, 5)], [(0, -1), (5, 0)]):
        with pytest.raises(ValueError, match="pieces of rows"):
            opened(wrong, 10, 10)
    with pytest.raises(OSError, match="ends before") as raised:
        opened([(0, 10_235), (1, 0)], 10, 10)
    assert raised.value.errno == errno.ESTALE
    opened([(0, 10), (5, 0)], 0, 10).close()  # rows of no bytes lie anywhere


def test_a_page_header_that_is_long(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 255, (40, 900)).astype("u1")
    table = pa.table({"a": pa.array([bytes(row) for row in rows], pa.binary(900))})
    write_parquet(table, tmp_path / "a.parquet", max_rows_per_page=10, write_batch_size=10, write_page_checksum=True)
    with gpufs.open(tmp_path / "a.parquet") as x:
        assert npieces(x) == 4
        assert x[::-1].tobytes() == rows[::-1].tobytes()


def test_a_file_that_is_cut_keeps_the_rows_before(tmp_path: Path) -> None:
    path = tmp_path / "a.feather"
    feather.write_feather(pa.table({"a": np.arange(3000)}), path, compression="uncompressed", chunksize=1000)
    with gpufs.open(path, engine="cpu") as x:
        with path.open("rb+") as file:
            file.truncate(int(x._layout.places[1, 1]) + 8 * 500)
        np.testing.assert_array_equal(x[[0, 1499]], [0, 1499])
        with pytest.raises(OSError, match="ends before") as raised:
            x[[0, 1500]]
        assert raised.value.errno == errno.ESTALE


def test_a_pickled_column_is_the_one_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.feather"
    feather.write_feather(pa.table({"a": np.arange(300)}), path, compression="uncompressed", chunksize=100)
    with gpufs.open(path) as x:
        text = pickle.dumps(x)
    assert pickle.loads(text)[150] == 150
    feather.write_feather(pa.table({"a": np.arange(300)}), path, compression="uncompressed", chunksize=50)
    with pytest.raises(GpufsError, match="another array"):
        pickle.loads(text)[150]


def test_shards_of_columns_in_several_pieces(tmp_path: Path) -> None:
    path, values = tmp_path / "a.feather", np.arange(307)
    feather.write_feather(pa.table({"a": values}), path, compression="uncompressed", chunksize=100)
    with gpufs.open(path, engine="cpu") as x:
        for n in (1, 2, 3, 4, 50, 400):  # pieces that are cut, whole ones, and shards of no rows
            shards = [pickle.loads(pickle.dumps(x.shard(i, n))) for i in range(n)]
            assert np.array_equal(np.concatenate([shard[:] for shard in shards]), values)
            for shard in shards:
                shard.close()
        half = x.shard(1, 2)
        assert half.shape == (154,) and half[[0, 46, 47, -1]].tolist() == [153, 199, 200, 306]


def test_commands_for_columns_in_several_pieces(tmp_path: Path, run: Run) -> None:
    table = pa.table({"a": np.arange(300, dtype="i4"), "b": np.arange(300)})
    feather.write_feather(table, tmp_path / "a.feather", compression="uncompressed", chunksize=100)
    said = run("stat", tmp_path / "a.feather").stdout
    assert "a: 300 of <i4" in said and "on in 3 pieces" in said and "rows in 3 pieces of the file" in said
    arrays = json.loads(run("stat", tmp_path / "a.feather", "--json").stdout)["arrays"]
    assert [array["pieces"] for array in arrays] == [3, 3]
    rows = run("cat", f"{tmp_path / 'a.feather'}:99,100,-1", "--name", "b", "--json")
    assert rows.stdout.split() == ["99", "100", "299"]
    result = json.loads(run("bench", tmp_path / "a.feather", "--name", "a", "--runs", "1", "--json").stdout)
    assert [case["name"] for case in result["cases"]] == [f"x[idx] by {result['engine']}", "pread by 16 threads"]


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_hold_what_they_say(data: st.DataObject, tmp_path: Path) -> None:
    names = {"a": pa.array(["x", "yy"] * 4), "b": pa.array(np.arange(8)), "c": others()["map"].slice(0, 8)}
    names["d"] = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(16, dtype="f4")), 2)
    kind = data.draw(
        st.sampled_from(["x.feather", "x.parquet", "x2.parquet", "xs.feather", "xs.parquet", "xs2.parquet"])
    )
    path = tmp_path / f"whole.{kind}"
    if not path.exists():
        table = pa.table(names)
        if kind.endswith(".feather"):
            feather.write_feather(table, path, compression="uncompressed", chunksize=3 if "s" in kind else 8)
        else:
            small = {"row_group_size": 6, "max_rows_per_page": 2, "write_batch_size": 2} if "s" in kind else {}
            write_parquet(table, path, data_page_version="2.0" if "2" in kind else "1.0", store_schema=False, **small)
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
        ends = [*x._layout.places[1:, 0], len(x)]
        for (first, begin), end in zip(x._layout.places, ends, strict=True):
            assert x[first:end].tobytes() == bytes(text[begin : begin + (end - first) * x._layout.row_nbytes])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_parquet_integers_that_the_file_has_wider_are_not_written(kind: str, tmp_path: Path) -> None:
    """A value that does not fit would be another one to other readers."""
    path, array = tmp_path / "a.parquet", np.arange(100, dtype=kind)
    write_parquet(pa.table({"a": array, "b": array.astype(np.int32)}), path, write_statistics=False)
    np.testing.assert_array_equal(gpufs.open(path, name="a", engine="cpu")[:], array)
    with pytest.raises(GpufsError, match="keeps integers of 8 or 16 bits in 32"):
        gpufs.open(path, name="a", mode="r+", engine="cpu")
    gpufs.open(path, name="b", mode="r+", engine="cpu").close()
