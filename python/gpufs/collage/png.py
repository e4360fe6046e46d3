# SPDX-License-Identifier: Apache-2.0
"""PNG files written by all cores: strips of a picture are made, filtered and compressed side by side.

A PNG's pixels are one zlib stream (RFC 1950), cut into chunks anywhere. Strips are compressed apart, each to a whole
number of bytes (a full flush, RFC 1951), and lie one behind the other: any reader of PNG takes them for one stream.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from gpufs.collage.images import Pixels

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LEVEL = 3  # a third of the default's time, 5 % more bytes
STRIP_NBYTES = 1 << 20  # about: below some 256 KiB files grow, as each strip begins with nothing to look back at
_ADLER_BASE = 65521  # RFC 1950, section 8.2
_COLOUR, _BITS = 2, 8  # RGB, 8 bits a channel

Rows = Callable[[int, int], Pixels]


def write_png(stream: BinaryIO, size: tuple[int, int], rows: Rows, *, nthreads: int, unit: int = 1) -> None:
    """Writes an RGB picture of size (width, height).

    rows(first, n): n rows from `first`, a multiple of `unit`, as uint8 [n, width, 3]; several threads call it at once.
    At most two strips a thread are in memory. What `rows` or the stream raises ends the writing.
    """
    width, height = size
    strip_height = max(1, STRIP_NBYTES // (width * 3) // unit) * unit
    header = struct.pack(">IIBBBBB", width, height, _BITS, _COLOUR, 0, 0, 0)
    stream.write(SIGNATURE + _chunk(b"IHDR", header))
    strips: deque[Future[tuple[bytes, int, int]]] = deque()
    adler, begin = 1, b"\x78\x5e"  # zlib's header: deflate, a window of 32 KiB, a fast level
    starts = iter(range(0, height, strip_height))
    pool = ThreadPoolExecutor(nthreads, thread_name_prefix="png")
    try:
        while True:
            while len(strips) < 2 * nthreads and (first := next(starts, None)) is not None:
                n = min(strip_height, height - first)
                strips.append(pool.submit(_compress_strip, rows, first, n, first + n == height))
            if not strips:
                break
            compressed, check, nbytes = strips.popleft().result()
            adler = _joined_adler(adler, check, nbytes)
            end = b"" if strips else struct.pack(">I", adler)
            stream.write(_chunk(b"IDAT", begin + compressed + end))
            begin = b""
    finally:
        pool.shutdown(cancel_futures=True)
    stream.write(_chunk(b"IEND", b""))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))


def _compress_strip(rows: Rows, first: int, n: int, is_last: bool) -> tuple[bytes, int, int]:
    """The strip, compressed; the checksum of what was compressed, and how many bytes that is."""
    content = _filtered(rows(first, n))
    # As libpng does for filtered pixels.
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, strategy=zlib.Z_FILTERED)
    compressed = compressor.compress(content.data) + compressor.flush(zlib.Z_FINISH if is_last else zlib.Z_FULL_FLUSH)
    return compressed, zlib.adler32(content.data), content.nbytes


def _filtered(pixels: Pixels) -> npt.NDArray[np.uint8]:
    """Each row behind the number of its filter (PNG, section 9): the one whose bytes are least in sum.

    The first row is not filtered by the one above, so that no strip needs another.
    """
    height, width = pixels.shape[:2]
    raw = np.ascontiguousarray(pixels).reshape(height, width * 3)
    sub = raw.copy()
    sub[:, 3:] -= raw[:, :-3]
    up = raw.copy()
    up[1:] -= raw[:-1]
    sums = np.stack([_sums(raw), _sums(sub), _sums(up)])
    sums[2, 0] = np.iinfo(sums.dtype).max
    best = sums.argmin(axis=0).astype(np.uint8)
    content = np.empty((height, 1 + width * 3), np.uint8)
    content[:, 0] = best
    for number, form in enumerate((raw, sub, up)):
        chosen = best == number
        content[chosen, 1:] = form[chosen]
    return content


def _sums(form: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Of each row, the sum of its bytes' sizes, as signed numbers."""
    sums: npt.NDArray[np.int64] = np.abs(form.view(np.int8).astype(np.int16)).sum(axis=1, dtype=np.int64)
    return sums


def _joined_adler(first: int, second: int, second_nbytes: int) -> int:
    """The checksum of two pieces one behind the other, by their own ones (as zlib's adler32_combine)."""
    a1, b1, a2, b2 = first & 0xFFFF, first >> 16, second & 0xFFFF, second >> 16
    a = (a1 + a2 - 1) % _ADLER_BASE
    b = (b1 + b2 + second_nbytes * (a1 - 1)) % _ADLER_BASE
    return b << 16 | a
