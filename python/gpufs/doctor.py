# SPDX-License-Identifier: Apache-2.0
"""``gpufs doctor``: what this machine offers gpufs, which way files will take, and why.

Everything is read, nothing is changed. What the native module knows better is asked of it; without it, or where it was
built without CUDA, the operating system is asked.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import platform
import resource
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from gpufs.text import printable

SYS_IO_URING_SETUP = 425
SYS_OPENAT2 = 437
RESOLVE_BENEATH = 0x08
UNLIMITED = "unlimited"


@dataclass
class Section:
    """One heading, its ``key: value`` lines, and what the user may want to do about them."""

    title: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    failed: bool = False

    def add(self, key: str, value: str) -> None:
        self.lines.append((key, value))


def native_module() -> Any | None:
    """The compiled module, or None when gpufs was not built here."""
    try:
        return importlib.import_module("gpufs._machine")
    except ImportError:
        return None


def size_text(nbytes: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < 1024 or unit == "TiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable")


def read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes (counts of huge pages as they are)."""
    values: dict[str, int] = {}
    for line in (read_text("/proc/meminfo") or "").splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if words:
            values[key] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return values


def syscall_errno(number: int, *arguments: Any) -> tuple[int, int]:
    """(result, errno) of a raw system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return int(result), ctypes.get_errno()


def probe_io_uring() -> str:
    """Whether the kernel gives this process an io_uring, in words."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return "not probed on this processor"
    parameters = ctypes.create_string_buffer(120)
    result, error = syscall_errno(SYS_IO_URING_SETUP, ctypes.c_uint(2), parameters)
    if result >= 0:
        os.close(result)
        return "available"
    if error == errno.ENOSYS:
        return "not in this kernel: staged reads use pread"
    if error == errno.EPERM:
        switch = read_text("/proc/sys/kernel/io_uring_disabled")
        why = f"kernel.io_uring_disabled = {switch}" if switch not in (None, "0") else "a sandbox refuses it"
        return f"refused ({why}): staged reads use pread"
    return f"refused ({errno.errorcode.get(error, error)}): staged reads use pread"


def probe_openat2() -> str:
    """Whether files can be opened strictly below a mount's root by the kernel itself."""
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY | os.O_CLOEXEC, 0, RESOLVE_BENEATH)
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        result, error = syscall_errno(
            SYS_OPENAT2, ctypes.c_int(here), ctypes.c_char_p(b"."), how, ctypes.c_size_t(ctypes.sizeof(how))
        )
    finally:
        os.close(here)
    if result >= 0:
        os.close(result)
        return "available"
    return f"missing ({errno.errorcode.get(error, error)}): paths are checked step by step instead"


def limit_text(value: int, is_nbytes: bool = False) -> str:
    if value == resource.RLIM_INFINITY:
        return UNLIMITED
    return size_text(value) if is_nbytes else f"{value:,}"


def gpus_from_driver() -> tuple[list[str], str]:
    """GPU names by the CUDA driver library, and the driver's CUDA version or why there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], "no NVIDIA driver here (libcuda.so.1 not found)"
    version = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return [], "the NVIDIA driver is there but finds no GPU"
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    names = []
    for index in range(count.value):
        name = ctypes.create_string_buffer(100)
        device = ctypes.c_int()
        nbytes = ctypes.c_size_t()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, 100, device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(nbytes), device)
        names.append(f"{name.value.decode()}, {size_text(nbytes.value)}")
    return names, f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def driver_version() -> str | None:
    try:
        run = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = run.stdout.split()
    return lines[0] if lines else None


def gpufs_section(native: Any | None) -> Section:
    section = Section("gpufs")
    try:
        version = metadata.version("gpufs")
    except metadata.PackageNotFoundError:
        version = "not installed as a package"
    section.add("version", version)
    if native is None:
        section.add("native module", "missing")
        section.advice.append("build it: ./dev build, or pip install .")
        section.failed = True
        return section
    section.add("native module", f"{native.version()}, {native.__file__}")
    rows = importlib.import_module("gpufs._rows")  # of the same build
    for engine in ("gpu", "cpu", "simt"):
        why_not = rows.engine_missing(engine)
        section.add(f"engine {engine}", f"no: {why_not}" if why_not else "yes")
    for machine, lines in native.describe_platforms():
        for line in str(lines).splitlines():
            key, colon, value = line.partition(":")
            if colon:
                section.add(f"{machine}: {key.strip()}", value.strip())
    if missing := native.cuda_missing():
        section.add("no cuda machine", missing)
    return section


def gpu_section(native: Any | None) -> Section:
    section = Section("GPU")
    names, driver = gpus_from_driver()
    section.add("driver", f"{version}, {driver}" if (version := driver_version()) else driver)
    for index, name in enumerate(names):
        section.add(f"GPU {index}", name)
    if not names:
        section.add("GPU", "none: kernels run on the CPU machine, gpufs collage picks the engine cpu")
    elif native is not None and (missing := native.cuda_missing()):
        section.advice.append(f"there is a GPU, but {missing}; build gpufs again where nvcc is on PATH")
    return section


def nvme_section(native: Any | None, tree: tuple[str, ...] = ()) -> Section:
    """The NVMe controllers on the PCI bus, and whether gpufs could take them over for its kernels."""
    section = Section("NVMe controllers")
    if native is None:
        section.add("controllers", "not known without the native module")
        return section
    found = native.nvme_controllers(*tree)
    if not found:
        section.add("controllers", "none on the PCI bus")
    for address, what, way, why in found:
        verdict = "cannot be taken over: " if way is None else "can be taken over, "
        section.add(address, f"{what}: {verdict}{why}")
    return section


def limits_section() -> Section:
    section = Section("Limits")
    memory = meminfo()
    section.add("CPU cores", f"{len(os.sched_getaffinity(0))}")
    total, available = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
    section.add("memory", f"{size_text(total)}, {size_text(available)} available")
    section.add("pin budget", f"{size_text(available / 2)} (half of what is available; mount_options::pin_nbytes)")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    section.add("open files", f"{limit_text(soft)} soft, {limit_text(hard)} hard")
    if hard != resource.RLIM_INFINITY and hard < 65536:
        section.advice.append(
            f"beyond {hard:,} open files, each access opens its file again; a higher hard limit (ulimit -Hn) saves that"
        )
    section.add("locked memory", limit_text(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], is_nbytes=True))
    section.add("memory mappings", read_text("/proc/sys/vm/max_map_count") or "not known")
    huge = memory.get("HugePages_Total", 0)
    thp = read_text("/sys/kernel/mm/transparent_hugepage/enabled") or "not known"
    chosen = thp[thp.find("[") + 1 : thp.find("]")] if "[" in thp else thp
    section.add("huge pages", f"{huge} reserved, transparent: {chosen}")
    section.add("io_uring", probe_io_uring())
    section.add("openat2", probe_openat2())
    section.add("kernel", f"{platform.system()} {platform.release()}, {platform.machine()}")
    return section


def file_system_of(path: Path) -> str:
    """The type of the file system that holds the path, from the longest mount point above it."""
    best, kind = "", "not known"
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        above = point == "/" or str(path) == point or str(path).startswith(point + "/")
        if above and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def sample_file(folder: Path, enough: int = 1000) -> Path | None:
    """The largest regular file among the first ones below a folder."""
    best: Path | None = None
    best_nbytes = -1
    seen = 0
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            seen += 1
            candidate = Path(where) / name
            if candidate.is_symlink() or not candidate.is_file() or not os.access(candidate, os.R_OK):
                continue
            if (nbytes := candidate.stat().st_size) > best_nbytes:
                best, best_nbytes = candidate, nbytes
        if seen >= enough:
            break
    return best


def kind_of(mode: int) -> str:
    tests = {
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
        "a character device": stat.S_ISCHR,
        "a block device": stat.S_ISBLK,
    }
    return next((name for name, test in tests.items() if test(mode)), "no regular file")


def path_section(path: Path, native: Any | None) -> Section:
    """Which way the bytes of a file (or of a folder's largest file) will take."""
    section = Section(str(path))
    try:
        info = path.stat()
        resolved = path.resolve(strict=True)
    except OSError as error:
        section.add("problem", error.strerror or str(error))
        section.failed = True
        return section
    section.add("file system", file_system_of(resolved))
    target = resolved
    if stat.S_ISDIR(info.st_mode):
        found = sample_file(resolved)
        if found is None:
            section.add("files", "no regular file below this folder can be read")
            return section
        target = found
        section.add("largest found", str(target.relative_to(resolved)))
    elif not stat.S_ISREG(info.st_mode):
        section.add("problem", f"{kind_of(info.st_mode)}: gpufs opens regular files only")
        section.failed = True
        return section
    if not os.access(target, os.R_OK):
        section.add("problem", "no permission to read it")
        section.failed = True
        return section
    section.add("size", size_text(target.stat().st_size))
    if native is None:
        section.add("path", "not known without the native module")
        return section
    for machine, way, why in native.probe_path(os.fsencode(target)):
        section.add(f"on {machine}", why if why.startswith(way) else f"{way}: {why}")
        section.failed = section.failed or way == "error"
    return section


def temporary_folder_probe(native: Any | None) -> Section:
    """What a small file in the temporary folder would do, when no path was given."""
    with tempfile.TemporaryDirectory(prefix="gpufs-doctor-") as name:
        example = Path(name) / "example"
        example.write_bytes(bytes(65536))
        section = path_section(example, native)
    section.title = f"A file in {tempfile.gettempdir()}"
    return section


def report(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Section]:
    """All sections, in the order in which they are printed."""
    native = native_module()
    yield gpufs_section(native)
    yield gpu_section(native)
    yield nvme_section(native)
    yield limits_section()
    given = [Path(path) for path in paths]
    if not given:
        yield temporary_folder_probe(native)
    for path in given:
        yield path_section(path, native)


def main(paths: Iterable[str | os.PathLike[str]] = (), *, as_json: bool = False) -> int:
    """Prints the report, for programs as one line; 0 when gpufs can work here and every path given can be read."""
    code, told = 0, []
    for section in report(paths):
        code = 1 if section.failed else code
        if as_json:
            told.append(asdict(section) | {"lines": dict(section.lines)})
            continue
        print(printable(section.title))
        width = max((len(key) for key, _ in section.lines), default=0) + 1
        for key, value in section.lines:
            print(f"  {printable(key) + ':':<{width}} {printable(value)}")
        for advice in section.advice:
            print(f"  -> {printable(advice)}")
        print()
    if as_json:
        print(json.dumps(told))
    return code


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
