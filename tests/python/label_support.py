# SPDX-License-Identifier: Apache-2.0
"""What tests of regions of images share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def searched(image: NDArray[Any], corners: bool, background: Any) -> NDArray[np.int32]:
    """The labels, by going through each region from its first pixel on."""
    height, width = image.shape[:2]
    kinds = [[tuple(np.atleast_1d(pixel).tolist()) for pixel in row] for row in image]
    labels = np.zeros((height, width), np.int32)
    steps = [
        (down, on) for down in (-1, 0, 1) for on in (-1, 0, 1) if (down, on) != (0, 0) and (corners or 0 in (down, on))
    ]
    nregions = 0
    for place in np.ndindex(height, width):
        if labels[place] or kinds[place[0]][place[1]] == background:
            continue
        nregions += 1
        labels[place] = nregions
        left = [place]
        while left:
            row, column = left.pop()
            for down, on in steps:
                there = row + down, column + on
                is_inside = 0 <= there[0] < height and 0 <= there[1] < width
                if is_inside and not labels[there] and kinds[there[0]][there[1]] == kinds[row][column]:
                    labels[there] = nregions
                    left.append(there)
    return labels
