# SPDX-License-Identifier: Apache-2.0
"""gpufs.Mount, the mounts that arrays share, gpufs.stats, and gpufs.read_files."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import runpy
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers, run_python
from gpufs.errors import GpufsError
from gpufs.mounts import to_nbytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "a.npy", numbers(1000, 128))
    np.save(tmp_path / "b.npy", numbers(500, 128))
    np.save(tmp_path / "sub" / "c.npy", numbers(50))
    return tmp_path


def mounts_of(folder: Path) -> list[dict[str, Any]]:
    gc.collect()
    return [m for m in gpufs.stats()["mounts"] if m["root"] == str(folder)]


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_of_a_folder_share_a_mount(engine: str, folder: Path) -> None:
    a = gpufs.open(folder / "a.npy", engine=engine, **SMALL)
    b = gpufs.open(folder / "b.npy", engine=engine, cache="1MiB", page=512)  # of equal options, written otherwise
    other = gpufs.open(folder / "b.npy", engine=engine, page=4096, **SMALL)
    assert a.mount is b.mount and other.mount is not a.mount
    np.testing.assert_array_equal(a[[1, 2]], numbers(1000, 128)[[1, 2]])
    b[[3]]
    found = {m["page_nbytes"]: m for m in mounts_of(folder)}
    assert set(found) == {512, 4096}
    shared = found[512]
    assert (shared["engine"], shared["device"], shared["writable"]) == (engine, 0, False)
    if engine != "cpu":
        assert shared["cache_nbytes"] == 1 << 20
        assert {f["path"] for f in shared["files"]} == {"a.npy", "b.npy"}
        assert shared["counters"]["bytes_read"] == 3 * 512
        assert sum(f["bytes_read"] for f in shared["files"]) == 3 * 512
        assert "pages of 512 bytes in a cache of 1048576" in a.path_in_use
        assert a.stats == shared["counters"]
    listed = [x for x in gpufs.stats()["arrays"] if x["path"] == str(folder / "a.npy")]
    assert listed == [{"path": str(folder / "a.npy"), "shape": (1000, 128), "dtype": "float32", "engine": engine,
                       "mode": "r"}]  # fmt: skip
    a.mount.close()
    assert b.closed and not other.closed
    with gpufs.open(folder / "a.npy", engine=engine, page=512, **SMALL) as x:
        np.testing.assert_array_equal(x[4], numbers(1000, 128)[4])
    other.close()
    del a, b, other, x
    assert not mounts_of(folder)  # the cache is free again


@pytest.mark.parametrize("engine", ENGINES)
def test_mounts(engine: str, folder: Path) -> None:
    with gpufs.Mount(folder, cache="1MiB", writable=True, engine=engine) as mount:
        assert mount.page_nbytes is None and mount.stats == {} and mount.files == []
        a = mount.open("a.npy")
        assert mount.page_nbytes == 512  # as the first rows are
        c = mount.open(folder / "sub" / "c.npy", mode="r+")
        again = pickle.loads(pickle.dumps(a))
        third = pickle.loads(pickle.dumps(c))
        assert again.mount is third.mount and again.mount is not mount and again.mount.writable
        c[:10] = 1
        c.flush()
        np.testing.assert_array_equal(third[:20], np.r_[np.ones(10), numbers(50)[10:20]])
        np.testing.assert_array_equal(a[-1], numbers(1000, 128)[-1])
        for x in (again, third):
            x.close()
        with pytest.raises(GpufsError, match="does not lie below"):
            mount.open(folder.parent / "x.npy")
        with pytest.raises(FileNotFoundError):
            mount.open("none.npy")
        assert engine in repr(mount)
    assert a.closed and c.closed
    with pytest.raises(ValueError, match="no more files"):
        mount.open("a.npy")
    mount.close()
    with gpufs.Mount(folder, cache="1MiB", engine=engine) as mount, pytest.raises(GpufsError, match="writable=True"):
        mount.open("a.npy", mode="r+")
    with pytest.raises(NotADirectoryError):
        gpufs.Mount(folder / "a.npy", engine=engine)
    with pytest.raises(GpufsError, match="no engine"):
        gpufs.Mount(folder, engine="tpu")
    with pytest.raises(GpufsError, match="page"):
        gpufs.Mount(folder, page=1000, engine=engine)
    if engine != "cpu":
        with pytest.raises(GpufsError, match=r"bad_alloc|out of memory"):
            gpufs.open(folder / "a.npy", cache="200TiB", page="2MiB", engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mount_that_ends_says_what_an_array_lost(engine: str, folder: Path) -> None:
    mount = gpufs.Mount(folder, cache="1MiB", writable=True, engine=engine)
    a, b = mount.open("a.npy", mode="r+"), mount.open("b.npy", mode="r+")
    a[5], b[5] = 1, 2
    os.truncate(folder / "a.npy", 10)
    in_place = engine != "cpu" and folder.is_relative_to("/dev/shm")  # else the bytes are written behind
    with pytest.raises(OSError, match="what was written is lost" if in_place else "truncated"):
        mount.close()
    assert a.closed and b.closed
    assert (np.load(folder / "b.npy")[5] == 2).all()


def write_files(folder: Path, sizes: list[int]) -> tuple[list[Path], list[bytes]]:
    contents = [np.random.default_rng(i).bytes(n) for i, n in enumerate(sizes)]
    paths = [folder / (f"{i % 3}/{i}" if i % 2 else f"f{i}") for i in range(len(sizes))]
    for path, content in zip(paths, contents, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return paths, contents


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 9000), max_size=70), data=st.data())
def test_files_are_read_at_once(sizes: list[int], data: st.DataObject, tmp_path: Path) -> None:
    paths, contents = write_files(tmp_path, sizes)
    engine = data.draw(st.sampled_from(ENGINES))
    order = data.draw(st.permutations(range(len(paths))))
    paths, contents = [paths[i] for i in order], [contents[i] for i in order]
    bytes_, offsets = gpufs.read_files(paths, engine=engine, **SMALL)
    assert (bytes_.dtype, offsets.dtype, offsets.shape) == (np.uint8, np.int64, (len(paths) + 1,))
    assert [bytes_[offsets[i] : offsets[i + 1]].tobytes() for i in range(len(paths))] == contents
    width = max(sizes, default=0) + 5
    rows, lengths = gpufs.read_files(map(str, paths), pad_to=width, engine=engine, **SMALL)
    assert rows.shape == (len(paths), width) and lengths.tolist() == [len(c) for c in contents]
    assert [row.tobytes() for row in rows] == [c + bytes(width - len(c)) for c in contents]


@pytest.mark.parametrize("engine", ENGINES)
def test_links_are_followed(engine: str, folder: Path) -> None:
    """As those are of which caches of models are made."""
    (folder / "links").mkdir()
    (folder / "links" / "a.npy").symlink_to(folder / "a.npy")
    (folder / "links" / "sub").symlink_to(folder / "sub")
    linked = [folder / "links" / "a.npy", folder / "links" / "sub" / "c.npy"]
    with gpufs.open(linked[0], engine=engine, **SMALL) as x, gpufs.open(linked[1], engine=engine, **SMALL) as y:
        np.testing.assert_array_equal(x[3], numbers(1000, 128)[3])
        np.testing.assert_array_equal(y[3], numbers(50)[3])
    contents = [path.read_bytes() for path in linked]
    assert gpufs.read_files(linked, engine=engine)[0].tobytes() == b"".join(contents)
    with gpufs.Mount(folder, engine=engine, **SMALL) as mount:
        assert mount.read_files(["links/a.npy"])[0].tobytes() == contents[0]
        np.testing.assert_array_equal(mount.open("links/sub/c.npy")[3], numbers(50)[3])
    with gpufs.Mount(folder / "links", engine=engine, **SMALL) as mount:
        for use in (
            lambda: mount.open("a.npy"),
            lambda: mount.read_files(["a.npy"]),
            lambda: mount.read_files(["sub/c.npy"]),
        ):
            with pytest.raises(GpufsError, match="does not lie below"):
                use()


@pytest.mark.parametrize("engine", ENGINES)
def test_many_files(engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths, contents = write_files(tmp_path, [i % 97 for i in range(2500)])
    bytes_, _ = gpufs.read_files(paths, engine=engine, progress=True, **SMALL)
    assert bytes_.tobytes() == b"".join(contents)
    assert "100%" in capfd.readouterr().err
    twice, _ = gpufs.read_files([paths[96]] * 3, engine=engine, **SMALL)
    assert twice.tobytes() == contents[96] * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_files_that_cannot_be_read(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, _ = write_files(tmp_path, [10] * 200)
    os.mkfifo(tmp_path / "fifo")
    for bad, error, number in (
        (tmp_path / "none", FileNotFoundError, errno.ENOENT),
        (tmp_path, IsADirectoryError, errno.EISDIR),
        (tmp_path / "fifo", OSError, errno.EINVAL),
    ):
        with pytest.raises(error) as raised:
            gpufs.read_files([*paths, bad, tmp_path / "later"], engine=engine, **SMALL)
        assert (raised.value.errno, raised.value.filename) == (number, str(bad))
    with pytest.raises(ValueError, match="has 10 bytes, more than pad_to=9"):
        gpufs.read_files(paths, pad_to=9, engine=engine, **SMALL)
    for pad_to in (0, -1, 1 << 70):
        with pytest.raises(ValueError, match="pad_to"):
            gpufs.read_files(paths, pad_to=pad_to, engine=engine, **SMALL)
    for no_number in ("9KiB", 1.5):
        with pytest.raises(TypeError, match="it is a number of bytes"):
            gpufs.read_files(paths, pad_to=no_number, engine=engine, **SMALL)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="several"):
        gpufs.read_files(str(paths[0]), engine=engine)
    sizes_of = gpufs.files._rows.sizes  # type: ignore[attr-defined]

    def sizes_before_a_change(names: list[bytes]) -> list[int]:
        sizes: list[int] = sizes_of(names)
        paths[120].write_bytes(b"changed")
        paths[130].unlink()
        return sizes

    monkeypatch.setattr(gpufs.files._rows, "sizes", sizes_before_a_change)  # type: ignore[attr-defined]
    with pytest.raises(OSError) as raised:
        gpufs.read_files(paths, engine=engine, **SMALL)
    assert (raised.value.errno, raised.value.filename) == (errno.ESTALE, str(paths[120]))


_FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # a CUDA context has some hundred of its own
import gpufs
print(len(gpufs.read_files([f"{sys.argv[1]}/f{i}" for i in range(0, 2000, 2)], engine=sys.argv[2], cache=1 << 20)[0]))
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_more_files_than_descriptors(engine: str, tmp_path: Path) -> None:
    write_files(tmp_path, [3] * 2000)
    done = run_python(_FEW_DESCRIPTORS, str(tmp_path), engine)
    assert done.stdout == "3000\n", done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_the_example_counts_words(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = runpy.run_path(str(Path(__file__).parents[2] / "examples/python/read_files.py"))
    assert program["main"](engine, "300") == 0 and ": right" in capsys.readouterr().out


def test_numbers_of_bytes() -> None:
    for text, n in (
        ("4096", 4096),
        ("8GiB", 8 << 30),
        ("1.5 KiB", 1536),
        ("512 MB", 512_000_000),
        ("2k", 2000),
        (7, 7),
    ):
        assert to_nbytes(text) == n
    for text in ("", "GiB", "-1", "1 XB", "1e9", -3, 1 << 62, 10**5000, "9" * 5000, "8388608TiB"):
        with pytest.raises(GpufsError):
            to_nbytes(text)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_that_is_not_there_is_named(engine: str, folder: Path) -> None:
    for use in (
        lambda: gpufs.Mount(folder / "none", engine=engine).open("a.npy")[:],
        lambda: gpufs.read_files([folder / "none" / "a"], engine=engine, **SMALL),
    ):
        with pytest.raises(FileNotFoundError) as missing:
            use()
        assert missing.value.errno == errno.ENOENT and str(folder / "none") in str(missing.value.filename)
    with pytest.raises(NotADirectoryError) as no_folder:
        gpufs.Mount(folder / "a.npy", engine=engine)
    assert no_folder.value.filename == str(folder / "a.npy")


def test_a_header_that_cannot_be_read_names_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("gpufs.formats.format_of", fails)
    with pytest.raises(OSError) as failed:
        gpufs.open(folder / "a.npy", engine="cpu")
    assert failed.value.errno == errno.EIO and failed.value.filename == str(folder / "a.npy")
