# SPDX-License-Identifier: Apache-2.0
"""Regions of images, for gpufs.par.label() (apps/label/python_module.cpp)."""

MOST_PIXELS: int
NBYTES_A_PIXEL: int

def usual_memory(engine: str, device: int) -> int:
    """How many bytes labelling takes of its memory if nobody says."""

class Regions:
    """Of an image of one column at least that is labelled by strips, from the uppermost on."""

    def __init__(self, engine: str, npixels: int, width: int, corners: bool, device: int) -> None:
        """npixels: of a strip, at most."""

    def label(self, pixels: int, height: int, background: int | None, seam: int, labels: int) -> None:
        """Labels the next strip of height * width uint32 pixels, as int32.

        seam: the kinds of the row above, then of its first row.
        """

    def number(self) -> int:
        """After the last strip: how many regions there are."""

    def renumber(self, which: int, labels: int, n: int, is_64_bit: bool) -> None:
        """After number(): n labels of a strip become those of the whole image."""
