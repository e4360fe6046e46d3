# SPDX-License-Identifier: Apache-2.0
"""Regions of images, for gpufs.par.label() (apps/label/python_module.cpp)."""

MOST_PIXELS: int

def label(
    engine: str,
    pixels: int,
    height: int,
    width: int,
    corners: bool,
    background: int | None,
    device: int,
    labels: int,
) -> int:
    """Labels height * width uint32 pixels, as int32: how many regions there are."""
