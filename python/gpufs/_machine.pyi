# SPDX-License-Identifier: Apache-2.0
"""What this machine offers gpufs (src/python/machine_module.cpp)."""

def version() -> str:
    """The library's version."""

def cuda_missing() -> str:
    """Why kernels cannot run on a GPU here; empty when they can."""

def describe_platforms() -> list[tuple[str, str]]:
    """(name, lines of "key: value") of each GPU, and of the CPU machine."""

def probe_path(path: bytes) -> list[tuple[str, str, str]]:
    """(machine, "pull", "staged" or "error", why) for the file, on each machine that can run here."""

def nvme_controllers(
    sys: str = "/sys", proc: str = "/proc", dev: str = "/dev"
) -> list[tuple[str, str, str | None, str]]:
    """(address, what it is, "vfio", "registers" or None, why) of each NVMe controller on the PCI bus.

    The third is how it can be taken over, the last what that takes, or what is in the way.
    """
