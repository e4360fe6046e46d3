# SPDX-License-Identifier: Apache-2.0
"""What gpufs raises."""


class GpufsError(Exception):
    """Something that the user can do something about: one line that names the file and says what is wrong with it."""


Error = GpufsError
