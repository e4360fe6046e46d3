# SPDX-License-Identifier: Apache-2.0
"""`python -m gpufs`."""

from gpufs.cli import main

main()
