# SPDX-License-Identifier: Apache-2.0
"""Files for code that runs inside a GPU kernel, and a photo collage made with them."""

from gpufs.errors import GpufsError

__all__ = ["GpufsError"]
