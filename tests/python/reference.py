# SPDX-License-Identifier: Apache-2.0
"""The collage in NumPy, written from docs/reference/collage-library-format.md alone: engines are compared with it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEADER = struct.Struct("<8sIIQIIQ" + "I" * 9)
SECTION = struct.Struct("<IIQQII")
FIELDS = (
    *("magic", "version", "nsections", "file_nbytes", "nimages", "nsources", "seed", "histogram_stride", "key_nbits"),
    *("cell_nbits", "ntables", "bucket_limit", "shortlist_limit", "shortlist_goal", "mean_shortlist", "flags"),
)
THUMBNAILS, HISTOGRAMS, PROJECTIONS, REFERENCE, TABLE, ORIGINS, SOURCES = range(1, 8)
MULTIPLIER = 0x9E3779B1


@dataclass
class Section:
    kind: int
    index: int
    offset: int
    nbytes: int
    crc: int


def align(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096


def popcount32(values: npt.NDArray[np.uint64]) -> Integers:
    octets = values.astype("<u4").view(np.uint8).reshape(*values.shape, 4)
    ones: Integers = np.unpackbits(octets, axis=-1).sum(axis=-1).astype(np.int64)
    return ones


def projections(seed: int) -> Integers:
    """[table][bin][bit]"""
    with np.errstate(over="ignore"):
        index = np.arange(32 * 192 * 32, dtype=np.uint64)
        z = np.uint64(seed) + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    weights = popcount32(z & np.uint64(0xFFFFFFFF)) - popcount32(z >> np.uint64(32))
    return weights.reshape(32, 192, 32)


def histograms(pictures: Bytes | Integers) -> Integers:
    """Of [n, 32, 32, 3]: [n, 768]."""
    channels = pictures.reshape(len(pictures), 1024, 3).astype(np.int64)
    return np.stack(
        [np.concatenate([np.bincount(picture[:, c], minlength=256) for c in range(3)]) for picture in channels]
    )


def fold(counted: Integers) -> Integers:
    folded: Integers = counted.reshape(len(counted), 192, 4).sum(axis=2)
    return folded


class Library:
    """A library file, read and checked."""

    def __init__(self, path: Path) -> None:
        self.data = data = path.read_bytes()
        self.head = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))
        self.crc = struct.unpack_from("<I", data, 4092)[0]
        self.sections = [Section(*SECTION.unpack_from(data, 128 + 32 * i)[:5]) for i in range(38)]
        self.n = int(self.head["nimages"])
        self.nbits = int(self.head["key_nbits"])
        self.thumbnails = self.array(THUMBNAILS, np.uint8).reshape(self.n, 32, 32, 3)
        stride = int(self.head["histogram_stride"])
        rows = self.array(HISTOGRAMS, np.uint8).reshape(self.n, stride)
        self.histograms = np.ascontiguousarray(rows[:, :3072]).view("<f4")
        self.padding = rows[:, 3072:]
        self.projections = self.array(PROJECTIONS, np.int8).reshape(32, 192, 32).astype(np.int64)
        self.reference = self.array(REFERENCE, np.dtype("<i4")).astype(np.int64)
        self.origins = self.array(ORIGINS, np.dtype("<u4")).reshape(self.n, 4)
        self.directories, self.entries = [], []
        ncells = 1 << int(self.head["cell_nbits"])
        for table in range(32):
            raw = self.array(TABLE, np.uint8, table)
            self.directories.append(raw[: 4 * (ncells + 1)].view("<u4"))
            self.entries.append(raw[align(4 * (ncells + 1)) :].view("<u4").reshape(-1, 2))

    def find(self, kind: int, index: int = 0) -> Section:
        return next(s for s in self.sections if (s.kind, s.index) == (kind, index))

    def array(self, kind: int, dtype: npt.DTypeLike, index: int = 0) -> npt.NDArray[np.int64]:
        section = self.find(kind, index)
        return np.frombuffer(self.data, np.uint8, section.nbytes, section.offset).view(dtype)

    def name(self, source: int) -> bytes:
        section = self.find(SOURCES)
        begin, end = struct.unpack_from("<QQ", self.data, section.offset + 8 * source)
        return self.data[section.offset + begin : section.offset + end]

    def check(self) -> None:
        """Everything the specification says of a file."""
        head = self.head
        assert head["magic"] == b"GPUFSCOL" and head["version"] == 1 and head["nsections"] == 38
        assert head["file_nbytes"] == len(self.data)
        assert zlib.crc32(self.data[:4092]) == self.crc
        assert self.data[76:128] == bytes(52) and self.data[1344:4092] == bytes(2748)
        end = 4096
        for section in self.sections:
            assert section.offset == align(end)
            assert self.data[end : section.offset] == bytes(section.offset - end)
            end = section.offset + section.nbytes
            assert zlib.crc32(self.data[section.offset : end]) == section.crc
        assert end == len(self.data)
        assert sorted((s.kind, s.index) for s in self.sections) == sorted(
            [(k, 0) for k in (1, 2, 3, 4, 6, 7)] + [(TABLE, t) for t in range(32)]
        )
        assert len(np.unique(self.thumbnails.reshape(self.n, -1), axis=0)) == self.n
        counted = histograms(self.thumbnails)
        assert np.array_equal(self.histograms, counted) and not self.padding.any()
        assert np.array_equal(self.projections, projections(int(head["seed"])))
        sums = fold(counted).sum(axis=0)
        assert np.array_equal(self.reference, (2 * sums + self.n) // (2 * self.n))
        bits = int(head["cell_nbits"])
        assert bits == 0 if self.n < 16 else 2**bits <= self.n / 8 < 2 ** (bits + 1)
        keys = self.keys(counted)
        for table in range(32):
            self.check_table(table, keys[:, table])

    def check_table(self, table: int, keys: Integers) -> None:
        buckets: dict[int, list[int]] = {}
        for image, key in enumerate(keys.tolist()):
            bucket = buckets.setdefault(key * MULTIPLIER % 2**32, [])
            if len(bucket) < 32:
                bucket.append(image)
        expected = np.array([(hashed, image) for hashed in sorted(buckets) for image in buckets[hashed]])
        assert np.array_equal(self.entries[table], expected)
        cells = expected[:, 0] >> (32 - int(self.head["cell_nbits"]))
        starts = np.searchsorted(cells, np.arange(len(self.directories[table])))
        assert np.array_equal(self.directories[table], starts)

    def keys(self, counted: Integers) -> Integers:
        """[image][table]"""
        sums = np.einsum("tib,ni->ntb", self.projections[:, :, : self.nbits], fold(counted) - self.reference)
        keys: Integers = ((sums > 0) << np.arange(self.nbits)).sum(axis=2)
        return keys

    def bucket(self, table: int, key: int) -> list[int]:
        hashed = key * MULTIPLIER % 2**32
        cell = hashed >> (32 - int(self.head["cell_nbits"]))
        begin, end = self.directories[table][cell : cell + 2]
        some = self.entries[table][begin:end]
        return [int(image) for image in some[some[:, 0] == hashed, 1]]

    def shortlist(self, keys: Integers) -> tuple[list[int], int]:
        """The shortlist, and how many of it the block's own buckets gave."""
        found: dict[int, None] = {}

        def append(images: list[int]) -> None:
            for image in images:
                if len(found) < 256:
                    found.setdefault(image)

        for table in range(32):
            append(self.bucket(table, int(keys[table])))
        own = len(found)
        goal = int(self.head["shortlist_goal"])
        for table in range(32):
            for bit in range(self.nbits):
                if len(found) < goal:
                    append(self.bucket(table, int(keys[table]) ^ 1 << bit))
        if len(found) < goal:
            append([i * self.n // 64 for i in range(64)])
        return list(found), own

    def match(self, blocks: Bytes) -> Integers:
        """Of [n, 32, 32, 3]: [n, 4]: image, distance, images of own buckets, images compared."""
        counted = histograms(blocks)
        stored = self.histograms.astype(np.int64)
        result = []
        for query, keys in zip(counted, self.keys(counted), strict=True):
            images, own = self.shortlist(keys)
            distances = ((stored[images] - query) ** 2).sum(axis=1)
            nearest = min(zip(distances.tolist(), images, strict=True))
            result.append((nearest[1], nearest[0], own, len(images)))
        return np.array(result)


def to_blocks(picture: Bytes) -> Bytes:
    """The blocks of a picture, its edge repeated: [n, 32, 32, 3]."""
    height, width = picture.shape[:2]
    rows = np.minimum(np.arange(align32(height)), height - 1)
    columns = np.minimum(np.arange(align32(width)), width - 1)
    whole = picture[rows][:, columns]
    return np.stack(
        [whole[y : y + 32, x : x + 32] for y in range(0, len(rows), 32) for x in range(0, len(columns), 32)]
    )


def align32(n: int) -> int:
    return -(-n // 32) * 32
